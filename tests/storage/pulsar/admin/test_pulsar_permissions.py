"""Permissions are refreshed, expire, and follow refusals; on a fake of the admin API."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from storage.log import NotAllowed, NotReady, StorageFailed
from storage.pulsar.admin.admin_api import Forbidden, NotFound
from storage.pulsar.admin.pulsar_permissions import PulsarPermissions
from storage.pulsar.settings import PulsarSettings
from tests.fakes.broker import Started, ended

REFRESH, MAX_AGE = 30, 600
LOGGER = "storage.pulsar.admin.pulsar_permissions"


class FakeAdmin:
    """`answers` by path: an object, or an exception to raise. `held` answers wait for `release`."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.waiting: list[Deferred[None]] = []
        self.is_held = False

    async def get(self, path: str, kind: Any) -> Any:
        self.asked.append(path)
        if self.is_held:
            self.waiting.append(Deferred())
            await self.waiting[-1]
        answer = self.answers[path]
        if answer is None:
            return None
        if isinstance(answer, Exception):
            raise answer
        if kind is msgspec.Raw:
            return msgspec.Raw(msgspec.json.encode(answer))
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError as error:
            raise StorageFailed(str(error)) from None

    def release(self) -> None:
        self.is_held = False
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one.callback(None)

    def grant(self, namespace: str, **actions: str) -> None:
        """Replace the grants of a namespace: actions by role."""
        rows = {role: action.split("_") for role, action in actions.items()}
        self.answers[f"/namespaces/{namespace}"] = {
            "auth_policies": {"namespace_auth": rows, "destination_auth": {}}
        }

    def fail(self, failure: Exception | None = None) -> None:
        for path in self.answers:
            self.answers[path] = failure or NotReady("no answer")


def forbidden(reason: str) -> Forbidden:
    return Forbidden(f"403 {reason}", 403, reason)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def admin() -> FakeAdmin:
    made = FakeAdmin()
    made.answers["/tenants/acme"] = {"adminRoles": ["boss"]}
    made.answers["/tenants/other"] = {"adminRoles": ["chief"]}
    made.grant("acme/orders", alice="produce")
    made.grant("other/things", bob="consume")
    return made


def make(
    admin: FakeAdmin,
    clock: Clock,
    namespaces: tuple[str, ...] = ("other/things",),
    **others: Any,
) -> PulsarPermissions:
    settings = PulsarSettings(
        "pulsar://localhost:6650",
        "http://localhost:8080",
        tenant="acme",
        namespace="orders",
        allowed_namespaces=namespaces,
        permissions_refresh_seconds=REFRESH,
        permissions_max_age_seconds=MAX_AGE,
        **others,
    )
    fake: Any = admin
    return PulsarPermissions(settings, fake, clock)


@pytest.fixture
def permissions(admin: FakeAdmin, clock: Clock) -> Iterator[PulsarPermissions]:
    made = make(admin, clock)
    ended(made.open())
    yield made
    made.close()
    assert not clock.getDelayedCalls()


FULL = "persistent://other/things/t"


def test_permissions_of_all_served_namespaces_apply(permissions: PulsarPermissions) -> None:
    assert permissions.may_write("alice", "t")
    assert permissions.may_write("alice", "acme/orders/t")
    assert permissions.may_write("alice", "persistent://acme/orders/t")
    assert not permissions.may_read("alice", "t")
    assert permissions.may_read("bob", FULL)
    assert not permissions.may_read("bob", "t")
    assert permissions.may_write_any("alice")
    assert not permissions.may_write_any("bob")
    assert permissions.may_read_any("bob")


def test_topics_that_are_not_served_are_refused(permissions: PulsarPermissions) -> None:
    for topic in ("else/where/t", "a/b", "__kopgate.lock", "", "persistent://acme/__kafka/t"):
        assert not permissions.may_write("boss", topic)
        assert not permissions.may_administer("boss", topic)


def test_administrators_are_those_of_the_topics_tenant(permissions: PulsarPermissions) -> None:
    assert permissions.may_administer("boss", "t")
    assert permissions.may_write("boss", "t")
    assert not permissions.may_administer("boss", FULL)
    assert permissions.may_administer("chief", FULL)
    assert not permissions.may_administer("alice", "t")
    assert not permissions.may_administer_all("boss")


def test_answers_about_a_namespace_leave_out_the_others(admin: FakeAdmin, clock: Clock) -> None:
    policies = admin.answers["/namespaces/other/things"]["auth_policies"]
    policies["subscription_auth_roles"] = {"readers": ["bob"]}
    made = make(admin, clock)
    ended(made.open())
    mine, other, unserved = "acme/orders", "other/things", "else/where"
    assert made.may_write_any("alice", mine)
    assert not made.may_write_any("alice", other)
    assert made.may_read_any("bob", other)
    assert not made.may_read_any("bob", mine)
    assert made.may_administer_all("chief", other)
    assert not made.may_administer_all("chief", mine)
    assert made.may_use_group("alice", "readers", mine)
    assert not made.may_use_group("alice", "readers", other)
    assert not made.may_write_any("alice", unserved)
    assert not made.may_administer_all("chief", unserved)


