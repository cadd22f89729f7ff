"""What topics there are in the served namespaces, as the admin API tells it."""

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
"""The retention policy that the gateway has given to the topic: what is missing or says otherwise is given again."""

NATIVE = "pulsar"
"""The entry format of topics that native clients share."""

LOWERED = "lowered"
"""That property while the retention is set aside; behind it are the policies that were set with that."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PulsarTopic:
    """A topic and what Pulsar says of it. One that is not partitioned has one partition, which is the topic itself."""

    topic: Topic
    full_name: str
    is_partitioned: bool
    entry_format: str | None = None
    retention: str | None = None

    @property
    def is_retention_lowered(self) -> bool:
        """Its retention is set aside, or was when somebody stopped in the middle of it."""
        return (self.retention or "").startswith(LOWERED)

    @property
    def path(self) -> str:
        """Where the admin API has it."""
        return path_of(self.full_name)


class PartitionedMetadata(msgspec.Struct, frozen=True):
    """As the admin API has it. `deleted`: the topic is about to go."""

    partitions: int
    deleted: bool = False
    properties: dict[str, str] | None = None


def properties_of(topic: Topic, entry_format: str) -> dict[str, str]:
    """What Pulsar is to know of a topic that the gateway makes."""
    return {
        TOPIC_ID: base64.b64encode(topic.topic_id).decode(),
        ENTRY_FORMAT: entry_format,
        **{CONFIG + name: value for name, value in topic.configs.items()},
    }


def pulsar_topic(
    name: str, full_name: str, partitions: int, is_partitioned: bool, properties: Mapping[str, str]
) -> PulsarTopic:
    """The topic with these properties, whoever made it."""
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
    """The topic's id; for a topic that somebody else made one that is always the same."""
    try:
        known = base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        known = b""
    return known if len(known) == 16 else uuid.uuid5(uuid.NAMESPACE_URL, full_name).bytes


class TopicListing:
    """Asks the brokers. Everything raises StorageFailed where they do not answer."""

    def __init__(self, names: PulsarNames, admin: PulsarAdmin, at_a_time: int) -> None:
        self._names = names
        self._admin = admin
        self._concurrency = at_a_time
        self._unreadable: set[str] = set()
        self._unlistable: dict[str, str] = {}
        """Namespaces that cannot be listed, and what was last said of each."""

    async def names(self, known: Mapping[str, PulsarTopic]) -> dict[str, tuple[str, bool]]:
        """Of each topic its canonical name, its full one, and whether it is partitioned.

        A partition of a topic is none. What is only named like one, its topic being unknown to Pulsar, is a topic of its own, unless it was
        a partition when it was last looked at: then its topic is being deleted.
        """
        listed: dict[str, tuple[str, bool]] = {}
        for namespace in self._names.namespaces:
            try:
                listed.update(await self._names_in(namespace, known))
            except NotFound:
                raise StorageFailed(
                    f"there is no namespace {namespace} in Pulsar: make it with `pulsar-admin namespaces create {namespace}`, or let the gateway do so (pulsar_setup)"
                ) from None
        return listed

    async def _names_in(
        self, namespace: str, known: Mapping[str, PulsarTopic]
    ) -> dict[str, tuple[str, bool]]:
        canonical = {one.full_name: name for name, one in known.items()}
        # In this order: a topic that is made in between is seen without its partitions, not the partitions without their topic.
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
        """As `names`, later on: one namespace that cannot be listed keeps no other from it.

        One that is gone has no topics; of one that is refused those that were known are taken to be there still. Raises StorageFailed where
        nobody answers at all.
        """
        listed: dict[str, tuple[str, bool]] = {}
        for namespace in self._names.namespaces:
            try:
                listed.update(await self._names_in(namespace, known))
            except NotFound as gone:
                self._log_lost(namespace, "it is gone, and its topics with it", gone)
            except AdminFailed as failure:
                self._log_lost(namespace, "its topics are taken to be as they were", failure)
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

    def _log_lost(self, namespace: str, so: str, failure: AdminFailed) -> None:
        if self._unlistable.get(namespace) != so:
            self._unlistable[namespace] = so
            log.error("namespace %s cannot be listed; %s: %s", namespace, so, failure)

    async def _list(self, namespace: str, which: str) -> list[str]:
        return await self._admin.get(f"/persistent/{quote(namespace)}{which}", list[str]) or []

    async def fetch(
        self, name: str, full_name: str, is_partitioned: bool = True
    ) -> PulsarTopic | None:
        """The topic as it is now; None where it is gone. Without partitions (False) saves a call where that is known."""
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
        """Each of these as it is now. One that a broker does not tell of is left out, and that is logged once."""
        seen: dict[str, PulsarTopic | None] = {}

        async def fetch_one(name: str) -> None:
            try:
                seen[name] = await self.fetch(name, *listed[name])
            except AdminFailed as failure:
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    log.warning("topic %s is not looked at for now: %s", name, failure)
            else:
                self._unreadable.discard(name)

        await for_each(listed, fetch_one, self._concurrency)
        return seen


def is_known_partitioned(one: PulsarTopic | None) -> bool:
    return one is not None and one.is_partitioned


async def for_each(
    items: Iterable[T], call: Callable[[T], Awaitable[None]], at_a_time: int
) -> None:
    """`call` for every one of `items`, so many at a time; the first failure ends it."""
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
