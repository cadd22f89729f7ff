"""Client quotas with Kafka's tool, real clients and raw requests, beside Kafka 3.9.2."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.protocol.admin.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kafka.protocol.consumer.fetch import FetchResponse
from kafka.protocol.producer.produce import ProduceResponse

from tests.fakes.connection import request as frame_of
from tests.legacy_clients.clients import Record, Span, consume, produce, table
from tests.peers.comparison import Command, ComparedBrokers
from tests.testkit.gateway import (
    BackgroundClient,
    Peer,
    fetch_request,
    gateway,
    one_record,
    produce_request,
)
from tests.testkit.kafka import Kafka
from tests.testkit.traffic_rows import read_rows

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("quotas")]

SECONDS = 120.0


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComparedBrokers]:
    with Kafka.start() as kafka, gateway(tmp_path_factory.mktemp("quotas"), node_id=1) as ours:
        both = ComparedBrokers("{}:{}".format(*ours.address), kafka.bootstrap)
        for at in (both.gateway, both.kafka):
            with closing(KafkaAdminClient(bootstrap_servers=at)) as admin:
                admin.create_topics([NewTopic("orders", 1, 1)])
        yield both


class QuotaClient(Peer):
    """A raw client that can send any client id."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        super().__init__((host, int(port)), seconds=SECONDS)

    def call(self, asked: Any, kind: Any, version: int, client_id: str | None = "admin") -> Any:
        asked.API_VERSION = version
        self.send(frame_of(asked, client_id=client_id))
        reply = self.receive()
        assert reply is not None, "closed by the broker"
        return kind.decode(reply[5 if asked.flexible_version_q(version) else 4 :], version=version)

    def alter(
        self, *changes: tuple[Sequence[tuple[str, str | None]], dict[str, float | None]]
    ) -> dict[frozenset[tuple[str, str | None]], tuple[int, str | None]]:
        """Change quotas; return error code and message by entity."""
        kind = AlterClientQuotasRequest.EntryData
        entries = [
            kind(
                entity=[kind.EntityData(entity_type=name, entity_name=of) for name, of in entity],
                ops=[
                    kind.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in values.items()
                ],
            )
            for entity, values in changes
        ]
        asked = AlterClientQuotasRequest(entries=entries, validate_only=False)
        rows = self.call(asked, AlterClientQuotasResponse, 1).entries
        return {
            frozenset((part.entity_type, part.entity_name) for part in row.entity): (
                row.error_code,
                row.error_message,
            )
            for row in rows
        }

    def describe(
        self, *components: tuple[str, int, str | None], strict: bool = False
    ) -> tuple[int, str | None, Any]:
        part = DescribeClientQuotasRequest.ComponentData
        asked = [
            part(entity_type=kind, match_type=how, match=name) for kind, how, name in components
        ]
        reply = self.call(
            DescribeClientQuotasRequest(components=asked, strict=strict),
            DescribeClientQuotasResponse,
            1,
        )
        rows = None
        if reply.entries is not None:
            rows = sorted(
                (
                    sorted((one.entity_type, str(one.entity_name)) for one in row.entity),
                    sorted((one.key, one.value) for one in row.values),
                )
                for row in reply.entries
            )
        return reply.error_code, reply.error_message, rows

    def produce_as(self, client_id: str, value: bytes, version: int = 7) -> int:
        """Return the throttle time in ms."""
        asked = produce_request("orders", one_record(value), version)
        reply = self.call(asked, ProduceResponse, version, client_id)
        assert reply.responses[0].partition_responses[0].error_code == 0
        return reply.throttle_time_ms

    def fetch_as(self, client_id: str, version: int = 4, offset: int = 0) -> tuple[int, int]:
        """Return the throttle time in ms, and the number of partitions in the reply."""
        asked = fetch_request("orders", offset, version)
        asked.session_epoch = -1
        asked.forgotten_topics_data, asked.rack_id = [], ""
        reply = self.call(asked, FetchResponse, version, client_id)
        assert reply.error_code == 0 if version >= 7 else True
        return reply.throttle_time_ms, sum(len(topic.partitions) for topic in reply.responses)


