"""Client quotas through the admin API, with the errors of Kafka 3.9.2."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest

from gateway.coroutines import SLICE_ROWS
from gateway.security.audit import NO_AUDIT_LOG
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.handler_calls import call, decode_response, start_call

UNSUPPORTED_VERSION, INVALID_REQUEST, POLICY = 35, 42, 44
DEFAULT, ANY = 1, 2

Quotas = dict[tuple[tuple[str, str | None], ...], dict[str, float]]


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def entry(names: dict[str, str | None], **values: float | None) -> Any:
    kind = AlterClientQuotasRequest.EntryData
    return kind(
        entity=[
            kind.EntityData(entity_type=type_name, entity_name=name)
            for type_name, name in names.items()
        ],
        ops=[
            kind.OpData(key=key, value=value or 0, remove=value is None)
            for key, value in values.items()
        ],
    )


def finished(env: BrokerEnvironment, request: Any, version: int) -> Any:
    """The reply to a request that takes several reactor turns."""
    started = start_call(env, request, version)
    while not started.is_done:
        env.clock.advance(0)
    return decode_response(request, started.result, version)


def alter(
    env: BrokerEnvironment, *entries: Any, version: int = 1, validate_only: bool = False
) -> list[tuple[int, str | None]]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    reply = finished(env, request, version)
    return [(row.error_code, row.error_message) for row in reply.entries]


def describe(
    env: BrokerEnvironment, *components: tuple[str, int, str | None], strict: bool = False
) -> Quotas:
    component = DescribeClientQuotasRequest.ComponentData
    asked = [
        component(entity_type=kind, match_type=how, match=match) for kind, how, match in components
    ]
    reply = finished(env, DescribeClientQuotasRequest(components=asked, strict=strict), 1)
    assert (reply.error_code, reply.error_message) == (0, "")
    return {
        tuple((part.entity_type, part.entity_name) for part in row.entity): {
            value.key: value.value for value in row.values
        }
        for row in reply.entries
    }


@pytest.mark.parametrize("version", range(2))
def test_quotas_are_described_as_they_were_set(env: BrokerEnvironment, version: int) -> None:
    assert (
        alter(
            env,
            entry({"user": "alice"}, producer_byte_rate=1024, request_percentage=12.5),
            entry({"user": None, "client-id": "app"}, consumer_byte_rate=2048),
            entry({"client-id": None}, producer_byte_rate=1),
            version=version,
        )
        == [(0, None)] * 3
    )
    assert describe(env) == {
        (("user", "alice"),): {"producer_byte_rate": 1024, "request_percentage": 12.5},
        (("client-id", "app"), ("user", None)): {"consumer_byte_rate": 2048},
        (("client-id", None),): {"producer_byte_rate": 1},
    }
    assert describe(env, ("user", ANY, None), strict=True).keys() == {(("user", "alice"),)}
    assert describe(env, ("client-id", DEFAULT, None)).keys() == {(("client-id", None),)}


def test_removed_quotas_are_gone(env: BrokerEnvironment) -> None:
    alter(env, entry({"user": "alice"}, producer_byte_rate=1024, consumer_byte_rate=5))
    alter(env, entry({"user": "alice"}, producer_byte_rate=None, request_percentage=None))
    assert describe(env) == {(("user", "alice"),): {"consumer_byte_rate": 5}}
    alter(env, entry({"user": "alice"}, consumer_byte_rate=None))
    assert describe(env) == {}


def test_reply_has_one_row_for_each_entity(env: BrokerEnvironment) -> None:
    message = "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"
    assert alter(
        env,
        entry({"user": "alice"}, producer_byte_rate=1),
        entry({"user": "bob"}, producer_byte_rate=0),
        entry({"user": "alice"}, producer_byte_rate=2),
    ) == [
        (INVALID_REQUEST, message),
        (INVALID_REQUEST, "Quota producer_byte_rate must be greater than 0"),
    ]
    assert describe(env) == {(("user", "alice"),): {"producer_byte_rate": 1}}


def test_validated_changes_are_not_made(env: BrokerEnvironment) -> None:
    assert alter(env, entry({"user": "alice"}, producer_byte_rate=1), validate_only=True) == [
        (0, None)
    ]
    assert describe(env) == {}


@pytest.mark.parametrize(
    ("component", "code"),
    [(("nonsense", 0, "x"), UNSUPPORTED_VERSION), (("user", 3, None), INVALID_REQUEST)],
)
def test_invalid_filter_is_an_error_without_entries(
    env: BrokerEnvironment, component: tuple[str, int, str | None], code: int
) -> None:
    kind, how, match = component
    asked = DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=how, match=match)
    reply = call(env, DescribeClientQuotasRequest(components=[asked], strict=False), 1)
    assert (reply.error_code, reply.entries) == (code, None)


def test_request_with_too_many_changes_is_refused_as_a_whole(env: BrokerEnvironment) -> None:
    values = {f"key-{number}": None for number in range(10_000)}
    codes = {
        code
        for code, _ in alter(
            env, entry({"user": "a"}, producer_byte_rate=1), entry({"user": "b"}, **values)
        )
    }
    assert (codes, describe(env)) == ({POLICY}, {})


def test_entity_with_many_parts_is_refused(env: BrokerEnvironment) -> None:
    many: dict[str, str | None] = {str(number): "x" for number in range(11)}
    message = "an entity may have at most 10 parts"
    assert alter(env, entry(many, producer_byte_rate=1)) == [(INVALID_REQUEST, message)]
    few = dict(list(many.items())[:10])
    assert alter(env, entry(few, producer_byte_rate=1)) == [
        (INVALID_REQUEST, "Unhandled client quota entity type: 0")
    ]


def test_large_replies_are_encoded_on_another_thread(env: BrokerEnvironment) -> None:
    many = [entry({"user": str(number)}, producer_byte_rate=1) for number in range(SLICE_ROWS + 1)]
    assert set(alter(env, *many)) == {(0, None)}
    before = env.threads.calls
    assert len(describe(env)) == SLICE_ROWS + 1
    assert env.threads.calls > before


def test_changes_are_in_the_audit_log(
    env: BrokerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[Any, ...]] = []
    monkeypatch.setattr(type(NO_AUDIT_LOG), "changed", lambda _, *row: rows.append(row[3:]))
    alter(
        env,
        entry({"user": "alice", "client-id": None}, producer_byte_rate=1024),
        entry({"user": "bob"}, request_percentage=None),
        entry({"user": "eve"}, producer_byte_rate=-5),
    )
    alter(env, entry({"user": "alice"}, producer_byte_rate=1), validate_only=True)
    assert rows == [
        ("quota", "set", "client-id=<default>,user=alice producer_byte_rate=1024", 0),
        ("quota", "remove", "user=bob request_percentage", 0),
        ("quota", "set", "user=eve producer_byte_rate=-5", INVALID_REQUEST),
    ]
