"""What the description of a cluster relies on."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

from gateway.cli.cluster.cluster_description import (
    OFFSETS_TOPIC,
    OFFSETS_TOPIC_ID,
    describe_metadata_log,
)
from gateway.topics.topic_names import CONSUMER_OFFSETS
from tests.fakes.broker import open_environment


def test_offsets_topic_has_this_id_in_every_gateway():
    topics = open_environment().broker.topics
    topics.add_internal(CONSUMER_OFFSETS)
    assert CONSUMER_OFFSETS == OFFSETS_TOPIC
    assert topics.find_internal(CONSUMER_OFFSETS).topic.topic_id == OFFSETS_TOPIC_ID.bytes
    assert uuid.UUID(bytes=OFFSETS_TOPIC_ID.bytes).version == 5  # Kafka's are random: version 4


def test_replica_ahead_of_the_known_end_has_no_negative_lag():
    """The end of a log whose leader is no replica is its high watermark, which may be older."""
    replica = SimpleNamespace(replica_id=1, log_end_offset=12, last_caught_up_timestamp=5)
    row = SimpleNamespace(
        error_code=0,
        leader_id=-1,
        leader_epoch=0,
        high_watermark=10,
        current_voters=[replica],
        observers=[],
    )
    answer = SimpleNamespace(error_code=0, topics=[SimpleNamespace(partitions=[row])])
    log = describe_metadata_log(SimpleNamespace(send=lambda request: answer))
    assert [(one.end, one.lag, one.caught_up_ms_ago) for one in log.replicas] == [(12, 0, None)]
