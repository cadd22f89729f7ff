"""Reads a topic directly from Pulsar with its client and kafka-python, without the gateway and its
store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain, count

import pulsar
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch

from storage.log import Buffer
from storage.pulsar.log.entry_messages import parse_header, unpack_entries
from tests.peers.chaos.evidence import Log, Position
from tests.testkit.verifiable import TOPIC

READ_MS = 240_000


def read_log(
    service_url: str,
    namespace: str,
    partitions: int,
    nodes_of: Callable[[str], Iterable[int]],
) -> Log:
    """Read a topic stored as Kafka batches.

    `nodes_of` returns the gateways that opened the Pulsar producer with a name.

    `hidden_copies` counts messages that readers must not see: duplicates, which begin before the
    end of the previous batch; batches stored by a replaced leader after its successor's first one;
    and earlier ones at offsets that the successor assigned again.
    """
    values: dict[Position, str] = {}
    batches: dict[Position, str] = {}
    ends: dict[int, int] = {}
    leaders: dict[Position, set[int]] = {}
    hidden = 0
    with closing(_client(service_url)) as client:
        for partition in range(partitions):
            end, writer = 0, (-1, 0)
            for message in _messages(client, f"{namespace}/{TOPIC}-partition-{partition}"):
                header = parse_header(message.properties())
                assert header, f"a message without a batch header in partition {partition}"
                nodes = nodes_of(message.producer_name())
                leaders.setdefault((partition, header.leader_epoch), set()).update(nodes)
                if header.writer > writer:
                    writer = header.writer
                    void = [(partition, offset) for offset in range(header.base_offset, end)]
                    for place in void:
                        values.pop(place, None)
                    hidden += bool(void)
                elif header.writer < writer or header.base_offset < end:
                    hidden += 1
                    continue
                for entry in unpack_entries(header, message.data()):
                    for offset, value, batch in _records(entry.payload):
                        values[partition, offset] = value
                        if batch:
                            batches[partition, offset] = f"{batch}, {message.message_id()}"
                end = header.last_offset + 1
            ends[partition] = end
    return Log(
        values,
        ends,
        hidden,
        batches=batches,
        leaders={place: frozenset(nodes) for place, nodes in leaders.items()},
    )


def read_native_log(service_url: str, namespace: str, partitions: int, found: Log) -> Log:
    """Read a topic in the format of native clients, where each record is a message without a Kafka
    offset.

    The offsets are taken from `found` in order; further messages get offsets after the log end.
    """
    values: dict[Position, str] = {}
    with closing(_client(service_url)) as client:
        for partition in range(partitions):
            offsets = chain(
                sorted(offset for where, offset in found.values if where == partition),
                count(found.ends[partition]),
            )
            for message in _messages(client, f"{namespace}/{TOPIC}-partition-{partition}"):
                values[partition, next(offsets)] = message.data().decode()
    return Log(values, found.ends, allows_gaps=True)


def _client(service_url: str) -> pulsar.Client:
    return pulsar.Client(
        service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    )


def _messages(client: pulsar.Client, topic: str) -> Iterator[pulsar.Message]:
    with closing(client.create_reader(topic, pulsar.MessageId.earliest)) as reader:
        while reader.has_message_available():
            yield reader.read_next(READ_MS)


def _records(stored: Buffer) -> list[tuple[int, str, str]]:
    """Offset, value, and producer of each record; no producer in formats 0 and 1."""
    found = []
    records = MemoryRecords(bytes(stored))
    while records.has_next():
        batch = records.next_batch()
        producer = ""
        if isinstance(batch, DefaultRecordBatch):
            producer = (
                f"producer id {batch.producer_id}, epoch {batch.producer_epoch}, "
                f"base sequence {batch.base_sequence}"
            )
        found += [(record.offset, record.value.decode(), producer) for record in batch]
    return found
