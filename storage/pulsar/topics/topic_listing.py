"""Lists the topics of the served namespaces through the admin API."""

from __future__ import annotations

import base64
import binascii
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast
from urllib.parse import quote

import msgspec
from twisted.internet.defer import Deferred, FirstError, gatherResults

from storage.log import StorageFailed, Topic
from storage.pulsar.admin.admin_api import AdminFailed, NotFound, PulsarAdmin
from storage.pulsar.log.entry_messages import ENTRY_FORMAT
from storage.pulsar.topics.pulsar_names import PREFIX, PulsarNames, partition_of, path_of

T = TypeVar("T")

TOPIC_ID = "kafka.topic.id"
CONFIG = "kafka.config."
RETENTION = "kopgate.retention"
"""Property with the retention policy that the gateway set; if missing or outdated, it is set
again.
"""

NATIVE = "pulsar"
"""Entry format of topics shared with native clients."""

LOWERED = "lowered"
"""Prefix of that property while the retention is temporarily lowered; the policies set then
follow.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PulsarTopic:
    """A topic and its metadata in Pulsar. A non-partitioned topic is its own single partition.

    While `is_being_deleted`, gateways close its logs and clients do not see it.
    """

    topic: Topic
    full_name: str
    is_partitioned: bool
    entry_format: str | None = None
    retention: str | None = None
    is_being_deleted: bool = False

    @property
    def is_retention_lowered(self) -> bool:
        """Whether its retention is lowered, possibly by a process that ended before restoring
        it.
        """
        return (self.retention or "").startswith(LOWERED)

    @property
    def path(self) -> str:
        """The topic's path in the admin API."""
        return path_of(self.full_name)


class PartitionedMetadata(msgspec.Struct, frozen=True):
    """As in the admin API. `deleted`: the topic is being deleted."""

    partitions: int
    deleted: bool = False
    properties: dict[str, str] | None = None


def properties_of(topic: Topic, entry_format: str) -> dict[str, str]:
    """Pulsar properties of a topic created by the gateway."""
    return {
        TOPIC_ID: base64.b64encode(topic.topic_id).decode(),
        ENTRY_FORMAT: entry_format,
        **{CONFIG + name: value for name, value in topic.configs.items()},
    }


def pulsar_topic(
    name: str, full_name: str, partitions: int, is_partitioned: bool, properties: Mapping[str, str]
) -> PulsarTopic:
    """The topic with these properties, no matter which program created it."""
    configs = {
        key.removeprefix(CONFIG): value
        for key, value in properties.items()
        if key.startswith(CONFIG)
    }
    topic = Topic(name, _id(properties.get(TOPIC_ID), full_name), partitions, configs)
    return PulsarTopic(
        topic, full_name, is_partitioned, properties.get(ENTRY_FORMAT), properties.get(RETENTION)
    )


def _id(text: str | None, full_name: str) -> bytes:
    """The topic's id; for a topic created by another program, an id derived from its name."""
    try:
        known = base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        known = b""
    return known if len(known) == 16 else uuid.uuid5(uuid.NAMESPACE_URL, full_name).bytes


