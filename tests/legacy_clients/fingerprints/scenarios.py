"""Scenarios of applications with default settings; each is one run of a real client.

Produce, consume from an offset or from the beginning, consume in a group; with and without
authentication. Clients have the library's default client id, timeouts and sizes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from kafka.protocol.consumer.group import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse

from tests.legacy_clients.brokers import RunningBroker
from tests.legacy_clients.clients import OPEN, Client, Record, Security, Span, line_of, run
from tests.legacy_clients.logins.users import USER
from tests.records.sample_records import Sample, batch
from tests.testkit.gateway import Peer

RECORDS = 10
#: Later records follow after this pause: by default libraries send a heartbeat every three seconds.
HEARTBEAT_SECONDS = 3.6
LATER_RECORDS = 2
PATIENCE_SECONDS = 120.0
RUN_SECONDS = 180.0


def scenarios_of(client: Client, only: Sequence[str] = ()) -> list[str]:
    """The scenarios that the library and its driver support; only those in `only`, if any."""
    groups = client.groups != "none"
    able = [
        ("produce", client.produces),
        ("consume", client.consumes),
        ("beginning", client.consumes),
        ("group", groups),
    ]
    able += [
        ("produce-sasl", client.produces and "PLAIN" in client.sasl),
        ("group-sasl", groups and "PLAIN" in client.sasl),
    ]
    return [name for name, is_able in able if is_able and (not only or name in only)]


class PreparedRun:
    """The topic and the group of one run.

    All requests for them use one connection, opened before the run.
    """

    def __init__(self, peer: Peer, topic: str, scenario: str) -> None:
        self._peer = peer
        self.topic = topic
        self.group = f"group-of-{topic}"
        self._create_topic()
        if not scenario.startswith("produce"):
            self._fill(RECORDS)

    def _create_topic(self) -> None:
        """Create the topic before clients ask for it: some old ones do not retry
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        asked = MetadataRequest(
            version=4,
            topics=[MetadataRequest.MetadataRequestTopic(name=self.topic)],
            allow_auto_topic_creation=True,
        )
        _until_done(
            lambda: int(self._peer.request(asked, MetadataResponse, 4).topics[0].error_code)
        )

    def _fill(self, count: int) -> None:
        now = int(time.time() * 1000)
        records = batch([Sample(index, now, b"key", b"value") for index in range(count)])
        _until_done(lambda: int(self._peer.produce(self.topic, records).error_code))

    def add_later(self, is_over: threading.Event) -> None:
        """Add records some time after the group has committed the first ones."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end and self._committed() < RECORDS and not is_over.wait(0.1):
            pass
        is_over.wait(HEARTBEAT_SECONDS)
        self._fill(LATER_RECORDS)

    def _committed(self) -> int:
        topics = [
            OffsetFetchRequest.OffsetFetchRequestTopic(name=self.topic, partition_indexes=[0])
        ]
        reply = self._peer.request(
            OffsetFetchRequest(version=1, group_id=self.group, topics=topics),
            OffsetFetchResponse,
            1,
        )
        return int(reply.topics[0].partitions[0].committed_offset)


def run_scenario(
    client: Client,
    scenario: str,
    broker: RunningBroker,
    prepared: PreparedRun,
    seconds: float = RUN_SECONDS,
) -> None:
    """Run the driver once, with this time limit. Raises DriverFailed."""
    verb, _, secured = scenario.partition("-")
    bootstrap = broker.listeners["SASL_PLAINTEXT" if secured else "PLAINTEXT"]
    words: list[str] = []
    given = ""
    if verb == "produce":
        given = line_of(Record(prepared.topic, 0, b"key", b"value")) * RECORDS
    elif verb == "consume":
        words = [str(Span(prepared.topic, 0, 0, RECORDS))]
    elif verb == "beginning":
        words = [f"{prepared.topic}:0:beginning:{RECORDS}"]
    else:
        words = ["--group", prepared.group, f"{prepared.topic}:{RECORDS + LATER_RECORDS}"]
    is_over = threading.Event()
    later = threading.Thread(target=prepared.add_later, args=(is_over,))
    if verb == "group":
        later.start()
    try:
        run(
            client,
            "consume" if verb == "beginning" else verb,
            bootstrap,
            words,
            given,
            timeout=seconds,
            security=Security(USER) if secured else OPEN,
        )
    finally:
        is_over.set()
        if verb == "group":
            later.join()


def _until_done(asks: Callable[[], int]) -> None:
    """Retry while there is an error: on Kafka a new topic has no leader yet."""
    end = time.monotonic() + PATIENCE_SECONDS
    while code := asks():
        if time.monotonic() > end:
            raise TimeoutError(f"error {code}")
        time.sleep(0.1)


def connect(broker: RunningBroker, listener: str = "PLAINTEXT") -> Peer:
    host, _, port = broker.listeners[listener].rpartition(":")
    return Peer((host, int(port)), seconds=PATIENCE_SECONDS)
