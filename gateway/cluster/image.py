"""The state of the cluster, as replayed from the metadata log.

A row's key is its section, a zero byte and a name. Values are msgpack arrays: fields are only
added, at the end and with a default, so that older and newer gateways read each other's rows.
Sections of other modules are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

NO_NODE = -1

_ADDRESSES = b"node-addresses"
_CLUSTER = b"cluster-row"
_CONTROLLER = b"controller"
_NODES = b"nodes"
_SHARDS = b"shards"


class ClusterRow(msgspec.Struct, frozen=True, array_like=True):
    """Fixed when the cluster is created. `cluster_id` is Kafka's, 22 characters of base64."""

    cluster_id: str
    shard_count: int


class ControllerRow(msgspec.Struct, frozen=True, array_like=True):
    """The controller; `node_id` is NO_NODE after it has resigned.

    `epoch` increases each time a process becomes the controller, also if it is the same process.
    """

    node_id: int
    incarnation: str
    epoch: int


class NodeRow(msgspec.Struct, frozen=True, array_like=True):
    """A registered node.

    `incarnation` identifies the process. `registration` is unique for each registration: a process
    whose session ended is registered again under another number. It has no lease before it has
    replayed that number, and with it the loss of its shards. `addresses` is (host, port) by
    listener name. `version`, `host` and `process` describe the process for the operator.
    """

    node_id: int
    incarnation: str
    registration: int
    addresses: dict[str, tuple[str, int]]
    version: str = ""
    host: str = ""
    process: int = 0


class LastAddresses(msgspec.Struct, frozen=True, array_like=True):
    """The addresses of a node id's last registration, kept when the node leaves.

    They let a gateway without a configured id find its former id.
    """

    addresses: dict[str, tuple[str, int]]


class ShardRow(msgspec.Struct, frozen=True, array_like=True):
    """The leader of a shard: the node `leader` under this registration, since `epoch`.

    `successor` is the node that becomes leader once this one has closed the shard, or NO_NODE.
    """

    leader: int
    registration: int
    epoch: int
    successor: int = NO_NODE

    def is_led_by(self, node: NodeRow | None) -> bool:
        return (
            node is not None
            and self.leader == node.node_id
            and self.registration == node.registration
        )


Row = ClusterRow | ControllerRow | LastAddresses | NodeRow | ShardRow

_TYPES: Mapping[bytes, type[Row]] = {
    _ADDRESSES: LastAddresses,
    _CLUSTER: ClusterRow,
    _CONTROLLER: ControllerRow,
    _NODES: NodeRow,
    _SHARDS: ShardRow,
}


def cluster_key() -> bytes:
    return _CLUSTER + b"\0"


def controller_key() -> bytes:
    return _CONTROLLER + b"\0"


def node_key(node_id: int) -> bytes:
    return b"%s\0%d" % (_NODES, node_id)


def addresses_key(node_id: int) -> bytes:
    return b"%s\0%d" % (_ADDRESSES, node_id)


def shard_key(shard: int) -> bytes:
    return b"%s\0%d" % (_SHARDS, shard)


def is_per_node(key: bytes) -> bool:
    """Whether a row describes a node. Such a row is written again when the node registers."""
    return key.partition(b"\0")[0] in (_ADDRESSES, _NODES)


def encode_row(row: Row) -> bytes:
    return msgspec.msgpack.encode(row)


class ClusterImage:
    """The decoded rows of this module's sections. Replaying a row twice has no effect."""

    def __init__(self) -> None:
        self.cluster: ClusterRow | None = None
        self.controller: ControllerRow | None = None
        self.nodes: dict[int, NodeRow] = {}
        self.shards: dict[int, ShardRow] = {}
        self.last_addresses: dict[int, LastAddresses] = {}
        self.changes = 0
        """Number of rows applied. While it stays the same, no row changes."""
        self.unreadable: set[bytes] = set()
        """Keys whose rows could not be decoded, until they are replaced or deleted."""

    @property
    def shard_count(self) -> int:
        """The number of shards; 0 before the cluster is created."""
        return self.cluster.shard_count if self.cluster else 0

    def apply(self, rows: Mapping[bytes, bytes | None]) -> list[bytes]:
        """Apply rows in the order of the log; None deletes. Returns the keys of unreadable rows.

        The last readable row stays in effect until an unreadable one is replaced.
        """
        failed = []
        for key, value in rows.items():
            section, _, name = key.partition(b"\0")
            row_type = _TYPES.get(section)
            if row_type is None:
                continue
            self.changes += 1
            try:
                number = int(name) if section in (_ADDRESSES, _NODES, _SHARDS) else 0
                row = None if value is None else msgspec.msgpack.decode(value, type=row_type)
            except (ValueError, msgspec.DecodeError):
                if value is None:
                    self.unreadable.discard(key)
                else:
                    failed.append(key)
                    self.unreadable.add(key)
                continue
            self.unreadable.discard(key)
            self._set(section, number, row)
        return failed

    def _set(self, section: bytes, number: int, row: Row | None) -> None:
        match section, row:
            case _, NodeRow():
                self.nodes[number] = row
            case _, ShardRow():
                self.shards[number] = row
            case _, LastAddresses():
                self.last_addresses[number] = row
            case _, ClusterRow():
                self.cluster = row
            case _, ControllerRow():
                self.controller = row
            case b"nodes", None:
                self.nodes.pop(number, None)
            case b"shards", None:
                self.shards.pop(number, None)
            case b"node-addresses", None:
                self.last_addresses.pop(number, None)
            case b"cluster-row", None:
                self.cluster = None
            case b"controller", None:
                self.controller = None
