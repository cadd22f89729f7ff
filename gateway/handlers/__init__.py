"""One module per family of requests. Importing this package routes them all."""

from gateway.handlers import (
    alter_configs,
    cluster,
    committed,
    configs,
    coordinators,
    fetch,
    greeting,
    metadata,
    offsets,
    old,
    produce,
    records,
    topic_partitions,
    topics,
)

__all__ = [
    "alter_configs",
    "cluster",
    "committed",
    "configs",
    "coordinators",
    "fetch",
    "greeting",
    "metadata",
    "offsets",
    "old",
    "produce",
    "records",
    "topic_partitions",
    "topics",
]
