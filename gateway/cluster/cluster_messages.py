"""Messages between nodes and the controller. Fields are only added, at the end, with a default."""

from __future__ import annotations

import msgspec

from gateway.cluster.image import NodeRow


class NodeHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A node's state, sent every `heartbeat_interval` and soon after a change.

    `node.registration` is the registration of this incarnation in the log as the node has replayed
    it, 0 if it is not registered. `sequence` increases with each heartbeat of an incarnation.
    `ready` (open) and `released` (closed for a successor) are pairs of shard and epoch. A released
    shard is not opened again in that epoch. `revision` is the last revision of the metadata log
    that the node has replayed.
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
    """Return the message, None if it is malformed or of a type that this version does not know."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None
