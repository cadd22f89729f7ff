"""One module per Kafka API or family of APIs. Importing this package registers all routes.

May import `gateway.protocol` and the folders with topics, partitions, groups, fetches and configs,
but not `gateway.net`.
"""

from gateway.handlers import (
    api_versions,
    describe_topic_partitions,
    fetch,
    list_offsets,
    metadata,
    produce,
    sasl,
)
from gateway.handlers.admin import (
    alter_configs,
    create_topics,
    delete_records,
    describe_cluster,
    describe_configs,
    describe_quorum,
    describe_transactions,
    partition_reassignments,
    security,
)
from gateway.handlers.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_groups,
    find_coordinator,
    join_group,
    offset_commit,
)
from gateway.handlers.old import (
    old_group_versions,
    old_versions,
)

__all__ = [
    "alter_configs",
    "api_versions",
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "create_topics",
    "delete_records",
    "describe_cluster",
    "describe_configs",
    "describe_groups",
    "describe_quorum",
    "describe_topic_partitions",
    "describe_transactions",
    "fetch",
    "find_coordinator",
    "join_group",
    "list_offsets",
    "metadata",
    "offset_commit",
    "old_group_versions",
    "old_versions",
    "partition_reassignments",
    "produce",
    "sasl",
    "security",
]
