"""What gateways of one cluster share: a metadata log, their presence, and messages to each other.

Any number of gateway processes use one medium as one Kafka cluster. One of them, the controller,
writes the metadata log; all of them replay it. This is the interface in plain values; a store that
only one process can use has no cluster (`Store.cluster` is None).

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

Raises StorageFailed if there is no controller, or no answer in time: then the outcome is unknown.
"""

MAX_CALL_BYTES = (4 << 20) + (256 << 10)
"""Largest message of an inbox. Pulsar's messages have at most 5 MiB by default."""

MAX_NODES = 64
"""Nodes whose presence one process watches."""


class NodeIdInUse(StorageError):
    """Another process has this node id. The message says which one and what to do."""


class OtherController(StoreInUse):
    """Another gateway of this cluster writes the metadata log: join it.

    `StoreInUse` itself means that a gateway holds the store that does not join clusters.
    """


class MetadataLog(Protocol):
    """Rows that one process writes and all processes replay, in the same order."""

    @property
    def rows(self) -> Mapping[bytes, bytes]:
        """The replayed rows: a live view."""
        ...

    @property
    def revision(self) -> int:
        """Number of stored bursts of puts up to the last replayed one; 0 for an empty log."""
        ...

    @property
    def is_writer(self) -> bool: ...

    async def open(self) -> None:
        """Load the rows, then follow the log until `close`. Raises StorageFailed."""
        ...

    def watch(self, call: Callable[[Rows], None]) -> None:
        """Register `call` for changes of `rows`.

        It runs after the change, once per burst of puts, in log order. Puts of this process are
        included, before the put's awaitable fires. If the log was loaded, the call has all rows
        that differ from those before.
        """
        ...

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Register `call`, invoked with the reason each time this process ceases to be the writer,
        except by `release` and `close`.
        """
        ...

    async def acquire(self, force: bool) -> None:
        """Become the writer, and replay the log to its end. No effect if this process is it.

        `force` replaces another writer, if it is the one that refused the previous attempt or if
        none was refused: an attempt must not replace a writer that has just begun. Raises
        OtherController, StoreInUse, StorageFailed, and Fenced if another process became the writer
        meanwhile. Cheap enough to be called several times per second.
        """
        ...

    async def release(self) -> None:
        """Let another process become the writer at once. No effect if this process is not it."""
        ...

    def confirm(self) -> Awaitable[None]:
        """Check with the medium that no other process became the writer before this call.

        Raises Fenced, StorageFailed.
        """
        ...

    def put(self, rows: Rows) -> Awaitable[None]:
        """Set these rows, all or none, after all earlier puts; fires when they are durable.

        After StorageFailed the outcome is unknown; the log is read again before the next put is
        stored, so `rows` shows the outcome by then. Raises Fenced if this process is not the
        writer, EntryTooLarge, ValueError for an invalid key.
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
        """Hold the id until `release`. It is claimed again by itself if the medium drops it.

        A refused claim is repeated for some seconds, unless `repeat` is false: the process that
        watches the id may hold it for a moment.

        Raises NodeIdInUse, StorageFailed.
        """
        ...

    def watch(self, node_id: int, on_gone: Callable[[], None]) -> Callable[[], None]:
        """Call `on_gone` once, when no process holds the id. Returns a function that stops this.

        One watch per node id at a time, and at most MAX_NODES.
        """
        ...

    async def release(self) -> None:
        """Give up the id and all watches."""
        ...


class Inbox(Protocol):
    """Messages between processes, best effort: a message may be lost, or arrive late.

    Messages of one sender to one receiver arrive in order. A message to a former process with the
    same node id may arrive.
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
    """What one process uses of the medium."""

    @property
    def log(self) -> MetadataLog: ...
    @property
    def presence(self) -> Presence: ...
    @property
    def inbox(self) -> Inbox: ...


class SharedStore(Store, Protocol):
    """A store that several gateways use as one cluster."""

    may_write: Callable[[], bool] | None
    """Asked before and after a partition or shard is fenced, and before the first write to it."""

    @property
    def medium(self) -> ClusterMedium: ...

    async def prepare(self, *, list_topics: bool) -> None:
        """Create what a new store needs: `shard_count` is 0 before.

        This process must be the log's writer. With `list_topics`, all topics are known when this
        returns. Raises StorageError.
        """
        ...

    def lead(self, all_replayed: Callable[[], Awaitable[None]]) -> None:
        """Begin what only the controller does, without waiting.

        This process must be the log's writer. `all_replayed` returns when every live gateway has
        replayed what is in the log now.
        """
        ...

    def follow(self) -> None:
        """End what `lead` or `prepare` began. No effect if they were not called."""
        ...

    def ask_controller(self, call: ControllerCall) -> None:
        """Use `call` for what this store must ask the controller's store."""
        ...

    async def answer_call(self, method: str, payload: bytes) -> bytes:
        """Answer a call that another gateway's store made, in `controller_methods`."""
        ...

    @property
    def controller_methods(self) -> Sequence[str]:
        """The methods of `answer_call`."""
        ...

    @property
    def applied_revision(self) -> int:
        """Revision of the log up to which this process has closed the logs of deleted topics.

        Lower than the replayed one while such a log is still being opened.
        """
        ...
