"""The topic registry: finds topics by name or id; creates, alters and deletes them.

Changes that other gateways or tools make in the same store are picked up through
`Store.watch_topics`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from gateway import logs
from gateway.cluster.forwarding import LOCAL_CONTROLLER, ControllerAccess, NewTopic
from gateway.cluster.shard_leadership import ShardLeadership
from gateway.configs.entries import INTERNAL_PARTITIONS
from gateway.configs.topic_configs import effective_config
from gateway.coroutines import Clock, SharedResult, TimeSlices, shield, start
from gateway.partitions.partition import Partition
from gateway.partitions.producer_snapshots import ProducerSnapshots
from gateway.partitions.refused_batches import RefusedBatches
from gateway.protocol.errors import ErrorCode, KafkaError, storage_error
from gateway.settings.model import Settings
from gateway.topics.opener import PartitionOpener
from gateway.topics.topic_names import (
    INTERNAL_TOPICS,
    RESERVED_TOPICS,
    TopicNames,
    unify_collision_chars,
)
from gateway.topics.topic_state import TopicState
from storage.log import StorageError, Store, Topic, TopicExists, UnknownTopic

_log = logs.get_logger(__name__)


#: Namespace of the UUIDs of internal topics, so that their ids are the same in every gateway and
#: after every restart.
_INTERNAL_IDS = uuid.UUID("6b6f7067-6174-6500-8000-000000000000")


class Topics:
    """The topic registry.

    `start` runs a coroutine in the background, `now` returns the time in milliseconds, and `clock`
    measures timeouts. `controller` creates topics unless it is this gateway.
    """

    def __init__(
        self,
        store: Store,
        leadership: ShardLeadership,
        settings: Settings,
        clock: Clock,
        now: Callable[[], int],
        start: Callable[[Coroutine[Any, Any, None]], None],
        controller: ControllerAccess = LOCAL_CONTROLLER,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._settings = settings
        self._now = now
        self._by_name: dict[str, TopicState] = {}
        self._by_id: dict[bytes, TopicState] = {}
        self._by_alias: dict[str, TopicState] = {}
        self._by_collision_name: dict[str, str] = {}
        self._snapshots = ProducerSnapshots(
            store,
            settings.max_producer_ids_per_partition,
            settings.producer_id_expiration_ms,
            now,
            start,
        )
        self._creating: dict[str, SharedResult[TopicState]] = {}
        self._controller = controller
        self._asked: dict[str, SharedResult[TopicState]] = {}
        self._deleted_by_others: dict[bytes, tuple[Topic, int]] = {}
        self._internal: dict[str, TopicState] = {}
        self.names = TopicNames(store)
        self.refused_batches = RefusedBatches()
        self.opener = PartitionOpener(store, leadership, self._snapshots, settings, clock, start)
        #: Increases with each change of any topic; caches compare it.
        self.version = 0

    async def open(self) -> None:
        """Load the topics from the store. Raises StorageError."""
        for topic in self._store.topics.values():
            self._register(topic)
        self._store.watch_topics(self._sync_with_store)

    async def open_shard(self, shard: int, slices: TimeSlices) -> None:
        """Load the producer snapshots of a shard. Raises StorageError."""
        await self._snapshots.open_shard(shard, self.is_deleted)

    def refuse_openings(self) -> None:
        """Refuse the requests that wait for a partition to open."""
        self.opener.refuse_openings(self)

    async def close_shard(self, shard: int) -> None:
        """Close the partitions of a shard and save their producer states."""
        await self.opener.close_shard(shard, self)
        self._snapshots.close_shard(shard)

    def apply_settings(self, settings: Settings) -> None:
        """Use new settings, for example as defaults of topic configs."""
        self._settings = settings
        self._snapshots.expiration_ms = settings.producer_id_expiration_ms
        # Topics without overrides share one config object.
        default = effective_config({}, settings)
        for state in self._by_name.values():
            state.config = (
                effective_config(state.topic.configs, settings) if state.topic.configs else default
            )
            for partition in state.partitions.values():
                partition.config = state.config
        self.version += 1

    def __iter__(self) -> Iterator[TopicState]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, topic: str | bytes) -> TopicState | None:
        """Return a topic by any of its names or by its 16-byte id, or None."""
        if not isinstance(topic, str):
            return self._by_id.get(topic)
        return self._by_name.get(topic) or self._by_alias.get(topic) or self._resolve_alias(topic)

    def _resolve_alias(self, name: str) -> TopicState | None:
        if "/" not in name:
            # Short names are registry keys.
            return None
        try:
            state = self._by_name.get(self.names.canonical(name))
        except KafkaError:
            return None
        if state is not None:
            # Bounded: a topic has only a few names.
            self._by_alias[name] = state
        return state

    @property
    def internal_partitions(self) -> int:
        """Partitions of an internal topic: one for each shard, so that their leaders are those of
        the shards. A gateway that shares its store with no other has Kafka's default.
        """
        return self._store.shard_count if self._store.is_shared else INTERNAL_PARTITIONS

    def add_internal(self, name: str) -> None:
        """List an internal topic from now on.

        As in Kafka, an internal topic appears on first use, for example when a client looks up a
        coordinator.
        """
        if name not in self._internal and name not in self._by_name:
            topic = Topic(
                name,
                uuid.uuid5(_INTERNAL_IDS, name).bytes,
                self.internal_partitions,
                dict(INTERNAL_TOPICS[name]),
            )
            self._internal[name] = TopicState(
                topic, effective_config(topic.configs, self._settings), is_internal=True
            )
            self.version += 1

    def find_internal(self, topic: str | bytes) -> TopicState | None:
        """Return an internal topic in use, by name or id.

        Internal topics are described but not stored. Returns None if a topic of this name is
        stored.
        """
        if isinstance(topic, str):
            if "/" in topic:
                try:
                    topic = self.names.canonical(topic)
                except KafkaError:
                    return None
            found = self._internal.get(topic)
        else:
            found = next(
                (state for state in self._internal.values() if state.topic.topic_id == topic), None
            )
        return None if found is None or found.name in self._by_name else found

    def has_internal_partition(self, topic: str, index: int) -> bool:
        """Return whether an internal topic has this partition.

        Its offsets are those of an empty log; only reading it fails.
        """
        state = self.find_internal(topic)
        return state is not None and 0 <= index < state.topic.partitions

    def listed(self) -> Iterator[TopicState]:
        """Iterate over all topics that Metadata lists, including the internal ones."""
        yield from self
        yield from (state for name, state in self._internal.items() if name not in self._by_name)

    def find_listed(self, topic: str | bytes) -> TopicState | None:
        """As `get`, including internal topics."""
        return self.get(topic) or self.find_internal(topic)

    def require(self, topic: str | bytes) -> TopicState:
        """As `get`, but raise KafkaError if the topic does not exist.

        The code is UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID for an id, or
        TOPIC_AUTHORIZATION_FAILED for an internal topic.
        """
        found = self.get(topic)
        if found is None:
            internal = self.find_internal(topic)
            if internal is not None:
                # Clients do not retry after this error. After UNKNOWN_TOPIC_OR_PARTITION they would
                # refresh Metadata, find the topic there and retry.
                message = (
                    f"{internal.name} is an internal topic, which the gateway does not store; "
                    "it cannot be read or altered."
                )
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if isinstance(topic, str)
                else ErrorCode.UNKNOWN_TOPIC_ID
            )
        return found

    def get_open_partition(self, topic: str | bytes, index: int) -> Partition | None:
        """Return the partition if it is open and may be served (the common case), else None."""
        # As `get`, without a call for a topic id.
        state = self._by_id.get(topic) if isinstance(topic, bytes) else self.get(topic)
        if state is None or not self._leadership.may_serve():
            return None
        return state.partitions.get(index)

    def open_partitions(self, topic: str | bytes) -> dict[int, Partition] | None:
        """Return the open partitions that may be served and written by clients.

        None for a topic that is reserved or does not exist.
        """
        state = (self._by_name.get(topic) if isinstance(topic, str) else None) or self.get(topic)
        if state is None or state.topic.name in RESERVED_TOPICS or not self._leadership.may_serve():
            return None
        return state.partitions

    def plain_lookup(
        self, topic: str | bytes
    ) -> tuple[dict[Any, TopicState] | None, Callable[[], bool] | None]:
        """How to find a topic again that `open_partitions` has found.

        Returns the table that has it by this name or id, None if it was found by another name, and
        what tells whether topics may be served, None if they always may.
        """
        table: dict[Any, TopicState] = self._by_name if isinstance(topic, str) else self._by_id
        may_serve = None if self._leadership.always_serves else self._leadership.may_serve
        return table if topic in table else None, may_serve

    async def partition(self, topic: str | bytes, index: int) -> Partition:
        """Return the partition, opening it if necessary. Raises KafkaError.

        Its idempotent producers may still be recovering (`PartitionOpener.wait_for_recovery`).
        """
        state = self.require(topic)
        partition = state.partitions.get(index)
        if partition is not None:
            if self._leadership.may_serve():
                return partition
            await self.opener.hold(state, index)
            return await self.partition(topic, index)
        if not 0 <= index < state.topic.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{state.name} has {state.topic.partitions} partitions; "
                f"there is no partition {index}",
            )
        return await self.opener.partition(state, index)

    def prefetch(self, topic: str | bytes, index: int) -> None:
        """Start opening a partition that will be requested, so that many open concurrently."""
        state = self.get(topic)
        if state is not None:
            self.opener.prefetch(state, index)

    def save_if_due(self, partition: Partition) -> None:
        """Save the partition's producer state in the background if the log has grown enough."""
        if self._snapshots.is_due(partition) and (state := self._find_owner(partition)):
            self._snapshots.save_in_background(state.topic.topic_id, partition)

    async def save(self, partition: Partition) -> None:
        """Save the partition's producer state now. Raises StorageError."""
        if state := self._find_owner(partition):
            await self._snapshots.save(state.topic.topic_id, partition)

    def _find_owner(self, partition: Partition) -> TopicState | None:
        """Return the partition's topic, or None if the topic is deleted or the partition fenced."""
        state = self._by_name.get(partition.topic)
        return (
            state
            if state is not None and state.partitions.get(partition.index) is partition
            else None
        )

    async def save_all(self) -> None:
        """Save all changed producer states before shutdown. Raises StorageError."""
        await self._snapshots.save_all(
            [
                (state.topic.topic_id, partition)
                for state in self
                for partition in state.partitions.values()
            ]
        )

    def check_new_name(self, name: str) -> str:
        """Return the canonical form of a new topic's name.

        Raises KafkaError if no topic of this name can be created: INVALID_TOPIC_EXCEPTION,
        TOPIC_ALREADY_EXISTS, or POLICY_VIOLATION at the limit on topics.
        """
        canonical = self.names.canonical(name)
        if (
            canonical in self._by_name
            or canonical in self._creating
            or canonical in INTERNAL_TOPICS
        ):
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        twin = self._by_collision_name.get(unify_collision_chars(canonical))
        if twin is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {twin}",
            )
        if len(self._by_name) + len(self._creating) >= self._settings.max_topics:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Topic '{name}' cannot be created: max_topics={self._settings.max_topics} "
                "topics exist. Delete topics, or raise max_topics.",
            )
        return canonical

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> TopicState:
        """Create a topic; it is durable when this returns. Raises KafkaError.

        At a gateway that is not the controller, a topic that exists already is returned.
        """
        name = self.check_new_name(name)
        if not self._controller.is_local:
            return await self._ask_controller(NewTopic(name, partitions, configs))
        creating = self._creating[name] = SharedResult()
        self._by_collision_name[unify_collision_chars(name)] = name
        # Run in a separate coroutine: if the client disconnects, the topic must still be registered
        # once it is stored.
        start(
            self._create(Topic(name, uuid.uuid4().bytes, partitions, dict(configs))),
            creating.succeed,
            creating.fail,
        )
        return await creating

    async def _create(self, topic: Topic) -> TopicState:
        try:
            await self._store.create_topic(topic)
            return self._register(topic)
        except TopicExists as failure:
            raise KafkaError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists."
            ) from failure
        except StorageError as failure:
            raise storage_error(failure) from failure
        finally:
            del self._creating[topic.name]
            if topic.name not in self._by_name:
                self._by_collision_name.pop(unify_collision_chars(topic.name), None)
                # Another gateway may have created it first.
                self._sync_topic(topic.name)

    async def _ask_controller(self, topic: NewTopic) -> TopicState:
        """Return a topic that the controller creates; concurrent requests for one share a call."""
        asked = self._asked.get(topic.name)
        if asked is None:
            asked = self._asked[topic.name] = SharedResult()
            start(self._create_at_controller(topic), asked.succeed, asked.fail)
        return await asked

    async def _create_at_controller(self, topic: NewTopic) -> TopicState:
        try:
            await self._controller.create_topic(topic)
        except KafkaError:
            if not self._controller.is_local:
                raise
            # This gateway has become the controller while it waited for one.
            return await self.find_or_create(topic.name, topic.partitions, topic.configs)
        finally:
            del self._asked[topic.name]
        state = self.get(topic.name)
        if state is None:
            # Created, but not visible here yet. Clients retry.
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        return state

    async def find_or_create(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> TopicState:
        """Return the topic, created with default settings if missing. Raises KafkaError."""
        state = self.get(name)
        if state is not None:
            return state
        creating = self._creating.get(self.names.canonical(name))
        if creating is not None:
            return await creating
        return await self.create(name, partitions or self._settings.num_partitions, configs or {})

    async def alter(self, state: TopicState, change: Callable[[Topic], Topic]) -> None:
        """Replace a topic with the result of `change`; changes are serialized.

        Raises KafkaError and what `change` raises.
        """
        while state.altering is not None:
            await state.altering
        if state.is_deleted:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await shield(self._alter(state, change(state.topic)))

    async def _alter(self, state: TopicState, topic: Topic) -> None:
        altering = state.altering = SharedResult()
        try:
            await self._store.alter_topic(topic)
            self._apply_definition(state, topic)
        except UnknownTopic as failure:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from failure
        except StorageError as failure:
            raise storage_error(failure) from failure
        finally:
            state.altering = None
            # Apply external changes that were deferred during this one.
            self._sync_topic(state.name)
            altering.succeed(None)

    def _apply_definition(self, state: TopicState, topic: Topic) -> None:
        state.topic = topic
        state.config = effective_config(topic.configs, self._settings)
        for partition in state.partitions.values():
            partition.config = state.config
        self.version += 1

    async def delete(self, state: TopicState) -> None:
        """Delete a topic and its state. Raises KafkaError."""
        await shield(self._delete(state))

    async def _delete(self, state: TopicState) -> None:
        if state.is_deleted:
            # The name now belongs to another topic or to none.
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        state.is_deleting = True
        try:
            await self._store.delete_topic(state.name)
        except UnknownTopic as failure:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from failure
        except StorageError as failure:
            raise storage_error(failure) from failure
        finally:
            state.is_deleting = False
        self._unregister(state)
        self._deleted_by_others.pop(state.topic.topic_id, None)
        await self._snapshots.delete(state.topic)

    def _register(self, topic: Topic) -> TopicState:
        state = TopicState(topic, effective_config(topic.configs, self._settings))
        self._by_name[topic.name] = state
        self._by_id[topic.topic_id] = state
        self._by_collision_name[unify_collision_chars(topic.name)] = topic.name
        self._deleted_by_others.pop(topic.topic_id, None)
        self.version += 1
        return state

    def _unregister(self, state: TopicState) -> None:
        if state.is_deleted:
            return
        state.is_deleted = True
        del self._by_name[state.name]
        del self._by_id[state.topic.topic_id]
        self._by_collision_name.pop(unify_collision_chars(state.name), None)
        self._by_alias.clear()
        self.version += 1

    # Changes made by other gateways or tools

    def _sync_with_store(self) -> None:
        """Apply topics that were created, altered or deleted by others."""
        for name in [
            *self._by_name,
            *(name for name in self._store.topics if name not in self._by_name),
        ]:
            self._sync_topic(name)

    def _sync_topic(self, name: str) -> None:
        topic, state = self._store.topics.get(name), self._by_name.get(name)
        if name in self._creating or (state is not None and state.altering is not None):
            # A local change is in progress; it calls this again when it ends.
            return
        if state is not None and (
            topic is None
            or topic.topic_id != state.topic.topic_id
            or topic.partitions < state.topic.partitions
        ):
            _log.info("topic deleted, recreated or shrunk externally", topic=name)
            for partition in state.partitions.values():
                # Keep the state: the list of topics can be wrong for a moment, and the topic may
                # reappear.
                self._snapshots.keep_row(state.topic.topic_id, partition)
            self._unregister(state)
            self._deleted_by_others[state.topic.topic_id] = state.topic, self._now()
            state = None
        if topic is not None and state is None:
            self._register(topic)
        elif topic is not None and state is not None and topic != state.topic:
            self._apply_definition(state, topic)

    def may_reappear(self, topic_id: bytes) -> bool:
        """Return whether the topic was deleted externally and its state is still kept."""
        return topic_id in self._deleted_by_others

    def is_deleted(self, topic_id: bytes) -> bool:
        """Return whether a gateway deleted the topic, so that it cannot return."""
        return self._store.is_deleted(topic_id)

    async def forget(self, topic: Topic) -> None:
        """Forget a topic that another gateway has deleted for good."""
        self._deleted_by_others.pop(topic.topic_id, None)
        await self._snapshots.delete(topic)

    async def forget_deleted(self, before: int) -> list[Topic]:
        """Forget topics that were deleted externally before `before` (ms); return them, each once.

        The caller cleans up what they left behind. This is delayed, so that committed offsets
        survive a list of topics that was wrong for a moment.
        """
        forgotten = []
        for topic_id, gone in list(self._deleted_by_others.items()):
            topic, since = gone
            # `_snapshots.delete` below yields; the topic may have reappeared meanwhile.
            if since <= before and self._deleted_by_others.get(topic_id) == gone:
                del self._deleted_by_others[topic_id]
                await self._snapshots.delete(topic)
                forgotten.append(topic)
        return forgotten
