"""Topics for group tests, without a store."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gateway.protocol.errors import ErrorCode, KafkaError


def id_of(name: str, life: int = 0) -> bytes:
    """The id of a topic. A recreated topic has another `life`."""
    return f"{name}{life}".encode().ljust(16, b"-")


@dataclass
class FakeTopology:
    """`topics` maps names to (life, partitions)."""

    topics: dict[str, tuple[int, int]] = field(default_factory=dict)
    version: int = 0
    matched: int = 0
    lives: dict[str, int] = field(default_factory=dict)

    def make(self, name: str, partitions: int) -> None:
        self.topics[name] = (self.lives.setdefault(name, 0), partitions)
        self.version += 1

    def delete(self, name: str) -> None:
        del self.topics[name]
        self.lives[name] += 1
        self.version += 1

    def id_of(self, name: str) -> bytes | None:
        return id_of(name, self.topics[name][0]) if name in self.topics else None

    def name_of(self, topic: bytes) -> str | None:
        return next((name for name in self.topics if self.id_of(name) == topic), None)

    def partitions(self, topic: bytes) -> int:
        name = self.name_of(topic)
        return 0 if name is None else self.topics[name][1]

    def of_group(self, group_id: str) -> FakeTopology:
        return self

    def from_client(self, name: str) -> str:
        return name

    def to_client(self, name: str) -> str:
        return name

    def matching(self, regex: str) -> frozenset[str]:
        self.matched += 1
        try:
            return frozenset(name for name in self.topics if re.fullmatch(regex, name))
        except re.error as failure:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION) from failure
