"""The log as it lies in Pulsar, read by its own client and unpacked by kafka-python: without the gateway and without its store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import chain, count

import pulsar
from kafka.record import MemoryRecords

from storage.log import Buffer
from storage.pulsar.log.entry_messages import parse_header, unpack_entries
from tests.peers.chaos.evidence import Log, Position
from tests.peers.verifiable import TOPIC

READ_MS = 240_000


def read_log(service_url: str, namespace: str, partitions: int, found: Log) -> Log:
    """Of a topic in one of the formats of batches. `hidden_copies` counts what readers must not see: copies, which begin before the end of what came before
    them, what a replaced leader stored after its successor's first, and what it had stored where its successor began.
    """
    values: dict[Position, str] = {}
    ends: dict[int, int] = {}
    hidden = 0
    with closing(_client(service_url)) as client:
        for partition in range(partitions):
            end, epoch = 0, -1
            for message in _messages(client, f"{namespace}/{TOPIC}-partition-{partition}"):
                header = parse_header(message.properties())
                assert header, f"a message of somebody else's in partition {partition}"
                if header.leader_epoch > epoch:
                    epoch = header.leader_epoch
                    void = [(partition, offset) for offset in range(header.base_offset, end)]
                    for place in void:
                        values.pop(place, None)
                    hidden += bool(void)
                elif header.leader_epoch < epoch or header.base_offset < end:
                    hidden += 1
                    continue
                for entry in unpack_entries(header, message.data()):
                    values.update(
                        ((partition, offset), value) for offset, value in _records(entry.payload)
                    )
                end = header.last_offset + 1
            ends[partition] = end
    return Log(values, ends, hidden)


def read_native_log(service_url: str, namespace: str, partitions: int, found: Log) -> Log:
    """Of a topic in the format of native clients, who see each record as a message, in their order, and no offsets: those are of `found`. What is more
    than that lies beyond the end."""
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


def _records(batch: Buffer) -> list[tuple[int, str]]:
    found = []
    records = MemoryRecords(bytes(batch))
    while records.has_next():
        found += [(record.offset, record.value.decode()) for record in records.next_batch()]
    return found
