"""A topic as the gateway knows it, with what is open of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.configs.topic_configs import TopicConfig
from gateway.coroutines import SharedResult
from gateway.partitions.partition import Partition
from gateway.protocol.errors import KafkaError
from storage.log import Topic


@dataclass(frozen=True, slots=True)
class Opening:
    """A partition that is being opened. Nobody waits for it longer than `deadline`, in seconds of the broker's clock."""

    deadline: float
    result: SharedResult[Partition] = field(default_factory=SharedResult)


@dataclass(slots=True)
class OpenBackoff:
    """How often in a row a partition could not be opened or was soon lost again, and until when (in seconds) nobody tries; those who ask get `reason`."""

    failures: int
    retry_at: float
    error: KafkaError


@dataclass(slots=True)
class TopicState:
    """`partitions` holds those that were asked for; the others open on demand. `epochs` are the last leader epochs of those that ever were open.

    `is_deleting` while it is being deleted, `is_deleted` when it was.
    """

    topic: Topic
    config: TopicConfig
    partitions: dict[int, Partition] = field(default_factory=dict)
    opening: dict[int, Opening] = field(default_factory=dict)
    backoffs: dict[int, OpenBackoff] = field(default_factory=dict)
    opened_at: dict[int, float] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    altering: SharedResult[None] | None = None
    is_deleting: bool = False
    is_deleted: bool = False

    @property
    def name(self) -> str:
        return self.topic.name
