"""Configs of groups through AlterConfigs, IncrementalAlterConfigs and DescribeConfigs (KIP-848)."""

from __future__ import annotations

import pytest

from gateway.configs import group_configs
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.fakes.memory_store import Medium
from tests.gateway.handlers.admin.test_alter_configs import APPEND, DELETE, SET, alter, incremental
from tests.gateway.handlers.admin.test_describe_configs import describe
from tests.gateway.handlers.groups.test_consumer_group_heartbeat import member_heartbeat

GROUP = 32
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def open_env(medium: Medium | None = None) -> BrokerEnvironment:
    env = open_environment(medium, group_consumer_assignment_interval_ms=0)
    if env.broker.topics.get("orders") is None:
        env.topic("orders", 4)
    return env


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_env()


def put(
    env: BrokerEnvironment, name: str, value: str | None, group: str = "g", how: int = SET
) -> tuple[int, str | None]:
    return incremental(env, (GROUP, group, [(name, how, value)]))[0]


def members(env: BrokerEnvironment) -> int:
    group = env.broker.groups.get("g")
    assert group is not None
    return group.member_count


@pytest.mark.parametrize("is_first", [True, False])
def test_session_timeout_is_that_of_the_group(env: BrokerEnvironment, is_first: bool) -> None:
    if is_first:
        put(env, SESSION, "60000")
    epoch = member_heartbeat(env, "a").member_epoch
    if not is_first:
        put(env, SESSION, "60000")
        member_heartbeat(env, "a", epoch)
    env.clock.advance(59)
    assert members(env) == 1
    env.clock.advance(2)
    assert members(env) == 0


def test_heartbeat_interval_is_that_of_the_group(env: BrokerEnvironment) -> None:
    put(env, HEARTBEAT, "7000")
    epochs = {group: member_heartbeat(env, "a", group_id=group) for group in ("g", "other")}
    assert {group: reply.heartbeat_interval_ms for group, reply in epochs.items()} == {
        "g": 7000,
        "other": 5000,
    }
    put(env, HEARTBEAT, None, how=DELETE)
    assert member_heartbeat(env, "a", epochs["g"].member_epoch).heartbeat_interval_ms == 5000


def test_group_configs_survive_restart() -> None:
    medium = Medium()
    env = open_env(medium)
    member_heartbeat(env, "a")
    put(env, SESSION, "60000")
    ended(env.store.close())
    again = open_env(medium)
    again.clock.advance(59)
    assert members(again) == 1
    again.clock.advance(2)
    assert members(again) == 0


def test_alter_configs_replaces_group_configs(env: BrokerEnvironment) -> None:
    put(env, SESSION, "60000")
    assert alter(env, (GROUP, "g", [(HEARTBEAT, "7000")])) == [(0, None)]
    assert env.broker.group_configs.overrides("g") == {HEARTBEAT: "7000"}


# Output of kafka-configs.sh for a group of Kafka 4.3.1.
def test_group_configs_are_returned_with_defaults(
    env: BrokerEnvironment,
) -> None:
    put(env, SESSION, "50000")
    (result,) = describe(env, (GROUP, "g", None), include_synonyms=True)
    rows = {
        row.name: (
            row.value,
            row.config_source,
            [(one.name, one.value, one.source) for one in row.synonyms],
        )
        for row in result.configs
    }
    assert rows == {
        HEARTBEAT: ("5000", 5, [(f"group.{HEARTBEAT}", "5000", 5)]),
        SESSION: ("50000", 8, [(SESSION, "50000", 8), (f"group.{SESSION}", "45000", 5)]),
    }
    assert describe(env, (GROUP, "", None))[0].error_code == 42


# Errors of Kafka 4.3.1.
@pytest.mark.parametrize(
    ("name", "value", "code", "message"),
    [
        (
            SESSION,
            "44999",
            40,
            f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            SESSION,
            "60001",
            40,
            f"{SESSION} must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (
            HEARTBEAT,
            "4999",
            40,
            (
                f"{HEARTBEAT} must be greater than or equal to "
                "group.consumer.min.heartbeat.interval.ms"
            ),
        ),
        (
            HEARTBEAT,
            "15001",
            40,
            f"{HEARTBEAT} must be less than or equal to group.consumer.max.heartbeat.interval.ms",
        ),
        (
            HEARTBEAT,
            "x",
            40,
            f"Invalid value x for configuration {HEARTBEAT}: Not a number of type INT",
        ),
        ("nonsense", "1", 40, "Unknown group config name: nonsense"),
    ],
)
def test_invalid_group_configs_are_rejected(
    env: BrokerEnvironment, name: str, value: str, code: int, message: str
) -> None:
    assert put(env, name, value) == (code, message)
    assert list(env.broker.group_configs) == []


def test_group_config_without_group_name_or_with_append_is_rejected(env: BrokerEnvironment) -> None:
    assert put(env, SESSION, "50000", group="") == (
        42,
        "Default group resources are not allowed.",
    )
    assert put(env, SESSION, "50000", how=APPEND)[0] == 40


def test_number_of_groups_with_configs_is_limited(
    env: BrokerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_configs, "MAX_GROUPS", 1)
    assert put(env, SESSION, "50000")[0] == 0
    assert put(env, SESSION, "50000", group="other")[0] == 44
    assert put(env, SESSION, "55000")[0] == 0
