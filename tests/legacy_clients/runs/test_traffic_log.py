"""Real clients of all ages against a gateway with a traffic log: the log shows what they did."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.legacy_clients.brokers import NO_REBALANCE_DELAY, RunningBroker, StoreArguments, gateway
from tests.legacy_clients.clients import (
    SESSION_MS,
    Client,
    Record,
    Security,
    Span,
    consume,
    consume_in_group,
    produce,
)
from tests.legacy_clients.logins.users import USER, users_file
from tests.testkit.traffic_rows import Row, read_rows

pytestmark = [pytest.mark.peer]

RECORDS = 10
PRODUCE, FETCH, METADATA, API_VERSIONS = "0", "1", "3", "18"
NEVER = -1


class HighestVersions(NamedTuple):
    """The highest versions that a library sends to Apache Kafka 3.9.2; NEVER if it has no such
    request.
    """

    produce: int
    fetch: int
    metadata: int
    api_versions: int


KNOWN = {
    "java-0.8.2.2": HighestVersions(0, NEVER, 0, NEVER),
    "java-0.9.0.1": HighestVersions(1, 1, 0, NEVER),
    "java-0.10.2.2": HighestVersions(2, 3, 2, 0),
    "java-0.11.0.3": HighestVersions(3, 5, 4, 1),
    "java-1.1.1": HighestVersions(5, 7, 5, 1),
    "java-2.8.2": HighestVersions(9, 12, 11, 3),
    "kafka-python-1.0.2": HighestVersions(0, 0, 0, NEVER),
    "kafka-node-2.0.0": HighestVersions(0, 0, 0, NEVER),
    "confluent-0.11.6": HighestVersions(3, 4, 2, 0),
    "kafkajs-2.2.4": HighestVersions(7, 11, 6, 2),
    "sarama-1.19.0": HighestVersions(0, 0, 0, NEVER),
    "franz-go-1.22.2-as-0.10": HighestVersions(2, 2, 1, 0),
    "kcat-1.7.1": HighestVersions(7, 11, 4, 3),
}

#: Of these in CI: each record format, with and without ApiVersions, and a client that sends its
#: name.
IN_CI = {"java-0.8.2.2", "java-0.10.2.2", "java-2.8.2", "confluent-0.11.6", "kcat-1.7.1"}

#: Clients that send their name, with ApiVersions 3.
NAMES = {
    "java-2.8.2": "apache-kafka-java",
    "java-4.4.0": "apache-kafka-java",
    "kcat-1.7.1": "librdkafka",
}

LOGIN_PATHS = {
    "java-0.10.2.2": "handshake-v0-bare",
    "kafka-python-2.0.2": "handshake-v0-bare",
    "java-1.0.0": "handshake-v1",
    "aiokafka-0.14.0": "handshake-v1",
}


class LoggedBroker(NamedTuple):
    broker: RunningBroker
    log: Path


@pytest.fixture(scope="module")
def watched(
    store_arguments: StoreArguments, is_reference: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoggedBroker]:
    if is_reference:
        pytest.skip("Kafka has no such log")
    folder = tmp_path_factory.mktemp("watched")
    log = folder / "traffic"
    arguments = [
        *NO_REBALANCE_DELAY,
        "--traffic-log",
        str(log),
        "--set",
        f"users_file={users_file(folder)}",
    ]
    with gateway(
        folder,
        ("PLAINTEXT://127.0.0.1:0", "SASL_PLAINTEXT://127.0.0.1:0"),
        arguments,
        store_arguments,
    ) as broker:
        yield LoggedBroker(broker, log)


def records_to(topic: str) -> list[Record]:
    return [Record(topic, 0, b"key", b"value %d" % number) for number in range(RECORDS)]


def wait_for_rows(
    watched: LoggedBroker,
    client: Client,
    *did: int,
    topic: str | None = None,
    group: str | None = None,
) -> tuple[list[Row], list[Row]]:
    """Return the last rows of this client's connections, and its usage rows of the topic or group.

    Waits until all its connections are closed and the log has all requests in `did`. They must
    include the client's last request, because earlier ones are logged before it.
    """

    def is_wanted(row: Row) -> bool:
        is_of_it = row.get("group") == group if topic is None else row.get("topic") == topic
        return bool(row["kind"] == "usage" and row.get("client_id") == client.name and is_of_it)

    end = time.monotonic() + 180
    while True:
        rows = read_rows(watched.log)
        its = [row for row in rows if client.name in row.get("client_ids", [])]
        closed = [row for row in its if row["event"] == "closed"]
        if {row["connection"] for row in its} == {row["connection"] for row in closed} and {
            row["api_key"] for row in rows if is_wanted(row)
        }.issuperset(did):
            break
        assert time.monotonic() < end, "its connections are still open"
        time.sleep(0.05)
    return closed, list(filter(is_wanted, rows))


def highest(closed: list[Row], api_key: str) -> int:
    return max(
        (row["highest"][api_key] for row in closed if api_key in row["highest"]), default=NEVER
    )


def summed(used: list[Row], api_key: int, field: str) -> Any:
    """The sum of counts; of objects the sums by name."""
    values = [row[field] for row in used if row["api_key"] == api_key and field in row]
    if values and isinstance(values[0], dict):
        return {
            name: sum(value.get(name, 0) for value in values)
            for name in sorted(set().union(*values))
        }
    return sum(values)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in IN_CI)) for name in KNOWN]
)
def test_versions_formats_and_records_of_a_client_are_logged(
    name: str, watched: LoggedBroker, client: Callable[[str], Client]
) -> None:
    row, bootstrap = client(name), watched.broker.bootstrap
    topic = f"told-{name}-{uuid.uuid4().hex[:6]}"
    produce(row, bootstrap, records_to(topic))
    if row.consumes:
        assert len(consume(row, bootstrap, [Span(topic, 0, 0, RECORDS)])) == RECORDS
    closed, used = wait_for_rows(watched, row, *([0, 1] if row.consumes else [0]), topic=topic)
    seen = HighestVersions(
        *(highest(closed, key) for key in (PRODUCE, FETCH, METADATA, API_VERSIONS))
    )
    assert seen == KNOWN[name]
    assert {one.get("software") for one in closed} == {NAMES.get(name)}
    assert not any(one.get("api_versions_refused") for one in closed)
    assert summed(used, 0, "records") == RECORDS
    assert set(summed(used, 0, "magic_in")) == {str(row.writes)}
    if row.consumes:
        # A client that supports format 2 gets nothing else.
        assert set(summed(used, 1, "magic_out")) == {str(2 if row.reads == 2 else row.writes)}
    assert not any("errors" in one for one in used)


def test_unsupported_api_versions_request_is_logged(
    watched: LoggedBroker, client: Callable[[str], Client]
) -> None:
    row = client("java-4.4.0")
    topic = f"told-{row.name}-{uuid.uuid4().hex[:6]}"
    produce(row, watched.broker.bootstrap, records_to(topic))
    closed, _ = wait_for_rows(watched, row, 0, topic=topic)
    assert [
        (one["api_versions"], one["api_versions_refused"], one["software"]) for one in closed
    ] == [(5, True, NAMES[row.name])] * len(closed)
    assert all(one["first_requests"][:2] == ["18:5", "18:4"] for one in closed)


@pytest.mark.parametrize(
    "name",
    [
        "java-0.9.0.1",
        "java-0.10.2.2",
        pytest.param("kafka-node-2.0.0", marks=pytest.mark.slow),
    ],
)
def test_conversion_for_an_old_consumer_is_logged(
    name: str, watched: LoggedBroker, client: Callable[[str], Client]
) -> None:
    row, producer = client(name), client("kafka-python-3.0.12")
    topic = f"converted-{name}-{uuid.uuid4().hex[:6]}"
    produce(producer, watched.broker.bootstrap, records_to(topic))
    consume(row, watched.broker.bootstrap, [Span(topic, 0, 0, RECORDS)])
    _, used = wait_for_rows(watched, row, 1, topic=topic)
    assert summed(used, 1, "converted_records") >= RECORDS
    assert set(summed(used, 1, "magic_out")) == {str(row.reads)}
    assert summed(used, 1, "conversion_cpu_us") > 0
    _, made = wait_for_rows(watched, producer, 0, topic=topic)
    assert summed(made, 1, "conversions") == 0


@pytest.mark.parametrize(
    "name",
    ["java-0.9.0.1", "java-3.9.2", pytest.param("sarama-1.61.1", marks=pytest.mark.slow)],
)
def test_group_and_habits_of_its_member_are_logged(
    name: str, watched: LoggedBroker, client: Callable[[str], Client]
) -> None:
    row, bootstrap = client(name), watched.broker.bootstrap
    topic, group = f"grouped-{name}-{uuid.uuid4().hex[:6]}", f"group-{name}-{uuid.uuid4().hex[:6]}"
    produce(client("kafka-python-3.0.12"), bootstrap, records_to(topic))
    assert len(consume_in_group(row, bootstrap, group, topic, RECORDS)) == RECORDS
    closed, used = wait_for_rows(watched, row, 11, 14, 8, 9, group=group)
    assert {one["topic"] for one in used if "topic" in one} == {topic}
    (habits,) = [one["habits"] for one in closed if "protocols" in one.get("habits", {})]
    assert set(row.assignors) <= set(habits["protocols"])
    assert habits["session_timeout_ms"] == SESSION_MS
    assert ("rebalance_timeout_ms" in habits) == (name != "java-0.9.0.1")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * name.startswith("java-"))
        for name in LOGIN_PATHS
    ],
)
def test_login_path_is_logged(
    name: str, watched: LoggedBroker, client: Callable[[str], Client]
) -> None:
    row = client(name)
    topic = f"logged-in-{name}-{uuid.uuid4().hex[:6]}"
    produce(
        row, watched.broker.listeners["SASL_PLAINTEXT"], records_to(topic), security=Security(USER)
    )
    closed, used = wait_for_rows(watched, row, 0, topic=topic)
    seen = [one for one in closed if one["listener"] == "SASL_PLAINTEXT"]
    assert {(one["road"], one["mechanism"], one["principal"]) for one in seen} == {
        (LOGIN_PATHS[name], "PLAIN", "User:alice")
    }
    assert {one["principal"] for one in used if one["topic"] == topic} == {"User:alice"}
