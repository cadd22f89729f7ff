"""Names the present leader in replies of a gateway that does not lead a partition (KIP-951).

The client then sends its next request to that gateway, without asking for metadata before. As in
Kafka (`KafkaApis.getCurrentLeader`), except that a gateway that will lead the partition itself when
its shard is open names no leader: the client retries here.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.leader_fields import CurrentLeader, NodeEndpoint

#: First versions whose replies have the addresses of the leaders.
_FIRST_VERSION = {ApiKey.PRODUCE: 10, ApiKey.FETCH: 16}


def names_leaders(api_key: ApiKey, version: int) -> bool:
    """Whether replies of this version have the present leaders and their addresses."""
    return version >= _FIRST_VERSION[api_key]


def current_leader(
    api_key: ApiKey, topic: str | bytes, index: int, code: ErrorCode | int, caller: Caller
) -> CurrentLeader | None:
    """The leader of a partition and its epoch, for a reply with the error `code`.

    None if the error does not mean that the client asked the wrong node, if the version has no
    field for it, or if no leader is known that has the client's listener.
    """
    is_fenced = code == ErrorCode.FENCED_LEADER_EPOCH and api_key is ApiKey.FETCH
    if code != ErrorCode.NOT_LEADER_OR_FOLLOWER and not is_fenced:
        return None
    if not names_leaders(api_key, caller.api_version):
        return None
    state = caller.broker.topics.get(topic)
    if state is None:
        return None
    cluster = caller.broker.cluster
    shard = state.shard_of(index, cluster.shard_count)
    leader = cluster.leader_of(shard)
    if leader == cluster.node_id and not is_fenced:
        return None
    if cluster.find_node(leader, caller.listener) is None:
        return None
    return leader, cluster.epoch_of(shard)


def endpoints_of(
    leaders: Iterable[CurrentLeader | None], caller: Caller
) -> tuple[NodeEndpoint, ...]:
    """The addresses of these leaders, each once, on the listener that the client uses."""
    ids = dict.fromkeys(one[0] for one in leaders if one is not None)
    found = (caller.broker.cluster.find_node(node_id, caller.listener) for node_id in ids)
    return tuple(NodeEndpoint(one.node_id, one.host, one.port) for one in found if one is not None)
