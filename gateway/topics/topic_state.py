"""The state of a topic: its definition, effective config and open partitions."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.configs.topic_configs import TopicConfig
from gateway.coroutines import SharedResult
from gateway.partitions.partition import Partition
from gateway.protocol.errors import KafkaError
from storage.log import Topic
from storage.shards import partition_shard


@dataclass(frozen=True, slots=True)
class Opening:
    """A partition being opened. Requests wait for it until `deadline`, in seconds of the broker's
    clock.
    """

    deadline: float
    result: SharedResult[Partition] = field(default_factory=SharedResult)


@dataclass(slots=True)
class OpenBackoff:
    """Backoff of a partition that failed to open or was fenced soon after it was opened.

    `failures` counts consecutive failures. Until `retry_at` (seconds of the broker's clock)
    requests fail with `error`.
    """

    failures: int
    retry_at: float
    error: KafkaError


@dataclass(slots=True)
class TopicState:
    """A topic and its open partitions.

    `partitions` holds the open partitions; the others are opened on demand. `is_deleting` is set
    while the topic is being deleted, `is_deleted` afterwards. `is_internal`: an internal topic that
    is described but not stored.
    """

    topic: Topic
    config: TopicConfig
    partitions: dict[int, Partition] = field(default_factory=dict)
    opening: dict[int, Opening] = field(default_factory=dict)
    backoffs: dict[int, OpenBackoff] = field(default_factory=dict)
    opened_at: dict[int, float] = field(default_factory=dict)
    altering: SharedResult[None] | None = None
    is_deleting: bool = False
    is_deleted: bool = False
    is_internal: bool = False

    @property
    def name(self) -> str:
        return self.topic.name

    def shard_of(self, index: int, shard_count: int) -> int:
        """The shard whose leader is that of a partition.

        Partition N of an internal topic stands for shard N: what Kafka would store in it is there.
        """
        if self.is_internal:
            return index % shard_count
        return partition_shard(self.topic.topic_id, index, shard_count)