def on_both(sides: ComparedBrokers, work: Any) -> tuple[Any, Any]:
    """The results of `work`, which gets the address, on the gateway and on Kafka."""
    return work(sides.gateway), work(sides.kafka)


def same(sides: ComparedBrokers, *commands: Command) -> list[list[str]]:
    """The lines that kafka-configs prints, sorted; they must be equal on both sides."""
    ours, theirs = (
        [(one.code, sorted(one.output.splitlines())) for one in outputs]
        for outputs in sides.tools(*(("kafka-configs", *command) for command in commands))
    )
    assert ours == theirs
    return [lines for _, lines in ours]


ALICE, APP = ("--entity-type", "users", "--entity-name", "alice"), (
    "--entity-type", "clients", "--entity-name", "app",
)  # fmt: skip


def test_kafka_configs_prints_the_same(sides: ComparedBrokers) -> None:
    same(
        sides,
        ("--alter", *ALICE, "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048"),
        ("--alter", *APP, "--add-config", "request_percentage=12.5"),
        ("--alter", *ALICE, *APP, "--add-config", "producer_byte_rate=10"),
        ("--alter", "--entity-type", "users", "--entity-default", "--add-config",
         "producer_byte_rate=7"),
        ("--alter", *APP, "--add-config", "producer_byte_rate=0"),
        ("--alter", *APP, "--add-config", "producer_byte_rate=1.5"),
        ("--alter", *APP, "--add-config", "nonsense=1"),
        ("--alter", *ALICE, "--delete-config", "nonsense"),
    )  # fmt: skip
    printed = same(
        sides,
        ("--describe", "--entity-type", "users"),
        ("--describe", "--entity-type", "clients"),
        ("--describe", *ALICE, *APP),
        ("--describe", "--entity-type", "users", "--entity-type", "clients"),
        ("--alter", *ALICE, "--delete-config", "consumer_byte_rate"),
    )
    assert any("producer_byte_rate=1024.0" in line for line in printed[0])
    assert any("request_percentage=12.5" in line for line in printed[1])
    on_both(sides, remove_quotas)


USER, CLIENT, IP = "user", "client-id", "ip"
RATE = "producer_byte_rate"


def remove_quotas(at: str) -> None:
    """Remove all quotas, after Kafka has applied the tool's deletion of `consumer_byte_rate`."""
    with QuotaClient(at) as client:
        deadline = time.monotonic() + SECONDS
        # Kafka applies changes asynchronously.
        while (left := client.describe((USER, 0, "alice"), strict=True)[2]) != [
            ([(USER, "alice")], [(RATE, 1024.0)])
        ]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        removed = client.alter(
            ([(USER, "alice")], {RATE: None}),
            ([(CLIENT, "app")], {"request_percentage": None}),
            ([(USER, "alice"), (CLIENT, "app")], {RATE: None}),
            ([(USER, None)], {RATE: None}),
        )
        assert {code for code, _ in removed.values()} == {0}


