"""Unstored changes of a consumer group, and the replies that depend on them.

A reply is sent only when everything it reveals is stored, so a crash cannot revert it. One write is
in flight at a time; changes made meanwhile go into the next write. Rows therefore always reflect
one moment, and a thousand members that move at once cause few writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.groups.classic.classic_member import JoinResult, SyncResult
from gateway.groups.consumer.consumer_member import ConsumerGroupMember, HeartbeatResult
from gateway.groups.consumer.consumer_rows import ConsumerGroupRow
from gateway.groups.group_effects import Effect, Reply, RequestHandle, StoreRows
from gateway.protocol.errors import ErrorCode

Row = ConsumerGroupMember | ConsumerGroupRow | None


class UnstoredChanges:
    """`row` returns the group's own row (key `row_key`) in its current state."""

    def __init__(
        self, effects: list[Effect], row_key: bytes, row: Callable[[], ConsumerGroupRow]
    ) -> None:
        self._effects = effects
        self._row_key = row_key
        self._row = row
        self._unsaved: dict[bytes, Row] = {}
        self._waiting_replies: list[Reply] = []
        self._in_flight_write: StoreRows | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything is stored."""
        return not self._unsaved and self._in_flight_write is None

    def set_row(self, key: bytes, row: ConsumerGroupMember | None) -> None:
        """Add a changed row. None deletes it."""
        self._unsaved[key] = row

    def set_group(self) -> None:
        self._unsaved[self._row_key] = None

    def reply(
        self, handle: RequestHandle, result: JoinResult | SyncResult | HeartbeatResult
    ) -> None:
        """Send a reply when all changes made so far are stored."""
        if self.is_empty:
            self._effects.append(Reply(handle, result))
        else:
            self._waiting_replies.append(Reply(handle, result))

    def flush(self) -> None:
        """Start a write if there are changes and none is in flight."""
        if self._in_flight_write is not None or not self._unsaved:
            return
        rows = dict(self._unsaved)
        if self._row_key in rows:
            rows[self._row_key] = self._row()
        self._in_flight_write = StoreRows(rows, tuple(self._waiting_replies))
        self._effects.append(self._in_flight_write)
        self._unsaved.clear()
        self._waiting_replies.clear()

    def on_stored(self, write: StoreRows) -> None:
        self._in_flight_write = None
        self._effects.extend(write.replies)
        if self._unsaved:
            self.flush()
        else:
            self._effects.extend(self._waiting_replies)
            self._waiting_replies.clear()

    def on_store_failed(self, write: StoreRows) -> None:
        """Refuse the waiting replies and keep the rows for the next write."""
        self._in_flight_write = None
        self._unsaved = {**write.rows, **self._unsaved}
        self._effects.extend(
            as_refusal(reply, ErrorCode.COORDINATOR_NOT_AVAILABLE) for reply in write.replies
        )
        self.refuse_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def refuse_all(self, code: ErrorCode) -> None:
        """Refuse the replies that wait for the next write."""
        self._effects.extend(as_refusal(reply, code) for reply in self._waiting_replies)
        self._waiting_replies.clear()

    def keys(self) -> set[bytes]:
        """Keys of changed rows and of rows in flight, which may or may not be stored."""
        return {
            *self._unsaved,
            *(() if self._in_flight_write is None else self._in_flight_write.rows),
        }

    def close(self) -> None:
        """Discard all changes and refuse the waiting replies."""
        self._unsaved.clear()
        self.refuse_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def handles(self) -> set[RequestHandle]:
        """Requests that wait for the next write."""
        return {reply.handle for reply in self._waiting_replies}


def as_refusal(reply: Reply, code: ErrorCode) -> Reply:
    """The reply with an error code, unless it has one already."""
    result = reply.result
    if result.code is not ErrorCode.NONE:
        return reply
    match result:
        case JoinResult():
            return Reply(reply.handle, JoinResult(code, ""))
        case SyncResult():
            return Reply(reply.handle, SyncResult(code))
        case HeartbeatResult():
            return Reply(reply.handle, replace(result, code=code, epoch=0, assignment=None))
