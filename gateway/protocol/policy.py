"""What each API requires: operations on resources, as in Kafka's KafkaApis and ControllerApis.

The handlers ask for these and no others, through `Caller`. Several entries are alternatives or
belong to different parts of a request; the docstring of the handler says which. Where Kafka 3.9 and
4.3 differ, the newer one applies.
"""

from __future__ import annotations

from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation as Op
from gateway.security.acls import AclResource as On

#: By API: what its handlers may ask the authorizer.
POLICY: dict[ApiKey, frozenset[tuple[Op, On]]] = {
    api_key: frozenset(checks)
    for api_key, checks in {
        ApiKey.PRODUCE: [(Op.WRITE, On.TOPIC), (Op.WRITE, On.TRANSACTIONAL_ID)],
        ApiKey.FETCH: [(Op.READ, On.TOPIC)],
        ApiKey.LIST_OFFSETS: [(Op.DESCRIBE, On.TOPIC)],
        ApiKey.OFFSET_FOR_LEADER_EPOCH: [(Op.DESCRIBE, On.TOPIC), (Op.CLUSTER_ACTION, On.CLUSTER)],
        # CREATE is required for topics that the request creates.
        ApiKey.METADATA: [(Op.DESCRIBE, On.TOPIC), (Op.CREATE, On.CLUSTER), (Op.CREATE, On.TOPIC)],
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: [(Op.DESCRIBE, On.TOPIC)],
        ApiKey.INIT_PRODUCER_ID: [(Op.IDEMPOTENT_WRITE, On.CLUSTER), (Op.WRITE, On.TOPIC)],
        # Groups.
        ApiKey.FIND_COORDINATOR: [(Op.DESCRIBE, On.GROUP), (Op.DESCRIBE, On.TRANSACTIONAL_ID)],
        ApiKey.JOIN_GROUP: [(Op.READ, On.GROUP)],
        ApiKey.SYNC_GROUP: [(Op.READ, On.GROUP)],
        ApiKey.HEARTBEAT: [(Op.READ, On.GROUP)],
        ApiKey.LEAVE_GROUP: [(Op.READ, On.GROUP)],
        ApiKey.CONSUMER_GROUP_HEARTBEAT: [(Op.READ, On.GROUP), (Op.DESCRIBE, On.TOPIC)],
        ApiKey.OFFSET_COMMIT: [(Op.READ, On.GROUP), (Op.READ, On.TOPIC)],
        ApiKey.OFFSET_FETCH: [(Op.DESCRIBE, On.GROUP), (Op.DESCRIBE, On.TOPIC)],
        ApiKey.OFFSET_DELETE: [(Op.DELETE, On.GROUP), (Op.READ, On.TOPIC)],
        ApiKey.LIST_GROUPS: [(Op.DESCRIBE, On.CLUSTER), (Op.DESCRIBE, On.GROUP)],
        ApiKey.DESCRIBE_GROUPS: [(Op.DESCRIBE, On.GROUP)],
        ApiKey.CONSUMER_GROUP_DESCRIBE: [(Op.DESCRIBE, On.GROUP), (Op.DESCRIBE, On.TOPIC)],
        ApiKey.DELETE_GROUPS: [(Op.DELETE, On.GROUP)],
        # Topics and configs.
        ApiKey.CREATE_TOPICS: [
            (Op.CREATE, On.CLUSTER), (Op.CREATE, On.TOPIC), (Op.DESCRIBE_CONFIGS, On.TOPIC),
        ],
        ApiKey.DELETE_TOPICS: [
            (Op.DELETE, On.CLUSTER), (Op.DELETE, On.TOPIC), (Op.DESCRIBE, On.TOPIC),
        ],
        ApiKey.CREATE_PARTITIONS: [(Op.ALTER, On.TOPIC)],
        ApiKey.DELETE_RECORDS: [(Op.DELETE, On.TOPIC)],
        ApiKey.DESCRIBE_PRODUCERS: [(Op.READ, On.TOPIC)],
        ApiKey.DESCRIBE_CONFIGS: [
            (Op.DESCRIBE_CONFIGS, On.TOPIC), (Op.DESCRIBE_CONFIGS, On.GROUP),
            (Op.DESCRIBE_CONFIGS, On.CLUSTER),
        ],
        ApiKey.ALTER_CONFIGS: [
            (Op.ALTER_CONFIGS, On.TOPIC), (Op.ALTER_CONFIGS, On.GROUP),
            (Op.ALTER_CONFIGS, On.CLUSTER),
        ],
        ApiKey.INCREMENTAL_ALTER_CONFIGS: [
            (Op.ALTER_CONFIGS, On.TOPIC), (Op.ALTER_CONFIGS, On.GROUP),
            (Op.ALTER_CONFIGS, On.CLUSTER),
        ],
        ApiKey.LIST_CONFIG_RESOURCES: [(Op.DESCRIBE_CONFIGS, On.CLUSTER)],
        # The cluster.
        ApiKey.DESCRIBE_CLUSTER: [],
        ApiKey.DESCRIBE_LOG_DIRS: [(Op.DESCRIBE, On.CLUSTER)],
        ApiKey.ALTER_REPLICA_LOG_DIRS: [(Op.ALTER, On.CLUSTER)],
        ApiKey.ELECT_LEADERS: [(Op.ALTER, On.CLUSTER)],
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: [(Op.ALTER, On.CLUSTER)],
        ApiKey.LIST_PARTITION_REASSIGNMENTS: [(Op.DESCRIBE, On.CLUSTER)],
        ApiKey.DESCRIBE_QUORUM: [(Op.DESCRIBE, On.CLUSTER)],
        ApiKey.UPDATE_FEATURES: [(Op.ALTER, On.CLUSTER)],
        ApiKey.UNREGISTER_BROKER: [(Op.ALTER, On.CLUSTER)],
        ApiKey.ADD_RAFT_VOTER: [(Op.ALTER, On.CLUSTER)],
        ApiKey.REMOVE_RAFT_VOTER: [(Op.ALTER, On.CLUSTER)],
        # Transactions are not supported: markers are always refused, and there is none to list.
        ApiKey.DESCRIBE_TRANSACTIONS: [(Op.DESCRIBE, On.TRANSACTIONAL_ID)],
        ApiKey.LIST_TRANSACTIONS: [],
        ApiKey.WRITE_TXN_MARKERS: [],
        # Security.
        ApiKey.DESCRIBE_ACLS: [(Op.DESCRIBE, On.CLUSTER)],
        ApiKey.CREATE_ACLS: [(Op.ALTER, On.CLUSTER)],
        ApiKey.DELETE_ACLS: [(Op.ALTER, On.CLUSTER)],
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: [(Op.DESCRIBE, On.CLUSTER)],
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: [(Op.ALTER, On.CLUSTER)],
        ApiKey.DESCRIBE_CLIENT_QUOTAS: [(Op.DESCRIBE_CONFIGS, On.CLUSTER)],
        ApiKey.ALTER_CLIENT_QUOTAS: [(Op.ALTER_CONFIGS, On.CLUSTER)],
        # Delegation tokens are always refused.
        ApiKey.CREATE_DELEGATION_TOKEN: [],
        ApiKey.RENEW_DELEGATION_TOKEN: [],
        ApiKey.EXPIRE_DELEGATION_TOKEN: [],
        ApiKey.DESCRIBE_DELEGATION_TOKEN: [],
        # Open to every connection.
        ApiKey.API_VERSIONS: [],
        ApiKey.SASL_HANDSHAKE: [],
        ApiKey.SASL_AUTHENTICATE: [],
    }.items()
}  # fmt: skip