class TopicListing:
    """Reads topics from the brokers. Methods raise StorageFailed if they do not answer."""

    def __init__(self, names: PulsarNames, admin: PulsarAdmin, at_a_time: int) -> None:
        self._names = names
        self._admin = admin
        self._concurrency = at_a_time
        self._unreadable: set[str] = set()
        self._unlistable: dict[str, str] = {}
        """Namespaces that cannot be listed, with the last logged message of each."""

    async def names(self, known: Mapping[str, PulsarTopic]) -> dict[str, tuple[str, bool]]:
        """Map each topic's canonical name to (full name, whether it is partitioned).

        `NAME-partition-N` is omitted if NAME is a partitioned topic, or was one in `known` (it is
        being deleted). Otherwise it is a separate topic. Raises StorageFailed.
        """
        listed: dict[str, tuple[str, bool]] = {}
        for namespace in self._names.namespaces:
            try:
                listed.update(await self._names_in(namespace, known))
            except NotFound:
                raise StorageFailed(
                    f"there is no namespace {namespace} in Pulsar: create it with "
                    f"`pulsar-admin namespaces create {namespace}`, or let the gateway do so "
                    "(pulsar_setup)"
                ) from None
        return listed

    async def _names_in(
        self, namespace: str, known: Mapping[str, PulsarTopic]
    ) -> dict[str, tuple[str, bool]]:
        canonical = {one.full_name: name for name, one in known.items()}
        # In this order, a topic created meanwhile is seen without its partitions, instead of
        # partitions without their topic.
        single = await self._list(namespace, "")
        partitioned = set(await self._list(namespace, "/partitioned"))
        listed: dict[str, tuple[str, bool]] = {}
        for full_name in [*partitioned, *single]:
            of = partition_of(full_name) if full_name not in partitioned else None
            if of and (
                of[0] in partitioned or is_known_partitioned(known.get(canonical.get(of[0], "")))
            ):
                continue
            name = canonical.get(full_name) or self._names.listed(full_name)
            if name is not None:
                listed.setdefault(name, (full_name, full_name in partitioned))
        return listed

    async def refresh_names(self, known: Mapping[str, PulsarTopic]) -> dict[str, tuple[str, bool]]:
        """As `names`, for later calls: a namespace that cannot be listed does not affect the
        others.

        A deleted namespace has no topics; the known topics of a refused one are kept. Raises
        StorageFailed if no broker answers.
        """
        listed: dict[str, tuple[str, bool]] = {}
        for namespace in self._names.namespaces:
            try:
                listed.update(await self._names_in(namespace, known))
            except NotFound as gone:
                self._log_lost(namespace, "it was deleted with its topics", gone)
            except AdminFailed as failure:
                self._log_lost(namespace, "its known topics are kept", failure)
                there = f"{PREFIX}{namespace}/"
                listed.update(
                    {
                        name: (one.full_name, one.is_partitioned)
                        for name, one in known.items()
                        if one.full_name.startswith(there)
                    }
                )
            else:
                if self._unlistable.pop(namespace, None):
                    log.warning("namespace %s can be listed again", namespace)
        return listed

    def _log_lost(self, namespace: str, consequence: str, failure: AdminFailed) -> None:
        if self._unlistable.get(namespace) != consequence:
            self._unlistable[namespace] = consequence
            log.error("namespace %s cannot be listed: %s (%s)", namespace, consequence, failure)

    async def _list(self, namespace: str, which: str) -> list[str]:
        return await self._admin.get(f"/persistent/{quote(namespace)}{which}", list[str]) or []

    async def fetch(
        self, name: str, full_name: str, is_partitioned: bool = True
    ) -> PulsarTopic | None:
        """The current state of a topic; None if it does not exist.

        `is_partitioned=False` saves a call if that is known.
        """
        try:
            if is_partitioned:
                metadata: PartitionedMetadata = await self._admin.get(
                    f"{path_of(full_name)}/partitions", PartitionedMetadata
                )
                if metadata.deleted:
                    return None
                if metadata.partitions > 0:
                    return pulsar_topic(
                        name, full_name, metadata.partitions, True, metadata.properties or {}
                    )
            return pulsar_topic(name, full_name, 1, False, await self._admin.properties(full_name))
        except NotFound:
            return None

    async def fetch_all(
        self, listed: Mapping[str, tuple[str, bool]]
    ) -> dict[str, PulsarTopic | None]:
        """The current state of each topic. A failed one is omitted, which is logged once."""
        seen: dict[str, PulsarTopic | None] = {}

        async def fetch_one(name: str) -> None:
            try:
                seen[name] = await self.fetch(name, *listed[name])
            except AdminFailed as failure:
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    log.warning(
                        "reading topic %s failed, skipped until a refresh succeeds: %s",
                        name,
                        failure,
                    )
            else:
                self._unreadable.discard(name)

        await for_each(listed, fetch_one, self._concurrency)
        return seen


def is_known_partitioned(one: PulsarTopic | None) -> bool:
    return one is not None and one.is_partitioned


async def for_each(
    items: Iterable[T], call: Callable[[T], Awaitable[None]], at_a_time: int
) -> None:
    """Call `call` for each item, `at_a_time` concurrently; stops at the first failure."""
    queue = deque(items)

    async def work() -> None:
        while queue:
            await call(queue.popleft())

    working = gatherResults(
        [Deferred.fromCoroutine(work()) for _ in range(min(at_a_time, len(queue)))],
        consumeErrors=True,
    )
    try:
        await working
    except FirstError as first:
        queue.clear()
        raise cast(BaseException, first.subFailure.value) from None
