"""The codec of all messages that have no hand-written one: kafka-python's, with some schemas added.

Its classes are generated from Kafka's message definitions. They decode and encode versions from 0
although they advertise the minimum versions of Kafka 4.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any

from kafka.protocol.admin import (
    acl,
    client_quotas,
    cluster,
    configs,
    groups,
    topics,
    transactions,
    users,
)
from kafka.protocol.consumer import fetch, group, offsets
from kafka.protocol.metadata import api_versions, find_coordinator, metadata
from kafka.protocol.producer import produce, transaction
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from gateway.protocol.errors import Refused
from gateway.protocol.wire import admin_messages, group_messages
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.schema_check import SchemaCheck

#: The request class by API key. Handlers import reply classes from the same modules.
REQUESTS: dict[ApiKey, Any] = {
    ApiKey.PRODUCE: produce.ProduceRequest,
    ApiKey.FETCH: fetch.FetchRequest,
    ApiKey.LIST_OFFSETS: offsets.ListOffsetsRequest,
    ApiKey.METADATA: metadata.MetadataRequest,
    ApiKey.OFFSET_COMMIT: group.OffsetCommitRequest,
    ApiKey.OFFSET_FETCH: group.OffsetFetchRequest,
    ApiKey.FIND_COORDINATOR: find_coordinator.FindCoordinatorRequest,
    ApiKey.JOIN_GROUP: group.JoinGroupRequest,
    ApiKey.HEARTBEAT: group.HeartbeatRequest,
    ApiKey.LEAVE_GROUP: group.LeaveGroupRequest,
    ApiKey.SYNC_GROUP: group.SyncGroupRequest,
    ApiKey.DESCRIBE_GROUPS: groups.DescribeGroupsRequest,
    ApiKey.LIST_GROUPS: groups.ListGroupsRequest,
    ApiKey.SASL_HANDSHAKE: SaslHandshakeRequest,
    ApiKey.API_VERSIONS: api_versions.ApiVersionsRequest,
    ApiKey.CREATE_TOPICS: topics.CreateTopicsRequest,
    ApiKey.DELETE_TOPICS: topics.DeleteTopicsRequest,
    ApiKey.DELETE_RECORDS: topics.DeleteRecordsRequest,
    ApiKey.INIT_PRODUCER_ID: transaction.InitProducerIdRequest,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.OffsetForLeaderEpochRequest,
    ApiKey.WRITE_TXN_MARKERS: transaction.WriteTxnMarkersRequest,
    ApiKey.DESCRIBE_ACLS: acl.DescribeAclsRequest,
    ApiKey.CREATE_ACLS: acl.CreateAclsRequest,
    ApiKey.DELETE_ACLS: acl.DeleteAclsRequest,
    ApiKey.DESCRIBE_CONFIGS: configs.DescribeConfigsRequest,
    ApiKey.ALTER_CONFIGS: configs.AlterConfigsRequest,
    ApiKey.ALTER_REPLICA_LOG_DIRS: cluster.AlterReplicaLogDirsRequest,
    ApiKey.DESCRIBE_LOG_DIRS: cluster.DescribeLogDirsRequest,
    ApiKey.SASL_AUTHENTICATE: SaslAuthenticateRequest,
    ApiKey.CREATE_PARTITIONS: topics.CreatePartitionsRequest,
    ApiKey.CREATE_DELEGATION_TOKEN: admin_messages.CreateDelegationTokenRequest,
    ApiKey.RENEW_DELEGATION_TOKEN: admin_messages.RenewDelegationTokenRequest,
    ApiKey.EXPIRE_DELEGATION_TOKEN: admin_messages.ExpireDelegationTokenRequest,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: admin_messages.DescribeDelegationTokenRequest,
    ApiKey.DELETE_GROUPS: groups.DeleteGroupsRequest,
    ApiKey.ELECT_LEADERS: topics.ElectLeadersRequest,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.IncrementalAlterConfigsRequest,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: topics.AlterPartitionReassignmentsRequest,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: topics.ListPartitionReassignmentsRequest,
    ApiKey.OFFSET_DELETE: group.OffsetDeleteRequest,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: client_quotas.DescribeClientQuotasRequest,
    ApiKey.ALTER_CLIENT_QUOTAS: client_quotas.AlterClientQuotasRequest,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: users.DescribeUserScramCredentialsRequest,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: users.AlterUserScramCredentialsRequest,
    ApiKey.DESCRIBE_QUORUM: cluster.DescribeQuorumRequest,
    ApiKey.UPDATE_FEATURES: cluster.UpdateFeaturesRequest,
    ApiKey.DESCRIBE_CLUSTER: cluster.DescribeClusterRequest,
    ApiKey.DESCRIBE_PRODUCERS: transactions.DescribeProducersRequest,
    ApiKey.UNREGISTER_BROKER: admin_messages.UnregisterBrokerRequest,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.DescribeTransactionsRequest,
    ApiKey.LIST_TRANSACTIONS: transactions.ListTransactionsRequest,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: group_messages.ConsumerGroupHeartbeatRequest,
    ApiKey.CONSUMER_GROUP_DESCRIBE: group_messages.ConsumerGroupDescribeRequest,
    ApiKey.LIST_CONFIG_RESOURCES: configs.ListConfigResourcesRequest,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topics.DescribeTopicPartitionsRequest,
    ApiKey.ADD_RAFT_VOTER: admin_messages.AddRaftVoterRequest,
    ApiKey.REMOVE_RAFT_VOTER: admin_messages.RemoveRaftVoterRequest,
}

_NEVER = 1 << 15

#: By API key, the first version whose request and response headers and bodies are flexible
#: (KIP-482).
FIRST_FLEXIBLE_VERSION: dict[int, int] = {
    int(key): first if (first := request._flexible_versions[0]) >= 0 else _NEVER
    for key, request in REQUESTS.items()
}


def decode(request: Any, frame: bytearray, position: int, version: int) -> Any:
    """Decode the body that begins at `position` into an instance of the codec's class `request`.

    Raises Refused if it is malformed.
    """
    try:
        schema_check = _SCHEMA_CHECKS.get((request, version)) or _schema_check_of(request, version)
        schema_check.check(frame, position)
        return request.decode(memoryview(frame)[position:], version=version)
    except (struct.error, ValueError, IndexError, TypeError, OverflowError) as unreadable:
        raise Refused(f"malformed request body: {unreadable}") from None


def _schema_check_of(request: Any, version: int) -> SchemaCheck:
    schema_check = _SCHEMA_CHECKS[request, version] = SchemaCheck(request, version)
    return schema_check


_SCHEMA_CHECKS: dict[tuple[Any, int], SchemaCheck] = {}


def encode(response: Any, version: int) -> bytes:
    """Return the body of the reply, without header."""
    return bytes(response.encode(version=version))


_NO_ID = bytes(16)


def topic_id_of(value: uuid.UUID | None) -> bytes:
    """The topic id as 16 bytes. The codec uses None for all zeros."""
    return _NO_ID if value is None else value.bytes


def uuid_of(topic_id: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=topic_id)