CHANGES: list[list[tuple[Sequence[tuple[str, str | None]], dict[str, float | None]]]] = [
    [([(USER, "alice")], {RATE: 5, "consumer_byte_rate": 6}), ([(USER, "bob")], {RATE: 0})],
    [([(USER, "alice"), (CLIENT, None)], {RATE: 7})],
    [([], {RATE: 5})],
    [([("group", "g")], {RATE: 5})],
    [([(USER, "")], {RATE: 5})],
    [([(USER, "alice")], {RATE: 8}), ([(USER, "alice")], {RATE: 9})],
    [([(USER, "alice")], {"nonsense": 5})],
    [([(USER, "alice")], {"nonsense": None, "connection_creation_rate": None})],
    [([(USER, "alice")], {"connection_creation_rate": 5})],
    [([(USER, "alice")], {RATE: 1.5})],
    [([(USER, "alice")], {RATE: 1e19})],
    [([(USER, "alice")], {"request_percentage": -1})],
    [([(USER, "alice")], {"controller_mutation_rate": 0})],
    [([(IP, "127.0.0.1"), (USER, "alice")], {"connection_creation_rate": 5})],
    [([(IP, "127.0.0.1")], {RATE: 5})],
    [([(IP, "127.0.0.1")], {"connection_creation_rate": 1.5})],
    [([(IP, "127.0.0.1")], {"connection_creation_rate": 3e9})],
    [([(IP, "127.0.0.300")], {"connection_creation_rate": 5})],
    [([(IP, "127.0.0.1")], {"connection_creation_rate": None})],
]
FILTERS: list[tuple[list[tuple[str, int, str | None]], bool]] = [
    ([], False),
    ([], True),
    ([(USER, 0, "alice")], False),
    ([(USER, 0, "alice")], True),
    ([(USER, 2, None)], False),
    ([(CLIENT, 1, None)], False),
    ([(CLIENT, 1, None)], True),
    ([(USER, 0, "alice"), (CLIENT, 1, None)], True),
    ([(USER, 0, "stranger")], False),
    ([("", 0, "x")], False),
    ([("group", 0, "x")], False),
    ([(USER, 0, None)], False),
    ([(USER, 1, "alice")], False),
    ([(USER, 2, "alice")], False),
    ([(USER, 3, None)], False),
    ([(USER, 2, None), (USER, 2, None)], False),
    ([(IP, 2, None)], False),
    ([(IP, 2, None), (USER, 2, None)], False),
]


def test_errors_and_filters_are_those_of_kafka(sides: ComparedBrokers) -> None:
    def changed(at: str) -> list[Any]:
        with QuotaClient(at) as client:
            results = [client.alter(*change) for change in CHANGES]
            # Kafka applies changes asynchronously.
            deadline = time.monotonic() + SECONDS
            while len(client.describe()[2]) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            return results

    ours, theirs = on_both(sides, changed)
    assert ours == theirs

    def described(at: str) -> list[Any]:
        with QuotaClient(at) as client:
            found = [client.describe(*parts, strict=strict) for parts, strict in FILTERS]
            client.alter(
                ([(USER, "alice")], {RATE: None, "consumer_byte_rate": None}),
                ([(USER, "alice"), (CLIENT, None)], {RATE: None}),
            )
            return found

    ours, theirs = on_both(sides, described)
    assert ours == theirs
    assert ours[0][2] == [
        ([(CLIENT, "None"), (USER, "alice")], [(RATE, 7.0)]),
        ([(USER, "alice")], [("consumer_byte_rate", 6.0), (RATE, 8.0)]),
    ]


@contextmanager
def quota(at: str, entity: Sequence[tuple[str, str | None]], **values: float) -> Iterator[None]:
    """Set quotas until the context ends."""
    with QuotaClient(at) as admin:
        assert {code for code, _ in admin.alter((entity, values)).values()} == {0}
    try:
        yield
    finally:
        with QuotaClient(at) as admin:
            admin.alter((entity, dict.fromkeys(values)))


def test_throttle_times_are_those_of_kafka(sides: ComparedBrokers) -> None:
    """Each request has its own client id and so its own window, whose time does not matter."""

    def throttled(at: str) -> list[Any]:
        found: list[Any] = []
        with quota(at, [(CLIENT, None)], producer_byte_rate=1000, consumer_byte_rate=1000):
            deadline, number = time.monotonic() + SECONDS, 0
            with QuotaClient(at) as client:
                # Kafka applies quotas asynchronously.
                while not client.produce_as(f"waiting-{number}", b"v" * 10_050):
                    number += 1
                    assert time.monotonic() < deadline
            for number, (version, size) in enumerate(
                [(3, 20_000), (7, 9000), (7, 10_000), (7, 50_000), (9, 50_000), (11, 12_345)]
            ):
                # A new connection, because the other one is muted.
                with QuotaClient(at) as client:
                    found.append(client.produce_as(f"client-{number}", b"v" * size, version))
            # For older versions Kafka counts what is stored, the gateway what is sent.
            for number, version in enumerate((4, 6, 8, 11, 12)):
                with QuotaClient(at) as client:
                    found.append((version, client.fetch_as(f"client-{number}", version)))
        return found

    ours, theirs = on_both(sides, throttled)
    assert ours == theirs
    # A batch of 9,000 bytes is within the quota of 10 s, 50,000 bytes are not.
    assert ours[1] == 0
    assert 40_000 < ours[3] < 42_000