def test_administrator_of_all_tenants_administers_all(admin: FakeAdmin, clock: Clock) -> None:
    admin.answers["/tenants/other"] = {"adminRoles": ["chief", "boss"]}
    made = make(admin, clock)
    ended(made.open())
    assert made.may_administer_all("boss")
    assert not made.may_administer_all("chief")


def test_group_restrictions_of_all_namespaces_apply(admin: FakeAdmin, clock: Clock) -> None:
    for namespace, roles in (("acme/orders", ["alice", "bob"]), ("other/things", ["bob", "eve"])):
        path = f"/namespaces/{namespace}"
        admin.answers[path]["auth_policies"]["subscription_auth_roles"] = {"readers": roles}
    made = make(admin, clock)
    ended(made.open())
    allowed = [role for role in ("alice", "bob", "eve") if made.may_use_group(role, "readers")]
    assert allowed == ["bob"]
    assert made.may_use_group("alice", "others")


def test_revocation_applies_after_the_refresh_interval(
    permissions: PulsarPermissions, admin: FakeAdmin, clock: Clock
) -> None:
    admin.grant("acme/orders")
    clock.advance(REFRESH - 0.1)
    assert permissions.may_write("alice", "t")
    clock.advance(0.1)
    assert not permissions.may_write("alice", "t")


def test_version_changes_only_with_permissions(
    permissions: PulsarPermissions, admin: FakeAdmin, clock: Clock
) -> None:
    before = permissions.version
    clock.advance(REFRESH)
    admin.answers["/namespaces/acme/orders"]["bundles"] = {"numBundles": 8}
    clock.advance(REFRESH)
    assert permissions.version == before
    admin.grant("acme/orders", alice="produce", carol="consume")
    clock.advance(REFRESH)
    assert permissions.version > before


def test_new_permission_applies_soon_after_a_refusal(
    permissions: PulsarPermissions, admin: FakeAdmin, clock: Clock
) -> None:
    asked = len(admin.asked)
    admin.grant("acme/orders", alice="produce", carol="produce")
    for _ in range(8):
        permissions.refresh_soon()
        clock.advance(0.125)
    assert permissions.may_write("carol", "t")
    assert len(admin.asked) == asked + 4


def test_endless_refusals_make_at_most_ten_calls_per_second(admin: FakeAdmin, clock: Clock) -> None:
    namespaces = tuple(f"other/n{index}" for index in range(98))
    for namespace in namespaces:
        admin.grant(namespace)
    made = make(admin, clock, namespaces)
    ended(made.open())
    asked = len(admin.asked)
    for _ in range(100):
        made.refresh_soon()
        clock.advance(1)
    made.close()
    assert 0 < len(admin.asked) - asked <= 1000


