"""A consumer with one session reads every record and never stops making progress."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.protocol.errors import ErrorCode
from tests.examples import scaled
from tests.fakes.broker import Started, ended, open_environment
from tests.gateway.handlers.fetch_requests import (
    batch_entry,
    consume,
    from_offset,
    payload,
    request,
    rows,
    start_fetch,
)

PARTITIONS = 4
PARTITION = st.integers(0, PARTITIONS - 1)
LIMIT = st.sampled_from([1, 200, 1 << 20])
WAIT_MS = 500


class Session(RuleBasedStateMachine):
    """The client of a session (Java's FetchSessionHandler).

    Requests and responses contain only changes. `positions` are the offsets of the consumer by
    partition, `sent` those that the gateway received.
    """

    def __init__(self) -> None:
        super().__init__()
        self.env = open_environment()
        self.env.topic("orders", PARTITIONS)
        self.positions: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        self.session = (0, 0)
        self.polling: Started | None = None
        self.asked: dict[int, int] = {}

    def log(self, index: int) -> Any:
        return self.env.partition("orders", index).log

    @rule(index=PARTITION, count=st.integers(1, 3))
    def produce(self, index: int, count: int) -> None:
        log = self.log(index)

        async def append() -> None:
            await log.append([batch_entry(log.next_offset, count)])

        ended(append())
        self._collect()

    @rule(index=PARTITION, part=st.floats(0, 1))
    def retain(self, index: int, part: float) -> None:
        log = self.log(index)

        async def cut() -> None:
            await log.delete_before(
                log.start_offset + int((log.end_offset - log.start_offset) * part)
            )

        ended(cut())
        self._collect()

    @rule()
    def recreate_topic(self) -> None:
        topics = self.env.broker.topics
        ended(topics.delete(topics.require("orders")))
        self.env.topic("orders", PARTITIONS)
        self._collect()
        self.positions = dict.fromkeys(self.positions, 0)

    @precondition(lambda self: self.polling is None)
    @rule(index=PARTITION)
    def want(self, index: int) -> None:
        self.positions.setdefault(index, self.log(index).start_offset)

    @precondition(lambda self: self.polling is None)
    @rule(index=PARTITION)
    def want_no_more(self, index: int) -> None:
        self.positions.pop(index, None)

    @precondition(lambda self: self.polling is None)
    @rule(limit=LIMIT, min_bytes=st.sampled_from([0, 1, 300]), waits=st.booleans())
    def fetch(self, limit: int, min_bytes: int, waits: bool) -> None:
        changed = [
            from_offset(offset, index)
            for index, offset in self.positions.items()
            if self.sent.get(index) != offset
        ]
        forgotten = [index for index in self.sent if index not in self.positions]
        self.sent = dict(self.positions)
        self.asked = dict(self.positions)
        wait = WAIT_MS if waits else 0
        asked = request(
            12,
            changed,
            max_bytes=limit,
            min_bytes=min_bytes,
            max_wait_ms=wait,
            session=self.session,
            forgotten=forgotten,
        )
        self.polling = start_fetch(self.env, asked)
        self._collect()

    @precondition(lambda self: self.polling is not None)
    @rule()
    def time_passes(self) -> None:
        self.env.clock.advance(WAIT_MS / 1000)
        self._collect()
        assert self.polling is None

    @precondition(lambda self: self.polling is not None)
    @rule()
    def reconnect(self) -> None:
        """The response is lost, and with it the session epoch."""
        assert self.polling
        self.polling.cancel()
        self.polling = None
        self.session = (self.session[0], 0)
        self.sent = {}

    @precondition(lambda self: self.polling is None)
    @rule()
    def lose_the_session(self) -> None:
        self.env.broker.fetch_sessions.remove(self.session[0])

    def _collect(self) -> None:
        if self.polling is None or not self.polling.is_done:
            return
        response, self.polling = self.polling.result, None
        if response.error_code:
            assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self.session, self.sent = (0, 0), {}
            return
        is_full = self.session[1] == 0
        found = {index: row for (_, index), row in rows(response).items()}
        if is_full:
            assert set(found) == set(self.asked)
        self.session = (response.session_id, self.session[1] + 1)
        for index, row in found.items():
            assert index in self.asked
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.positions[index] = self.log(index).start_offset
                # Sent even if the position is unchanged: the gateway must receive it again.
                self.sent.pop(index, None)
            elif not row.error_code and self.positions.get(index) == self.asked[index]:
                got = consume(payload(row), self.asked[index])
                assert [offset for offset, _, _ in got.records] == list(
                    range(self.asked[index], got.next_offset)
                )
                self.positions[index] = got.next_offset

    @precondition(lambda self: self.polling is None)
    @rule(limit=LIMIT)
    def catch_up(self, limit: int) -> None:
        """The consumer reaches the end in responses of any size; then nothing is returned."""
        for _ in range(400):
            if (
                all(
                    offset == self.log(index).end_offset for index, offset in self.positions.items()
                )
                and self.sent == self.positions
            ):
                break
            self.fetch(limit, 0, False)
        assert {index: self.log(index).end_offset for index in self.positions} == self.positions
        self.fetch(limit, 0, False)
        self.fetch(limit, 1, True)
        if self.positions:
            assert self.polling is not None
            self.time_passes()

    @precondition(lambda self: self.polling is not None)
    @rule(index=PARTITION)
    def a_record_for_a_waiting_consumer_is_answered_at_once(self, index: int) -> None:
        assert self.polling
        follows = self.asked.get(index) == self.log(index).end_offset
        self.produce(index, 3)
        self.produce(index, 3)
        self.produce(index, 3)
        self._collect()
        if follows:
            assert self.polling is None

    @invariant()
    def only_sessions_watch_partitions(self) -> None:
        kept = self.env.broker.fetch_sessions
        for index in range(PARTITIONS):
            assert len(self.log(index).status.watchers) <= len(kept)

    @invariant()
    def nothing_is_left_on_the_clock(self) -> None:
        assert len(self.env.clock.getDelayedCalls()) == (0 if self.polling is None else 1)


Session.TestCase.settings = settings(max_examples=scaled(25), stateful_step_count=30, deadline=None)
test_session = Session.TestCase
