"""DescribeTransactions, ListTransactions and WriteTxnMarkers.

DescribeTransactions (KIP-664)
v0: the only version.

ListTransactions (KIP-664)
v0: filters by state and producer id.
v1: by duration (KIP-994).
v2: by transactional id pattern (KIP-1152).

WriteTxnMarkers
v0-2: same answer for all.

The gateway does not support transactions, so there are none to report.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin.transactions import DescribeTransactionsResponse, ListTransactionsResponse
from kafka.protocol.producer.transaction import WriteTxnMarkersResponse

from gateway.coroutines import TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation, AclResource

#: Names of Kafka's TransactionState.
STATES = frozenset({
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
})  # fmt: skip

_State = DescribeTransactionsResponse.TransactionState
_Marker = WriteTxnMarkersResponse.WritableTxnMarkerResult
_Topic = _Marker.WritableTxnMarkerTopicResult


@serves(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0)
async def describe_transactions(request: Any, caller: Caller) -> Any:
    """Return TRANSACTIONAL_ID_NOT_FOUND for each id."""
    slices = TimeSlices(caller.broker.clock)
    rows = []
    for transactional_id in request.transactional_ids:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        try:
            caller.require(AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, transactional_id)
        except KafkaError as refusal:
            code = refusal.code
        rows.append(
            _State(
                error_code=code,
                transactional_id=transactional_id,
                transaction_state="",
                transaction_timeout_ms=0,
                transaction_start_time_ms=0,
                producer_id=0,
                producer_epoch=0,
                topics=[],
            )
        )
        await slices.take()
    return await encode_if_large(
        DescribeTransactionsResponse(transaction_states=rows), slices, caller
    )


@serves(ApiKey.LIST_TRANSACTIONS, 0, 2)
async def list_transactions(request: Any, caller: Caller) -> Any:
    """Return an empty list. Unknown state filters are returned in the response."""
    unknown = [state for state in dict.fromkeys(request.state_filters) if state not in STATES]
    return ListTransactionsResponse(
        error_code=ErrorCode.NONE, unknown_state_filters=unknown, transaction_states=[]
    )


@serves(ApiKey.WRITE_TXN_MARKERS, 0, 2)
async def write_txn_markers(request: Any, caller: Caller) -> Any:
    """Return CLUSTER_AUTHORIZATION_FAILED for each partition.

    Only brokers may write markers, and administrators that abort a transaction manually (KIP-664).
    There is none to abort, and no client retries this error.
    """
    slices = TimeSlices(caller.broker.clock)
    markers = []
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            rows = []
            for index in topic.partition_indexes:
                row = _Topic.WritableTxnMarkerPartitionResult
                rows.append(
                    row(partition_index=index, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
                )
                await slices.take()
            topics.append(_Topic(name=topic.name, partitions=rows))
            await slices.take()
        markers.append(_Marker(producer_id=marker.producer_id, topics=topics))
        await slices.take()
    return await encode_if_large(WriteTxnMarkersResponse(markers=markers), slices, caller)
