"""Every topic of the cluster, by name and by id, and the partitions that this gateway leads, opened when first asked for."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway import logs
from gateway.config import Settings
from gateway.errors import ErrorCode, KafkaError
from gateway.partition import Partition, storage_error
from gateway.producers import Producers
from gateway.records import HEADER_BYTES, magic_of, read_batch
from gateway.topic_configs import TopicConfig, effective
from gateway.waiting import Shared, start, unbroken
from storage.log import PartitionLog, StateTable, StorageError, Store, Topic, TopicExists, UnknownTopic

_log = logs.part(__name__)

#: The producers' state of a partition is saved after so many bytes: what a restart may have to read again, some 50 ms a partition.
SNAPSHOT_BYTES = 64 << 20
_REPLAY_BYTES = 4 << 20

#: Snapshots written together at the end: so few writes that a shutdown is quick, so few bytes that they do not matter.
_SAVE_BYTES = 16 << 20

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
        self._now = now
        self._start = start
        self._by_name: dict[str, LiveTopic] = {}
        self._by_id: dict[bytes, LiveTopic] = {}
        self._by_unified_name: dict[str, str] = {}
        self._snapshots: dict[bytes, bytes] = {}
        self._table: StateTable | None = None
        self._saving: set[Partition] = set()
        self._creating: dict[str, Shared[LiveTopic]] = {}
        #: Goes up with every change of any topic, for caches.
        self.version = 0

    async def open(self) -> None:
        """Read what the store has. Raises StorageError."""
        self._table = await self._store.table("producers")
        self._snapshots = dict(await self._table.items())
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
            producers, replayed = await self._recover(live.topic, index, log)
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
        self._snapshots.pop(_snapshot_key(live.topic.topic_id, index), None)
        live.partitions[index] = partition
        del live.opening[index]
        opening.succeed(partition)

    async def _recover(self, topic: Topic, index: int, log: PartitionLog) -> tuple[Producers, int]:
        """The producers' state: the last snapshot, and after it what the log says. And how many bytes of the log had to be read."""
        producers = Producers(self._settings.max_producer_ids_per_partition)
        offset, replayed = log.start_offset, 0
        row = self._snapshots.get(_snapshot_key(topic.topic_id, index))
        if row is not None:
            try:
                offset = max(offset, producers.load(row))
            except msgspec.MsgspecError:
                _log.warning("producer snapshot unreadable, reading the log", topic=topic.name, partition=index)
        now = self._now()
        while offset < log.end_offset:
            entries = await log.read(offset, _REPLAY_BYTES)
            if not entries:
                # Compaction has left nothing up to the end.
                break
            for entry in entries:
                if magic_of(entry.payload) == 2 and len(entry.payload) >= HEADER_BYTES:
                    producers.replay(read_batch(entry.payload), now)
                offset = entry.last_offset + 1
                replayed += len(entry.payload)
        return producers, replayed

    def save_if_due(self, partition: Partition) -> None:
        """Save the producers' state of a partition that has grown enough since the last time. In the background, one at a time."""
        if partition.unsaved_bytes < SNAPSHOT_BYTES or partition in self._saving:
            return
        self._saving.add(partition)
        self._start(self._save(partition))

    async def _save(self, partition: Partition) -> None:
        try:
            await self.save(partition)
        except StorageError as failure:
            # Only the next start pays for it, with a longer replay.
            _log.warning("producer snapshot not written", topic=partition.topic, partition=partition.index, reason=str(failure))
        finally:
            self._saving.discard(partition)

    async def save(self, partition: Partition) -> None:
        """Save the producers' state now. Raises StorageError."""
        live = self._by_name.get(partition.topic)
        if live is not None and live.partitions.get(partition.index) is partition:
            await self._put({_snapshot_key(live.topic.topic_id, partition.index): _snapshot(partition)})

    async def save_all(self) -> None:
        """Save every producers' state that has changed, before a shutdown. Raises StorageError."""
        rows: dict[bytes, bytes | None] = {}
        size = 0
        for live in list(self):
            for index, partition in list(live.partitions.items()):
                if not partition.unsaved_bytes:
                    continue
                row = rows[_snapshot_key(live.topic.topic_id, index)] = _snapshot(partition)
                size += len(row)
                if size >= _SAVE_BYTES:
                    await self._put(rows)
                    rows, size = {}, 0
        await self._put(rows)

    async def _put(self, rows: Mapping[bytes, bytes | None]) -> None:
        if rows and self._table is not None:
            await self._table.put(rows)

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
        keys = [_snapshot_key(live.topic.topic_id, index) for index in range(live.topic.partitions)]
        for key in keys:
            self._snapshots.pop(key, None)
        if self._table is not None:
            try:
                await self._table.put(dict.fromkeys(keys))
            except StorageError as failure:
                # The rows are small and their topic id never comes again: they only take room.
                _log.warning("producer snapshots not deleted", topic=live.name, reason=str(failure))

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


def _snapshot_key(topic_id: bytes, index: int) -> bytes:
    return topic_id + index.to_bytes(4, "big")


def _snapshot(partition: Partition) -> bytes:
    partition.unsaved_bytes = 0
    return partition.producers.snapshot(partition.log.end_offset)
