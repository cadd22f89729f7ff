"""Probes the gateway's permissions in a namespace: creates, writes, reads and deletes a topic."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pulsar

from storage.log import NotReady, StorageError, StorageFailed
from storage.pulsar.admin.admin_api import AdminFailed, Conflict, Forbidden, PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient, to_storage_error
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.topics.namespaces import InactiveTopics
from storage.pulsar.topics.pulsar_names import INTERNAL_PREFIX, PREFIX, partition_name, path_of
from storage.pulsar.topics.retention_policies import KEEP_ALL, Retention

INDEX_PROPERTY = "index"
"""Property with the last entry number, if brokers number entries (ManagedLedgerInterceptorImpl)."""

PROBE_TOPIC_PREFIX = f"{INTERNAL_PREFIX}-check-"
"""Prefix of probe topics; followed by the process's start time in seconds."""

LEFTOVER_SECONDS = 3600
"""Age after which a probe topic is a leftover of a dead process."""

_STARTED, _PROCESS = int(time.time()), uuid.uuid4().hex

LONGEST_HEADER = Header(*(5 * [(1 << 63) - 1]))
"""The header counts towards the size of a message."""


@dataclass(slots=True)
class ProbeResult:
    """Outcome of a probe; values are None if not determined.

    `refused` maps a failed operation, in words (`create topics`), to its error.
    """

    refused: dict[str, StorageError] = field(default_factory=dict)
    retention: Retention | None = None
    deletes_inactive_topics: bool | None = None
    has_entry_index: bool | None = None
    accepted_bytes: int = 0
    """The largest accepted payload; if one was refused, nearly the largest possible."""


async def probe(
    admin: PulsarAdmin, client: PulsarClient, namespace: str, sizes: Mapping[str, int]
) -> ProbeResult:
    """Probe `namespace`. Raises StorageFailed if the admin API does not answer.

    `sizes` are the payload sizes to send, by their names in `refused`.
    """
    result = ProbeResult()
    topic = f"{PREFIX}{namespace}/{PROBE_TOPIC_PREFIX}{_STARTED}-{_PROCESS}"
    try:
        await admin.put(f"{path_of(topic)}/partitions", 1)
    except Conflict:
        # Left by an earlier attempt that could not delete it.
        pass
    except AdminFailed as failure:
        result.refused["create topics"] = failure
        return result
    try:
        await _read_policies(admin, topic, result)
        await _produce_and_read(client, partition_name(topic, 0), sizes, result)
    except NotReady:
        # Deleting would fail too; the next attempt uses the same topic.
        raise
    except BaseException:
        await _delete(admin, topic, result)
        raise
    await _delete(admin, topic, result)
    await _delete_leftovers(admin, namespace)
    return result


async def _delete(admin: PulsarAdmin, topic: str, result: ProbeResult) -> None:
    try:
        await admin.delete(f"{path_of(topic)}/partitions?force=true")
    except StorageFailed as failure:
        result.refused["delete topics"] = failure


async def _delete_leftovers(admin: PulsarAdmin, namespace: str) -> None:
    """Delete probe topics of dead processes, but not those that another gateway may be using."""
    with suppress(StorageFailed):
        for topic in (
            await admin.get(f"/persistent/{quote(namespace)}/partitioned", list[str]) or ()
        ):
            made, _, _ = topic.rpartition("/")[2].removeprefix(PROBE_TOPIC_PREFIX).partition("-")
            if (
                topic.startswith(f"{PREFIX}{namespace}/{PROBE_TOPIC_PREFIX}")
                and made.isdecimal()
                and int(made) < time.time() - LEFTOVER_SECONDS
            ):
                await admin.delete(f"{path_of(topic)}/partitions?force=true")


async def _read_policies(admin: PulsarAdmin, topic: str, result: ProbeResult) -> None:
    path = path_of(topic)
    try:
        result.retention = await admin.get(f"{path}/retention?applied=true", Retention | None)
        inactive: InactiveTopics | None = await admin.get(
            f"{path}/inactiveTopicPolicies?applied=true", InactiveTopics | None
        )
        result.deletes_inactive_topics = inactive.deleteWhileInactive if inactive else None
    except AdminFailed:
        # Without topic-level policies the brokers do not report them this way.
        pass
    try:
        result.has_entry_index = INDEX_PROPERTY in await admin.properties(partition_name(topic, 0))
        await admin.put(f"{path}/properties", {"checked": "1"})
    except Forbidden as failure:
        result.refused["set properties of topics"] = failure
    try:
        await admin.post(f"{path}/retention", KEEP_ALL)
    except AdminFailed as failure:
        result.refused["set policies of topics"] = failure


async def _produce_and_read(
    client: PulsarClient, topic: str, sizes: Mapping[str, int], result: ProbeResult
) -> None:
    def write() -> None:
        producer = client.producer(topic, pulsar.ProducerAccessMode.ExclusiveWithFencing)
        try:
            for what, size in sorted(sizes.items(), key=lambda pair: pair[1]):
                try:
                    _send(producer, size)
                except pulsar.MessageTooBig as failure:
                    result.refused[what] = to_storage_error(failure)
                    result.accepted_bytes = _largest(producer, result.accepted_bytes, size)
                else:
                    result.accepted_bytes = size
        finally:
            producer.close()

    def read() -> None:
        client.reader(topic, pulsar.MessageId.earliest).close()

    tries: list[tuple[str, Callable[[], Any]]] = [("produce", write), ("consume", read)]
    for what, call in tries:
        try:
            await client.run(call)
        except StorageFailed as failure:
            result.refused[what] = failure
            if isinstance(failure.__cause__, pulsar.Timeout):
                # The next operation would time out too.
                return


def _send(producer: pulsar.Producer, size: int) -> None:
    producer.send(bytes(size), properties=LONGEST_HEADER.properties("mixed_kafka"))


def _largest(producer: pulsar.Producer, taken: int, refused: int) -> int:
    """The largest accepted payload, up to 1 KiB less. The library itself refuses most that are too
    large.
    """
    while refused - taken > 1024:
        size = (taken + refused) // 2
        try:
            _send(producer, size)
        except pulsar.MessageTooBig:
            refused = size
        else:
            taken = size
    return taken
