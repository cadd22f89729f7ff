"""What applications do that set nothing: produce, consume from an offset or from the beginning, consume in a group; with a log-in and without. One run of a real client is one of these.

Clients go by the library's own client id, and have its own times and sizes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from kafka.protocol.consumer.group import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse

from tests.compat.records.building import Sample, batch
from tests.legacy_clients.brokers import Broker
from tests.legacy_clients.clients import OPEN, Client, Record, Security, Span, line_of, run
from tests.legacy_clients.test_sasl import USER
from tests.peers.gateway import Peer

RECORDS = 10
#: A member that has committed what there was gets more after so long: libraries heartbeat every three seconds, unless told otherwise.
HEARTBEAT_SECONDS = 3.6
LATER_RECORDS = 2
PATIENCE_SECONDS = 120.0
RUN_SECONDS = 180.0


def scenarios_of(client: Client, only: Sequence[str] = ()) -> list[str]:
    """What the library can do and its driver drives; of `only` some where they are named."""
    groups = client.groups != "none"
    able = [
        ("produce", client.produces),
        ("consume", client.consumes),
        ("beginning", client.consumes),
        ("group", groups),
    ]
    able += [
        ("produce-sasl", client.produces and client.sasl_plain),
        ("group-sasl", groups and client.sasl_plain),
    ]
    return [name for name, is_able in able if is_able and (not only or name in only)]


class Prepared:
    """The topic and the group of one run. All that is done to them goes over one connection, which is open before the run begins."""

    def __init__(self, peer: Peer, topic: str, scenario: str) -> None:
        self._peer = peer
        self.topic = topic
        self.group = f"group-of-{topic}"
        self._makes()
        if not scenario.startswith("produce"):
            self._fills(RECORDS)

    def _makes(self) -> None:
        """A topic that is there when clients first ask: some of the old ones take UNKNOWN_TOPIC_OR_PARTITION for final."""
        asked = MetadataRequest(
            version=4,
            topics=[MetadataRequest.MetadataRequestTopic(name=self.topic)],
            allow_auto_topic_creation=True,
        )
        _until_done(
            lambda: int(self._peer.request(asked, MetadataResponse, 4).topics[0].error_code)
        )

    def _fills(self, count: int) -> None:
        now = int(time.time() * 1000)
        records = batch([Sample(index, now, b"key", b"value") for index in range(count)])
        _until_done(lambda: int(self._peer.produce(self.topic, records).error_code))

    def adds_later(self, is_over: threading.Event) -> None:
        """More records, some time after the group has committed the first ones."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end and self._committed() < RECORDS and not is_over.wait(0.1):
            pass
        is_over.wait(HEARTBEAT_SECONDS)
        self._fills(LATER_RECORDS)

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
    client: Client, scenario: str, broker: Broker, prepared: Prepared, seconds: float = RUN_SECONDS
) -> None:
    """One run, whose driver is given so long. Raises DriverFailed."""
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
    later = threading.Thread(target=prepared.adds_later, args=(is_over,))
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
    """Again while it gives an error: a topic that was just made has no leader yet with Kafka."""
    end = time.monotonic() + PATIENCE_SECONDS
    while code := asks():
        if time.monotonic() > end:
            raise TimeoutError(f"error {code}")
        time.sleep(0.1)


def connect(broker: Broker, listener: str = "PLAINTEXT") -> Peer:
    host, _, port = broker.listeners[listener].rpartition(":")
    return Peer((host, int(port)), seconds=PATIENCE_SECONDS)
