"""What gateways of one cluster share: a metadata log, their presence, and messages to each other.

All gateway processes that use one medium are one Kafka cluster. One of them, the controller, writes
the metadata log; all of them replay it. A store that only one process can use has no medium
(`Store.is_shared` is false).

All methods are called from the reactor thread and none blocks it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from storage.log import StorageError, Store, StoreInUse

Rows = Mapping[bytes, bytes | None]
"""Changed rows by key; None for a deleted row."""

ControllerCall = Callable[[str, bytes], Awaitable[bytes]]
"""`call(method, payload)` sends a call to the controller and returns its answer.

Raises StorageFailed if there is no controller or if the call fails. The outcome is then unknown.
"""

MAX_CALL_BYTES = (4 << 20) + (256 << 10)
"""Largest message to an inbox, in bytes. A message in Pulsar has at most 5 MiB by default."""

MAX_NODES = 64
"""Most nodes whose presence one process can watch."""


class NodeIdInUse(StorageError):
    """Another process has this node id. The message names the process and says what to do."""


class OtherController(StoreInUse):
    """Another gateway of this cluster writes the metadata log: join it.

    Other `StoreInUse` errors mean that the store is held by a gateway that does not join clusters.
    """


class MetadataLog(Protocol):
    """Rows that one process writes and all processes replay, in the same order."""

    @property
    def rows(self) -> Mapping[bytes, bytes]:
        """The replayed rows: a live view."""
        ...

    @property
    def revision(self) -> int:
        """Number of the last replayed burst of puts; 0 for an empty log.

        A burst is the puts that are stored together. The revision increases by 1 with each.
        """
        ...

    @property
    def is_writer(self) -> bool: ...

    async def open(self) -> None:
        """Load the rows, then follow the log until `close`. Raises StorageFailed."""
        ...

    def watch(self, call: Callable[[Rows], None]) -> None:
        """Register `call` for changes of `rows`.

        It runs after the change, once per burst of puts, in log order. Puts of this process are
        included, before the put's awaitable fires. After the log was loaded again, `call` receives
        all rows that differ from those before.
        """
        ...

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Register `call`, invoked with the reason each time this process ceases to be the writer,
        except by `release` and `close`.
        """
        ...

    async def acquire(self, force: bool) -> None:
        """Become the writer and replay the log to its end. No effect for the present writer.

        `force` replaces another writer, but only the one that refused the previous attempt, if an
        attempt was refused: a writer that has just begun must not be replaced. Raises
        OtherController, StoreInUse, StorageFailed, and Fenced if another process becomes the writer
        during the call. May be called several times per second.
        """
        ...

    async def release(self) -> None:
        """Let another process become the writer at once. No effect unless it is the writer."""
        ...

    def confirm(self) -> Awaitable[None]:
        """Check with the medium that no other process became the writer before this call.

        Raises Fenced, StorageFailed.
        """
        ...

    def put(self, rows: Rows) -> Awaitable[None]:
        """Set these rows, all or none, after all earlier puts; fires when they are durable.

        After StorageFailed the outcome is unknown. The log is read again before the next put is
        stored, so `rows` shows the outcome once that put fires. Raises Fenced if this process is
        not the writer, EntryTooLarge, ValueError for an invalid key.
        """
        ...

    async def wait_for(self, revision: int) -> None:
        """Return when `self.revision >= revision`. Raises LogClosed when the log is closed."""
        ...

    async def close(self) -> None:
        """Release the log and stop following it."""
        ...


class Presence(Protocol):
    """A node id in use, visible to other processes until its process ends."""

    def when_taken(self, call: Callable[[str], None]) -> None:
        """Register `call`, invoked with the reason if another process has the claimed id."""
        ...

    async def claim(self, node_id: int, description: str, *, repeat: bool = True) -> None:
        """Hold the id until `release`. If the medium drops it, it is claimed again automatically.

        A refused claim is repeated for some seconds, because a process that watches the id may hold
        it for a moment. If `repeat` is false, it fails at once.

        Raises NodeIdInUse, StorageFailed.
        """
        ...

    def watch(self, node_id: int, on_gone: Callable[[], None]) -> Callable[[], None]:
        """Call `on_gone` once, when no process holds the id. Returns a function that stops it.

        One watch per node id at a time, and at most MAX_NODES.
        """
        ...

    async def release(self) -> None:
        """Give up the id and all watches."""
        ...


class Inbox(Protocol):
    """Messages between processes, best effort: a message may be lost, or arrive late.

    Messages of one sender to one receiver arrive in order. A message that was sent to a former
    process with the same node id may arrive.
    """

    async def open(self, node_id: int, on_message: Callable[[bytes], None]) -> None:
        """Receive messages to `node_id`. Raises StorageFailed."""
        ...

    def send(self, node_id: int, message: bytes) -> None:
        """Send a message of up to MAX_CALL_BYTES; it is dropped if too many are waiting.

        Raises ValueError for a larger message.
        """
        ...

    async def close(self) -> None: ...


class ClusterMedium(Protocol):
    """The access of one process to what the gateways share."""

    @property
    def log(self) -> MetadataLog: ...
    @property
    def presence(self) -> Presence: ...
    @property
    def inbox(self) -> Inbox: ...


class SharedStore(Store, Protocol):
    """A store that several gateways use as one cluster."""

    may_write: Callable[[], bool] | None
    """Whether this node has a lease; None: not checked.

    Called before and after a partition or shard is fenced, and before the first write to it.
    """

    @property
    def medium(self) -> ClusterMedium: ...

    async def prepare(self, *, list_topics: bool) -> None:
        """Prepare a new store, whose `shard_count` is 0 until then.

        This process must be the log's writer. With `list_topics`, all topics are known when this
        returns. Raises StorageError.
        """
        ...

    def lead(self, all_replayed: Callable[[], Awaitable[None]]) -> None:
        """Begin the store's tasks of the controller, without waiting for them.

        This process must be the log's writer. `all_replayed` returns when every live gateway has
        replayed the log to its present end.
        """
        ...

    def follow(self) -> None:
        """End the tasks that `lead` or `prepare` began. No effect if neither was called."""
        ...

    def ask_controller(self, call: ControllerCall) -> None:
        """Register the function by which this store calls the controller's store."""
        ...

    async def answer_call(self, method: str, payload: bytes) -> bytes:
        """Execute a call of another gateway's store; `method` is in `controller_methods`."""
        ...

    @property
    def controller_methods(self) -> Sequence[str]:
        """The methods that `answer_call` accepts."""
        ...

    def written_partitions(self, shard: int) -> Sequence[tuple[bytes, int]]:
        """Topic ids and indexes of the partitions that the shard's former leader wrote to.

        Empty if the shard is not open here.
        """
        ...

    @property
    def applied_revision(self) -> int:
        """The last revision up to which this process has closed the logs of deleted topics.

        Lower than the replayed revision while the log of a deleted topic, or of one with another
        entry format by now, is still being opened.
        """
        ...
