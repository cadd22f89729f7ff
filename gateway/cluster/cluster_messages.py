"""Messages between nodes and the controller. Fields are only added, at the end, with a default."""

from __future__ import annotations

import msgspec

from gateway.cluster.image import NodeRow


class NodeHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A node's state, sent each `heartbeat_interval` and soon after a change.

    `node.registration` is that of the node's row as it has replayed it, 0 if there is no row of its
    incarnation. `sequence` increases with each heartbeat of an incarnation. `ready` and `released`
    are pairs of shard and epoch: the shards that are open, and those that are closed for a
    successor; a released shard is not opened again in that epoch. `revision` is how far the node
    has replayed the metadata log.
    """

    node: NodeRow
    sequence: int
    ready: tuple[tuple[int, int], ...] = ()
    released: tuple[tuple[int, int], ...] = ()
    is_leaving: bool = False
    revision: int = 0


class HeartbeatReply(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer to the heartbeat `sequence` of `incarnation`.

    `is_known`: the heartbeat's registration is in effect, and its session has not ended. If so, the
    node has a lease for `lease` seconds from the time when it sent the heartbeat.
    """

    incarnation: str
    sequence: int
    controller_epoch: int
    is_known: bool
    lease: float = 0.0


ClusterMessage = NodeHeartbeat | HeartbeatReply

_decoder: msgspec.msgpack.Decoder[ClusterMessage] = msgspec.msgpack.Decoder(ClusterMessage)


def encode_message(message: ClusterMessage) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_message(data: bytes) -> ClusterMessage | None:
    """None for a message that this version does not know or that cannot be read."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None
