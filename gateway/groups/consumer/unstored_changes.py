"""What of a consumer group is not stored yet, and the answers that must wait for it: nobody is told what a crash could take back.

One write is on its way at a time, and what changes meanwhile goes with the next. So what is stored is always the group as it was at one moment,
and a thousand members that move at once are a few writes.
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
    """`row` makes the group's own row, of the key `row_key`, as it is at that moment."""

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
        """Whether all is stored."""
        return not self._unsaved and self._in_flight_write is None

    def set_row(self, key: bytes, row: ConsumerGroupMember | None) -> None:
        """This row changes, or with None goes."""
        self._unsaved[key] = row

    def set_group(self) -> None:
        self._unsaved[self._row_key] = None

    def reply(
        self, handle: RequestHandle, result: JoinResult | SyncResult | HeartbeatResult
    ) -> None:
        """Now, or when all that has changed so far is stored."""
        if self.is_empty:
            self._effects.append(Reply(handle, result))
        else:
            self._waiting_replies.append(Reply(handle, result))

    def flush(self) -> None:
        """Write what is to be written, unless a write is on its way."""
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
        """All who wait are told to ask again; the rows go with the next write."""
        self._in_flight_write = None
        self._unsaved = {**write.rows, **self._unsaved}
        self._effects.extend(
            as_refusal(reply, ErrorCode.COORDINATOR_NOT_AVAILABLE) for reply in write.replies
        )
        self.refuse_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def refuse_all(self, code: ErrorCode) -> None:
        """Whoever waits for what has not been written yet is told this."""
        self._effects.extend(as_refusal(reply, code) for reply in self._waiting_replies)
        self._waiting_replies.clear()

    def keys(self) -> set[bytes]:
        """Of the rows that change or are on their way: they may be in the store or not."""
        return {
            *self._unsaved,
            *(() if self._in_flight_write is None else self._in_flight_write.rows),
        }

    def close(self) -> None:
        """Nothing more is to be written."""
        self._unsaved.clear()
        self.refuse_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def handles(self) -> set[RequestHandle]:
        """Those that wait for the next write."""
        return {reply.handle for reply in self._waiting_replies}


def as_refusal(reply: Reply, code: ErrorCode) -> Reply:
    """The same answer as a refusal, unless it is one."""
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
