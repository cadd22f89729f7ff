"""Joins the cluster of a shared store, or opens a store that only one gateway can use.

Joining claims a node id and, if there is no controller, prepares a new store. The node registers
and leads shards after `ClusterMembership.start`.

"Alone" means a store that is not shared, for example LMDB: this gateway leads all its shards.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from secrets import randbits
from typing import cast

from gateway import logs
from gateway.cluster.calls import CallError, Calls
from gateway.cluster.cluster_node import ClusterNode, NodeParts
from gateway.cluster.forwarding import (
    CALL_SECONDS,
    LOCAL_CONTROLLER,
    ControllerAccess,
    RemoteController,
)
from gateway.cluster.image import ClusterImage, ClusterRow, NodeRow
from gateway.cluster.session_timing import SessionTiming
from gateway.cluster.shard_leadership import NotLeader, ShardLeadership
from gateway.cluster.view import UNKNOWN, Addresses, ClusterView
from gateway.coroutines import Clock, sleep
from storage.cluster import (
    MAX_NODES,
    ClusterMedium,
    NodeIdInUse,
    OtherController,
    SharedStore,
)
from storage.log import Fenced, StateTable, StorageFailed, Store

_log = logs.get_logger(__name__)

#: Keys of the table `cluster`: the cluster id, and the leader epoch of all shards of a gateway that
#: is alone.
_CLUSTER_ID, _LEADER_EPOCH = b"cluster.id", b"leader.epoch"

#: Seconds between two checks whether another gateway has prepared the store.
PREPARE_SECONDS = 0.1

#: Seconds that the start of a gateway that is alone waits for its shards. Those that are not open
#: by then are opened later.
OPEN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What a gateway tells other gateways about itself.

    `node_id` is the configured one; if it is None, the gateway chooses a free id. `addresses` are
    the advertised ones. `version` is that of kopgate.
    """

    node_id: int | None
    addresses: Addresses
    version: str


class ClusterMembership:
    """The part of this gateway in its cluster. `node` is None if the gateway is alone."""

    def __init__(
        self,
        view: ClusterView,
        leadership: ShardLeadership,
        clock: Clock,
        node: ClusterNode | None = None,
        controller: ControllerAccess = LOCAL_CONTROLLER,
    ) -> None:
        self.view = view
        self.leadership = leadership
        self._clock = clock
        self.node = node
        self.controller = controller

    def revision(self) -> int:
        """The last replayed revision of the metadata log; 0 if there is no log."""
        return 0 if self.node is None else self.node.revision

    async def start(self) -> None:
        """Begin to take part in the cluster.

        A gateway that is alone opens its shards, and waits for them for at most OPEN_SECONDS.
        Raises StorageError.
        """
        if self.node is not None:
            await self.node.start()
            return
        for shard in range(self.view.shard_count):
            self.leadership.lead(shard, self.view.epoch_of(shard))
        try:
            await self.leadership.wait_for_all(self._clock.seconds() + OPEN_SECONDS)
        except NotLeader as failure:
            _log.warning("not all groups and partitions are loaded yet", reason=str(failure))

    async def leave(self, seconds: float) -> None:
        """`ClusterNode.leave`. No effect if this gateway is alone."""
        if self.node is not None:
            await self.node.leave(seconds)

    def close(self) -> None:
        if self.node is not None:
            self.node.close()


async def open_cluster(
    store: Store,
    identity: NodeIdentity,
    timing: SessionTiming,
    clock: Clock,
    leadership: Callable[[], ShardLeadership],
    new_id: Callable[[], str],
    failed: Callable[[str], None],
    random_bits: Callable[[int], int] = randbits,
) -> ClusterMembership:
    """Open the cluster of a store.

    `leadership` creates the ShardLeadership; it is called once the store's number of shards is
    known. `new_id` returns a new cluster id. `failed` is called with the reason if another process
    has taken this node id. `random_bits(n)` returns a random number of n bits. Raises StorageError,
    in particular StoreInUse and NodeIdInUse.
    """
    if not store.is_shared:
        return await _open_alone(store, identity, clock, leadership, new_id)
    shared = cast(SharedStore, store)
    return await _join(shared, identity, timing, clock, leadership, new_id, failed, random_bits)


async def _open_alone(
    store: Store,
    identity: NodeIdentity,
    clock: Clock,
    leadership: Callable[[], ShardLeadership],
    new_id: Callable[[], str],
) -> ClusterMembership:
    """Lead all shards of a store that is not shared.

    The leader epoch is `store.first_epoch` at the first start and rises by one with each start.
    """
    table = await store.table("cluster")
    rows = dict(await table.items())
    last = rows.get(_LEADER_EPOCH)
    epoch = store.first_epoch if last is None else int.from_bytes(last, "big") + 1
    cluster_id = rows.get(_CLUSTER_ID) or new_id().encode()
    await table.put({_CLUSTER_ID: cluster_id, _LEADER_EPOCH: epoch.to_bytes(4, "big")})
    node_id = identity.node_id or 0
    view = ClusterView(node_id, cluster_id.decode(), store.shard_count)
    view.set_nodes({node_id: identity.addresses})
    view.set_controller(node_id)
    for shard in range(view.shard_count):
        view.set_leader(shard, node_id, epoch)
    return ClusterMembership(view, leadership(), clock)