def test_last_permissions_apply_until_the_maximum_age(
    permissions: PulsarPermissions,
    admin: FakeAdmin,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin.fail()
    before = permissions.version
    with caplog.at_level(logging.WARNING):
        for _ in range(MAX_AGE - 1):
            clock.advance(1)
            assert permissions.may_write("alice", "t")
        assert [line for line in caplog.messages if "permissions cannot be refreshed" in line] == [
            "permissions cannot be refreshed, using the last known state: no answer"
        ]
        assert permissions.version == before
        clock.advance(1)
        assert not permissions.may_write("alice", "t")
        assert not permissions.may_administer("boss", "t")
        assert not permissions.may_read_any("bob")
        assert permissions.version > before
    expired = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert sorted(line.split(" could")[0] for line in expired) == [
        "permissions of acme/orders",
        "permissions of other/things",
    ]


def test_expired_permissions_come_back_with_the_admin_api(
    permissions: PulsarPermissions, admin: FakeAdmin, clock: Clock
) -> None:
    answers = dict(admin.answers)
    admin.fail()
    for _ in range(MAX_AGE):
        clock.advance(1)
    assert not permissions.may_write("alice", "t")
    admin.answers = answers
    clock.advance(REFRESH)
    assert permissions.may_write("alice", "t")


def test_permissions_expire_without_a_timer(admin: FakeAdmin, clock: Clock) -> None:
    """A process that was suspended does not use what it knew before."""
    made = make(admin, clock)
    ended(made.open())
    made.close()
    clock.rightNow += MAX_AGE
    assert not made.may_write("alice", "t")


def test_age_counts_from_the_call(admin: FakeAdmin, clock: Clock) -> None:
    admin.is_held = True
    made = make(admin, clock)
    opening = Started(made.open())
    clock.advance(100)
    admin.release()
    assert opening.is_done
    admin.fail()
    clock.rightNow += MAX_AGE - 100
    assert not made.may_write("alice", "t")
    made.close()


def test_failure_of_one_namespace_does_not_keep_others_from_refreshing(
    permissions: PulsarPermissions, admin: FakeAdmin, clock: Clock
) -> None:
    admin.answers["/tenants/acme"] = NotReady("no answer")
    for _ in range(MAX_AGE // REFRESH):
        clock.advance(REFRESH)
    assert not permissions.may_write("alice", "t")
    assert permissions.may_read("bob", FULL)


def test_deleted_namespace_has_no_permissions(
    permissions: PulsarPermissions, admin: FakeAdmin, clock: Clock
) -> None:
    admin.answers["/namespaces/acme/orders"] = NotFound("404", 404, "Namespace does not exist")
    clock.advance(REFRESH)
    assert not permissions.may_write("alice", "t")
    assert not permissions.may_administer("boss", "t")


def test_deleted_namespace_has_no_administrators(admin: FakeAdmin, clock: Clock) -> None:
    made = make(admin, clock)
    ended(made.open())
    admin.answers["/namespaces/acme/orders"] = NotFound("404", 404, "Namespace does not exist")
    clock.advance(REFRESH)
    assert made.may_administer_all("chief")
    admin.answers["/namespaces/other/things"] = NotFound("404", 404, "Namespace does not exist")
    clock.advance(REFRESH)
    assert not made.may_administer_all("chief")
    made.close()


def test_administrator_of_the_rest_is_not_one_of_all(admin: FakeAdmin, clock: Clock) -> None:
    """While the permissions of a namespace are unknown."""
    made = make(admin, clock)
    ended(made.open())
    admin.answers["/tenants/acme"] = NotReady("no answer")
    for _ in range(MAX_AGE // REFRESH):
        clock.advance(REFRESH)
    assert made.may_administer("chief", FULL)
    assert not made.may_administer_all("chief")
    made.close()


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        *(("/namespaces/acme/orders", one) for one in ({}, [], {"auth_policies": None}, "?", None)),
        *(("/tenants/acme", one) for one in ([], {"adminRoles": "boss"}, "?", None)),
    ],
)
def test_malformed_answer_is_a_failure_and_changes_nothing(
    permissions: PulsarPermissions, admin: FakeAdmin, clock: Clock, path: str, answer: object
) -> None:
    admin.answers[path] = answer
    clock.advance(REFRESH)
    assert permissions.may_write("alice", "t")
    for _ in range(MAX_AGE // REFRESH):
        clock.advance(REFRESH)
    assert not permissions.may_write("alice", "t")


def test_tenant_may_have_no_administrators(admin: FakeAdmin, clock: Clock) -> None:
    admin.answers["/tenants/acme"] = {"allowedClusters": ["standalone"]}
    made = make(admin, clock)
    ended(made.open())
    assert not made.may_administer("boss", "t")
    assert made.may_write("alice", "t")
    made.close()


def test_changed_administrators_apply(
    permissions: PulsarPermissions, admin: FakeAdmin, clock: Clock
) -> None:
    before = permissions.version
    admin.answers["/tenants/acme"] = {"adminRoles": ["alice"]}
    clock.advance(REFRESH)
    assert permissions.may_administer("alice", "t")
    assert not permissions.may_administer("boss", "t")
    assert permissions.version > before


def test_too_many_permissions_leave_the_last_ones(admin: FakeAdmin, clock: Clock) -> None:
    made = make(admin, clock, permissions_max=1)
    ended(made.open())
    admin.grant("acme/orders", alice="consume", carol="produce")
    clock.advance(REFRESH)
    assert made.may_write("alice", "t")
    made.close()


def test_open_names_the_namespace_with_too_many_permissions(admin: FakeAdmin, clock: Clock) -> None:
    admin.grant("acme/orders", alice="produce_consume")
    made = make(admin, clock, permissions_max=1)
    with pytest.raises(StorageFailed, match="acme/orders: 2 permissions"):
        ended(made.open())
    assert not clock.getDelayedCalls()


@pytest.mark.parametrize("path", ["/tenants/acme", "/namespaces/acme/orders"])
def test_open_without_right_names_the_remedy(admin: FakeAdmin, clock: Clock, path: str) -> None:
    admin.answers[path] = forbidden("Unauthorized to validate")
    with pytest.raises(NotAllowed) as caught:
        ended(make(admin, clock).open())
    assert "acme" in str(caught.value)
    assert "pulsar-admin tenants update acme --admin-roles ROLE" in str(caught.value)


def test_open_is_retried_if_the_broker_is_not_ready(admin: FakeAdmin, clock: Clock) -> None:
    admin.fail()
    with pytest.raises(NotReady):
        ended(make(admin, clock).open())


def test_close_ends_a_running_refresh(
    permissions: PulsarPermissions, admin: FakeAdmin, clock: Clock
) -> None:
    admin.is_held = True
    admin.grant("acme/orders")
    clock.advance(REFRESH)
    assert admin.waiting
    permissions.close()
    assert permissions.may_write("alice", "t")
