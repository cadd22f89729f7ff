"""Every topic of the cluster, by name and by id, and the partitions that this gateway leads, opened when first asked for."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.config import Settings
from gateway.errors import ErrorCode, KafkaError
from gateway.partition import Partition, storage_error
from gateway.producer_snapshots import ProducerSnapshots
from gateway.topic_configs import TopicConfig, effective
from gateway.waiting import Shared, start, unbroken
from storage.log import StorageError, Store, Topic, TopicExists, UnknownTopic

MAX_NAME_LENGTH = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(slots=True)
class LiveTopic:
    """A topic and what is open of it. `partitions` holds those that were asked for; the others open on demand."""

    topic: Topic
    config: TopicConfig
    partitions: dict[int, Partition] = field(default_factory=dict)
    opening: dict[int, Shared[Partition]] = field(default_factory=dict)
    altering: Shared[None] | None = None

    @property
    def name(self) -> str:
        return self.topic.name


class Topics:
    """The registry. `start` runs a coroutine in the background; `now` is the time in ms."""

    def __init__(
        self, store: Store, settings: Settings, now: Callable[[], int], start: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._store = store
        self._settings = settings
        self._start = start
        self._by_name: dict[str, LiveTopic] = {}
        self._by_id: dict[bytes, LiveTopic] = {}
        self._by_unified_name: dict[str, str] = {}
        self._snapshots = ProducerSnapshots(settings.max_producer_ids_per_partition, now, start)
        self._creating: dict[str, Shared[LiveTopic]] = {}
        #: Goes up with every change of any topic, for caches.
        self.version = 0

    async def open(self) -> None:
        """Read what the store has. Raises StorageError."""
        await self._snapshots.open(self._store)
        for topic in self._store.topics.values():
            self._adopt(topic)

    def __iter__(self) -> Iterator[LiveTopic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, topic: str | bytes) -> LiveTopic | None:
        """By name, or by the 16 bytes of its id."""
        return self._by_name.get(topic) if isinstance(topic, str) else self._by_id.get(topic)

    def require(self, topic: str | bytes) -> LiveTopic:
        """As `get`. Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, or UNKNOWN_TOPIC_ID for an id."""
        found = self.get(topic)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(topic, str) else ErrorCode.UNKNOWN_TOPIC_ID)
        return found

    def opened(self, topic: str | bytes, index: int) -> Partition | None:
        """The partition if it is open already: the fast road."""
        live = self.get(topic)
        return None if live is None else live.partitions.get(index)

    async def partition(self, topic: str | bytes, index: int) -> Partition:
        """The partition, opened and its producers' state recovered. Raises KafkaError."""
        live = self.require(topic)
        partition = live.partitions.get(index)
        if partition is not None:
            return partition
        if not 0 <= index < live.topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{live.name} has {live.topic.partitions} partitions, none is {index}")
        opening = live.opening.get(index)
        if opening is None:
            opening = live.opening[index] = Shared()
            self._start(self._open_partition(live, index, opening))
        return await opening

    async def _open_partition(self, live: LiveTopic, index: int, opening: Shared[Partition]) -> None:
        try:
            log = await self._store.log(live.name, index)
            producers, replayed = await self._snapshots.recover(live.topic, index, log)
            if self._by_name.get(live.name) is not live:
                # Deleted meanwhile; the log may even be that of a new topic of the same name.
                raise UnknownTopic(live.name)
            partition = Partition(live.name, index, log, live.config, producers)
            partition.unsaved_bytes = replayed
        except StorageError as failure:
            del live.opening[index]
            opening.fail(storage_error(failure))
            return
        except Exception as failure:
            del live.opening[index]
            opening.fail(failure)
            raise
        self._snapshots.let_go(live.topic.topic_id, index)
        live.partitions[index] = partition
        del live.opening[index]
        opening.succeed(partition)

    def save_if_due(self, partition: Partition) -> None:
        """Save the producers' state of a partition that has grown enough since the last time. In the background, one at a time."""
        if self._snapshots.is_due(partition) and (live := self._holder(partition)):
            self._snapshots.save_soon(live.topic.topic_id, partition)

    async def save(self, partition: Partition) -> None:
        """Save the producers' state now. Raises StorageError."""
        if live := self._holder(partition):
            await self._snapshots.save(live.topic.topic_id, partition)

    def _holder(self, partition: Partition) -> LiveTopic | None:
        """The topic of a partition, unless it was deleted."""
        live = self._by_name.get(partition.topic)
        return live if live is not None and live.partitions.get(partition.index) is partition else None

    async def save_all(self) -> None:
        """Save every producers' state that has changed, before a shutdown. Raises StorageError."""
        await self._snapshots.save_all([(live.topic.topic_id, partition) for live in self for partition in live.partitions.values()])

    def check_new(self, name: str) -> None:
        """Raises KafkaError for a name that no new topic can have: INVALID_TOPIC_EXCEPTION or TOPIC_ALREADY_EXISTS."""
        check_name(name)
        if name in self._by_name or name in self._creating:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        twin = self._by_unified_name.get(_unified(name))
        if twin is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {twin}")

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> LiveTopic:
        """Make a topic; durable when it returns. Raises KafkaError."""
        self.check_new(name)
        creating = self._creating[name] = Shared()
        self._by_unified_name[_unified(name)] = name
        # On its own: a client that goes away while it waits must not leave a topic that is stored and not known.
        start(self._create(Topic(name, uuid.uuid4().bytes, partitions, dict(configs))), creating.succeed, creating.fail)
        return await creating

    async def _create(self, topic: Topic) -> LiveTopic:
        try:
            await self._store.create_topic(topic)
            return self._adopt(topic)
        except TopicExists as failure:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.") from failure
        except StorageError as failure:
            raise storage_error(failure) from failure
        finally:
            del self._creating[topic.name]
            if topic.name not in self._by_name:
                self._by_unified_name.pop(_unified(topic.name), None)

    async def find_or_create(self, name: str) -> LiveTopic:
        """The topic, made with the settings' defaults where it is missing. Raises KafkaError."""
        live = self._by_name.get(name)
        if live is not None:
            return live
        creating = self._creating.get(name)
        if creating is not None:
            return await creating
        return await self.create(name, self._settings.num_partitions, {})

    async def alter(self, live: LiveTopic, change: Callable[[Topic], Topic]) -> None:
        """Replace a topic by what `change` makes of it, one change after the other. Raises KafkaError, and whatever `change` raises."""
        while live.altering is not None:
            await live.altering
        if self._by_name.get(live.name) is not live:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await unbroken(self._alter(live, change(live.topic)))

    async def _alter(self, live: LiveTopic, topic: Topic) -> None:
        altering = live.altering = Shared()
        try:
            await self._store.alter_topic(topic)
            live.topic = topic
            live.config = effective(topic.configs, self._settings)
            for partition in live.partitions.values():
                partition.config = live.config
            self.version += 1
        except UnknownTopic as failure:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from failure
        except StorageError as failure:
            raise storage_error(failure) from failure
        finally:
            live.altering = None
            altering.succeed(None)

    async def delete(self, live: LiveTopic) -> None:
        """Delete a topic and all that is known of it. Raises KafkaError."""
        await unbroken(self._delete(live))

    async def _delete(self, live: LiveTopic) -> None:
        if self._by_name.get(live.name) is not live:
            # What has this name now is another topic, or none.
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            await self._store.delete_topic(live.name)
        except UnknownTopic as failure:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from failure
        except StorageError as failure:
            raise storage_error(failure) from failure
        self._by_name.pop(live.name, None)
        self._by_unified_name.pop(_unified(live.name), None)
        self._by_id.pop(live.topic.topic_id, None)
        self.version += 1
        await self._snapshots.delete(live.topic)

    def _adopt(self, topic: Topic) -> LiveTopic:
        live = LiveTopic(topic, effective(topic.configs, self._settings))
        self._by_name[topic.name] = live
        self._by_id[topic.topic_id] = live
        self._by_unified_name[_unified(topic.name)] = topic.name
        self.version += 1
        return live


def check_name(name: str) -> None:
    """Raises KafkaError(INVALID_TOPIC_EXCEPTION), in Kafka's words, for a name that Kafka would refuse (org.apache.kafka.common.internals.Topic)."""
    if _NAME.match(name) and name not in (".", ".."):
        return
    if not name:
        why = "the empty string is not allowed"
    elif name in (".", ".."):
        why = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        why = f"the length of '{name[:MAX_NAME_LENGTH]}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    else:
        why = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {why}")


def _unified(name: str) -> str:
    """What two names have in common that would collide in the names of metrics, where '.' and '_' are the same (Topic.unifyCollisionChars)."""
    return name.replace(".", "_")