async def _join(
    store: SharedStore,
    identity: NodeIdentity,
    timing: SessionTiming,
    clock: Clock,
    leadership: Callable[[], ShardLeadership],
    new_id: Callable[[], str],
    failed: Callable[[str], None],
    random_bits: Callable[[int], int],
) -> ClusterMembership:
    medium = store.medium
    node_id = await _claim_id(medium, identity)
    await _prepare(store, clock, node_id)
    cluster_id = await _cluster_id(store, clock, node_id, new_id)
    incarnation = random_bits(63)
    row = NodeRow(
        node_id,
        f"{incarnation:016x}",
        0,
        dict(identity.addresses),
        identity.version,
        socket.gethostname(),
        os.getpid(),
    )
    view = ClusterView(node_id, cluster_id, store.shard_count)
    led = leadership()
    node = ClusterNode(
        row,
        ClusterRow(cluster_id, store.shard_count),
        NodeParts(medium, view, led, store),
        timing,
        clock,
        random_bits(16) / (1 << 16) * timing.heartbeat_interval,
        store.first_epoch,
        failed,
    )
    store.may_write = led.may_serve = lambda: node.has_lease

    def controller_id() -> int | None:
        if node.is_controller:
            return node_id
        known = view.controller_id
        return None if known in (UNKNOWN, node_id) else known

    controller = RemoteController(node.calls, clock, node_id, controller_id, medium.log.wait_for)
    store.ask_controller(partial(_ask_controller, node.calls, controller_id))
    for method in store.controller_methods:
        node.calls.serve(method, partial(store.answer_call, method))
    return ClusterMembership(view, led, clock, node, controller)


async def _claim_id(medium: ClusterMedium, identity: NodeIdentity) -> int:
    """Claim the configured node id, or the one that had these addresses last, or a free one.

    Raises NodeIdInUse, StoreInUse, StorageFailed.
    """
    if identity.node_id is not None:
        await medium.presence.claim(identity.node_id, f"node {identity.node_id}")
        return identity.node_id
    controller_has_ended = await _acquired(medium)
    image = ClusterImage()
    image.apply(medium.log.rows)
    former = list(_former_ids(image, identity.addresses))
    for node_id in dict.fromkeys([*former, *_free_ids(image, controller_has_ended)]):
        try:
            # The controller may hold the id for a moment after its former process has ended.
            await medium.presence.claim(node_id, f"node {node_id}", repeat=node_id in former)
        except NodeIdInUse:
            continue
        _log.info("node id chosen", node=node_id, reason="none is configured")
        return node_id
    raise NodeIdInUse(
        f"no node id below {MAX_NODES} is free: stop a gateway that is not needed, or start this "
        "one with --node-id"
    )


async def _acquired(medium: ClusterMedium) -> bool:
    """Become the controller if there is none. Returns whether this process is the controller."""
    try:
        await medium.log.acquire(False)
    except (OtherController, Fenced):
        return False
    return True


def _former_ids(image: ClusterImage, addresses: Addresses) -> Iterator[int]:
    """Node ids whose last addresses include some of these, those with the most in common first."""
    own = set(addresses.values())
    common = {
        node_id: len(own.intersection(last.addresses.values()))
        for node_id, last in image.last_addresses.items()
    }
    yield from sorted(filter(common.get, common), key=lambda node_id: (-common[node_id], node_id))


def _free_ids(image: ClusterImage, controller_has_ended: bool) -> Iterator[int]:
    """Node ids that are not registered, the lowest first.

    Ids of gateways that have left come after all others, because those gateways may be restarting.
    But if the controller has ended and no other gateway was ever registered, its id comes first: so
    a cluster of one gateway keeps its id.
    """
    if controller_has_ended and len(image.last_addresses) == 1:
        yield from image.last_addresses
    free = [node_id for node_id in range(MAX_NODES) if node_id not in image.nodes]
    yield from sorted(free, key=lambda node_id: node_id in image.last_addresses)


async def _ask_controller(
    calls: Calls, controller_id: Callable[[], int | None], method: str, payload: bytes
) -> bytes:
    """Call the controller. Raises StorageFailed."""
    node_id = controller_id()
    if node_id is None:
        raise StorageFailed("there is no controller: retry later")
    try:
        return await calls.call(node_id, method, payload, CALL_SECONDS)
    except CallError as failure:
        raise StorageFailed(f"the call to the controller failed: {failure}") from failure


async def _prepare(store: SharedStore, clock: Clock, node_id: int) -> None:
    """Become the controller if there is none, and prepare a new store.

    If there is a controller, waits until the store is prepared. Topics are listed here only if no
    other node is registered. Otherwise another node would soon replace this controller, which does
    not answer heartbeats yet.

    Raises StoreInUse if a gateway of an older version, which does not join clusters, uses the
    store.
    """
    while not await _acquired(store.medium):
        if store.shard_count:
            return
        await sleep(clock, PREPARE_SECONDS)
    image = ClusterImage()
    image.apply(store.medium.log.rows)
    await store.prepare(list_topics=image.nodes.keys() <= {node_id})


async def _cluster_id(
    store: SharedStore, clock: Clock, node_id: int, new_id: Callable[[], str]
) -> str:
    """Return the cluster id.

    The gateway that prepares the store writes it. If that gateway ends before, the next controller
    writes it.
    """
    table: StateTable = await store.table("cluster")
    while True:
        known = dict(await table.items()).get(_CLUSTER_ID)
        if known is not None:
            return known.decode()
        if store.medium.log.is_writer:
            await table.put({_CLUSTER_ID: new_id().encode()})
        else:
            await sleep(clock, PREPARE_SECONDS)
            await _prepare(store, clock, node_id)