#: A quota of this many bytes per second, and what a client may use at once with two full samples.
RATE_BYTES, SAMPLES = 200_000, 3
AT_ONCE = (SAMPLES - 1) * RATE_BYTES
RECORDS, RECORD_BYTES = 40, 20_000
#: Requests that an old client may have in flight when it is muted, and what surrounds the records.
IN_FLIGHT_BYTES = 6 * (RECORD_BYTES + 500)
OLD = "kafka-python-2.0.2-as-0.9"


def produce_with_new_client(at: str) -> None:
    with closing(
        KafkaProducer(bootstrap_servers=at, client_id="new", enable_idempotence=False, linger_ms=0)
    ) as producer:
        for sent in [producer.send("orders", b"v" * RECORD_BYTES) for _ in range(RECORDS)]:
            sent.get(SECONDS)


def produce_with_old_client(at: str) -> None:
    records = [Record("orders", 0, None, b"v" * RECORD_BYTES)] * RECORDS
    assert len(produce(table()[OLD], at, records, linger_ms=0)) == RECORDS


def consume_with_new_client(at: str) -> None:
    partition = TopicPartition("orders", 0)
    with closing(
        KafkaConsumer(bootstrap_servers=at, client_id="new", auto_offset_reset="earliest")
    ) as consumer:
        consumer.assign([partition])
        left, deadline = RECORDS, time.monotonic() + SECONDS
        while left > 0:
            assert time.monotonic() < deadline
            left -= sum(map(len, consumer.poll(1000).values()))


def consume_with_old_client(at: str) -> None:
    assert len(consume(table()[OLD], at, [Span("orders", 0, 0, RECORDS)])) == RECORDS


def at_quota(work: Any, at: str) -> None:
    """Check that the records took the time of the quota."""
    began = time.monotonic()
    work(at)
    took = time.monotonic() - began
    # A slow machine only takes longer.
    allowed = AT_ONCE + RATE_BYTES * took + IN_FLIGHT_BYTES
    assert allowed > RECORDS * RECORD_BYTES, f"{work.__name__} took {took} s"


def test_quotas_that_survived_kill_limit_real_clients_and_delay_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"quota_window_num": SAMPLES, "traffic_log": tmp_path / "traffic"}
    both = {"producer_byte_rate": RATE_BYTES, "consumer_byte_rate": RATE_BYTES}
    with (
        gateway(tmp_path, **settings) as server,
        QuotaClient("{}:{}".format(*server.address)) as admin,
    ):
        for name in ("new", OLD):
            admin.alter(([(CLIENT, name)], both))
    # The context ends with SIGKILL.
    with gateway(tmp_path, **settings) as server, BackgroundClient(server) as other:
        at = "{}:{}".format(*server.address)
        for new, old in (
            (produce_with_new_client, produce_with_old_client),
            (consume_with_new_client, consume_with_old_client),
        ):
            with ThreadPoolExecutor(2) as pool:
                running = [pool.submit(at_quota, work, at) for work in (new, old)]
                assert other.makes_progress()
                for one in running:
                    one.result()
            assert other.makes_progress()
        assert other.failure is None
        assert server.stop() == 0
    for reply in ("ProduceResponse", "FetchResponse"):
        assert f"{reply} throttled by broker" in caplog.text
    throttled: Counter[tuple[str, int]] = Counter()
    for row in read_rows(tmp_path / "traffic"):
        if row["kind"] == "usage" and "client_id" in row:
            throttled[row["client_id"], row["api_key"]] += row.get("throttle_ms", 0)
    assert all(throttled[name, key] > 0 for name in ("new", OLD) for key in (0, 1))
    assert throttled["test", 0] == throttled["test", 1] == 0
