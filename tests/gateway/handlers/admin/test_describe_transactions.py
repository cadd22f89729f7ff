from __future__ import annotations

import pytest
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from tests.fakes.broker import open_environment
from tests.gateway.handlers.handler_calls import call

NOT_FOUND, CLUSTER_AUTHORIZATION_FAILED = 105, 31


def test_transactional_ids_are_not_found() -> None:
    rows = call(
        open_environment(), DescribeTransactionsRequest(transactional_ids=["a", "b"]), 0
    ).transaction_states
    assert [(row.transactional_id, row.error_code) for row in rows] == [
        ("a", NOT_FOUND),
        ("b", NOT_FOUND),
    ]


@pytest.mark.parametrize("version", range(3))
def test_no_transactions_are_listed(version: int) -> None:
    request = ListTransactionsRequest(state_filters=["Ongoing", "Nonsense"], producer_id_filters=[])
    reply = call(open_environment(), request, version)
    assert (
        reply.error_code,
        list(reply.unknown_state_filters),
        list(reply.transaction_states),
    ) == (0, ["Nonsense"], [])


@pytest.mark.parametrize("version", range(3))
def test_txn_markers_are_rejected(version: int) -> None:
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topics = [marker.WritableTxnMarkerTopic(name="orders", partition_indexes=[0, 1])]
    asked = marker(
        producer_id=7,
        producer_epoch=0,
        transaction_result=False,
        topics=topics,
        coordinator_epoch=0,
    )
    (row,) = call(open_environment(), WriteTxnMarkersRequest(markers=[asked]), version).markers
    errors = [(one.partition_index, one.error_code) for one in row.topics[0].partitions]
    assert (row.producer_id, errors) == (
        7,
        [(0, CLUSTER_AUTHORIZATION_FAILED), (1, CLUSTER_AUTHORIZATION_FAILED)],
    )
