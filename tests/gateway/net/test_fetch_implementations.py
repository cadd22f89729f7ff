"""All implementations of Fetch give the same replies, counts, sessions and logs for the same bytes.

The reference reads in a coroutine. Without one it reads what is in memory, and the compiled module
does the same for consumers of format 2. Compiled code around the handler serves a request like the
last one of its connection.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, groupby
from struct import pack, unpack_from
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fetch.conversion import LONG_RUN_BATCHES
from gateway.fetch.fetch_reader import FetchReader
from gateway.handlers import fetch as handler
from gateway.protocol.wire import compiled
from gateway.security.acls import AclResource
from tests.examples import scaled
from tests.fakes import memory_store
from tests.fakes.broker import ended
from tests.fakes.connection import MemoryClient, produce_request, request
from tests.fakes.traffic import TrafficScenario
from tests.gateway.handlers.fetch_requests import stored_entry
from tests.gateway.handlers.handler_calls import append_entries
from tests.gateway.protocol.wire.implementations import use
from tests.records import sample_records
from tests.records.record_sets import batch
from tests.records.sample_records import LZ4, NONE, ZSTD, Sample

LARGE = 1 << 20
ABSENT = 99
END = 1000


class Wanted(NamedTuple):
    """A partition in a request.

    `index` is used modulo the number of partitions, except ABSENT. `place` is the distance of the
    offset from the start of the log, or with END from its end.
    """

    topic: str
    index: int
    place: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int


class Asked(NamedTuple):
    """A request. `session` is added to the epoch of the session; None asks for no session."""

    wanted: list[Wanted]
    forgotten: list[int]
    session: int | None
    version: int | None
    isolation_level: int
    max_bytes: int
    min_bytes: int
    max_wait_ms: int
    is_sent_twice: bool
    is_woken: bool


class Change(NamedTuple):
    """Something that happens to a partition of the topic "orders" between requests."""

    kind: str
    index: int
    size: int


class Conversation(NamedTuple):
    version: int
    partitions: int
    has_authorizer: bool
    steps: list[Asked | Change]


def mostly(common: Any, *others: Any) -> st.SearchStrategy[Any]:
    """`common` in nine of ten cases: most requests should be served."""
    return st.sampled_from([common] * 9 * len(others) + [*others])


#: A batch with one record of 4,020 to 4,035 bytes has about 4,096, up to which parts of a request
#: are copied.
SIZES = st.integers(0, 100) | st.integers(4_020, 4_035) | st.just(20_000)
WANTED = st.builds(
    Wanted,
    st.sampled_from(["orders"] * 20 + ["events"] * 4 + ["secret", "missing"]),
    st.sampled_from([*range(5)] * 9 + [ABSENT]),
    st.sampled_from([0, 0, 2, 2, END, END] * 4 + [1, 3, -1, END + 1]),
    st.sampled_from([LARGE] * 4 + [0, 100, 4_096, 9_000, -1]),
    st.sampled_from([-1] * 40 + [0, 0, 1, 2]),
    st.sampled_from([-1] * 40 + [0, 1]),
)
ASKED = st.builds(
    Asked,
    st.lists(WANTED, max_size=3) | st.lists(WANTED, max_size=5),
    mostly([], [0], [0, 1]),
    mostly(0, None, 1, -1),
    mostly(None, 0, 3, 4, 9, 12, 13, 18),
    st.sampled_from([0, 1]),
    st.sampled_from([LARGE] * 3 + [1, 300, 5_000]),
    st.sampled_from([1, 1, 0, 10_000]),
    st.sampled_from([0, 0, 500]),
    mostly(False, True),
    st.booleans(),
)
CHANGE = st.builds(
    Change,
    st.sampled_from(
        ["produced"] * 6
        + ["batch"] * 2
        + ["batch", "lz4", "zstd", "format 0", "format 1", "start", "epoch", "resigned", "clock"]
        + ["joined", "separate", "not in memory", "long run"]
    ),
    st.integers(0, 4),
    SIZES,
)
CONVERSATIONS = st.builds(
    Conversation,
    st.integers(0, 3) | st.integers(0, 18),
    st.integers(1, 5),
    st.booleans(),
    st.lists(ASKED | ASKED | CHANGE, min_size=3, max_size=15),
)


class DenyingAuthorizer:
    """Denies the topic "secret"."""

    version = 1

    def authorize(
        self, principal: object, host: str, operation: object, resource: AclResource, name: str
    ) -> bool:
        return resource is not AclResource.TOPIC or name != "secret"

    def note_refusal(self, principal: object) -> None:
        return


class Gateway:
    """A gateway with some batches in each partition, a consumer and a producer."""

    def __init__(self, conversation: Conversation) -> None:
        self.scenario = TrafficScenario()
        self.env = self.scenario.env
        if conversation.has_authorizer:
            self.env.broker = replace(self.env.broker, authorizer=DenyingAuthorizer())
        self.ids = {"missing": b"\1" * 16}
        self.partitions: dict[tuple[str, int], Any] = {}
        for topic in ("orders", "events", "secret"):
            partitions = conversation.partitions if topic == "orders" else 1
            self.ids[topic] = self.env.topic(topic, partitions).topic.topic_id
            for index in range(partitions):
                self.partitions[topic, index] = self.env.partition(topic, index)
                for size in (10, 2_000):
                    self.append(topic, index, size)
        self.version = conversation.version
        self.producer: MemoryClient = self.scenario.connect()
        self.consumer: MemoryClient = self.scenario.connect()
        self.session, self.epoch = 0, 0
        self.replies: list[bytes] = []

    def append(self, topic: str, index: int, size: int, kind: str = "batch") -> None:
        partition = self.partitions[topic, index]
        base = partition.log.end_offset
        samples = [Sample(base + n, 5, b"k", b"v" * size) for n in range(2)]
        if kind.startswith("format"):
            raw = sample_records.message_set(samples, magic=int(kind[-1]))
        else:
            raw = sample_records.batch(samples, codec={"lz4": LZ4, "zstd": ZSTD}.get(kind, NONE))
        append_entries(partition, stored_entry(base, base + 1, raw))

    def change(self, change: Change) -> None:
        kind, index, size = change
        partition = self.partitions.get(("orders", index))
        if partition is None:
            return
        log = partition.log
        if kind == "produced":
            sent = produce_request()
            (part,) = sent.topic_data[0].partition_data
            part.index, part.records = index, bytes(batch([(b"k", bytes(size))]))
            self.producer.send(request(sent))
            assert len(self.producer.receive()) == 1
        elif kind == "start":
            start = log.start_offset + size % 3
            ended(log.delete_before(min(start, log.end_offset)))
        elif kind == "epoch":
            log.leader_epoch = size % 3
        elif kind == "resigned":
            partition.resign()
        elif kind == "clock":
            self.env.clock.advance(size)
        elif kind in ("joined", "separate", "not in memory"):
            keep(log, kind)
        elif kind == "long run":
            for _ in range(LONG_RUN_BATCHES + 1):
                self.append("orders", index, size, "lz4")
        else:
            self.append("orders", index, size, kind)

    def ask(self, asked: Asked) -> None:
        version = self.version if asked.version is None else asked.version
        session = (0, -1)
        if asked.session is not None:
            session = self.session, self.epoch + asked.session
        frame = self.frame(asked, version, session)
        self.consumer.send(*[frame] * (1 + asked.is_sent_twice))
        replies = self.consumer.receive()
        if asked.is_woken and not replies:
            self.append("orders", 0, 20_000)
        self.env.clock.pump([0] * 10 + [1.0])
        replies += self.consumer.receive()
        self.replies += replies
        if version >= 7:
            error, self.session = unpack_from(">hi", replies[-1], 9 if version >= 12 else 8)
            self.epoch = session[1] + 1 if self.session and not error else 0

    def frame(self, asked: Asked, version: int, session: tuple[int, int]) -> bytes:
        """The request with its header."""
        flexible = version >= 12

        def array(items: Sequence[bytes]) -> bytes:
            size = bytes([len(items) + 1]) if flexible else pack(">i", len(items))
            return size + b"".join(items)

        def topic(name: str) -> bytes:
            if version >= 13:
                return self.ids[name]
            size = bytes([len(name) + 1]) if flexible else pack(">h", len(name))
            return size + name.encode()

        def partition(wanted: Wanted) -> bytes:
            count = sum(name == wanted.topic for name, _ in self.partitions)
            index = wanted.index if wanted.index == ABSENT else wanted.index % max(count, 1)
            found, offset = self.partitions.get((wanted.topic, index)), wanted.place
            if found is not None:
                log = found.log
                offset += log.start_offset if offset < END - 1 else log.end_offset - END
            fields = pack(">i", index)
            fields += pack(">i", wanted.leader_epoch) if version >= 9 else b""
            fields += pack(">q", offset)
            fields += pack(">i", wanted.last_fetched_epoch) if flexible else b""
            fields += pack(">q", -1) if version >= 5 else b""
            return fields + pack(">i", wanted.max_bytes) + tags

        tags = b"\0" if flexible else b""
        sent = pack(">hhih4s", 1, version, len(self.replies), 4, b"test") + tags
        sent += pack(">i", -1) if version < 15 else b""
        sent += pack(">ii", asked.max_wait_ms, asked.min_bytes)
        sent += pack(">i", asked.max_bytes) if version >= 3 else b""
        sent += pack(">b", asked.isolation_level) if version >= 4 else b""
        sent += pack(">ii", *session) if version >= 7 else b""
        sent += array([
            topic(name) + array(list(map(partition, some))) + tags
            for name, some in groupby(asked.wanted, lambda wanted: wanted.topic)
        ])  # fmt: skip
        if version >= 7:
            gone = array([pack(">i", index) for index in asked.forgotten])
            sent += array([topic("orders") + gone + tags] if asked.forgotten else [])
        sent += (b"\1" if flexible else b"\0\0") if version >= 11 else b""
        return sent + tags

    def state(self) -> list[Any]:
        """Sessions and logs."""
        sessions = self.env.broker.fetch_sessions
        found: list[Any] = [sessions.partition_count, self.env.broker.outgoing.reserved]
        for number, session in sessions._sessions.items():
            found.append(
                (number, session.epoch, session.last_used, session.is_in_use, session.owner)
            )
            found.append((session.uses_topic_ids, session.counted_partitions))
            found.append([cached.key for cached in session.pending])
            for key, cached in session.partitions.items():
                found.append((key, cached.requested, cached.topic_id, cached.log_size))
                found.append((cached.sent_high_watermark, cached.sent_start_offset))
                found.append(cached.partition is not None)
        for partition in self.partitions.values():
            log = partition.log
            found.append((log.start_offset, log.end_offset, len(log.status.watchers)))
            found.append(partition._empty_ranges)
        return found


def keep(log: Any, kind: str) -> None:
    """Where the store has the entries from now on, and how."""
    for name in ("read_run", "read_resident", "read"):
        vars(log).pop(name, None)
    if kind == "joined":
        return
    log.read_run = lambda *_, **__: None
    if kind == "not in memory":
        stored = log.read_resident

        async def read(offset: int, max_bytes: int) -> Any:
            return stored(offset, max_bytes)

        log.read = read
        log.read_resident = lambda offset, _: None if offset < log.end_offset else []


@contextmanager
def implementation(name: str) -> Iterator[None]:
    """Serve Fetch by this implementation."""
    wire = "python" if name in ("coroutine", "at once") else "cython"
    in_python: Callable[..., Any] = partial(handler.fetch_records, magic=None)
    with pytest.MonkeyPatch.context() as patch:
        # As a real store, which keeps what it is given.
        patch.setattr(memory_store, "copy_of", lambda entry: entry)
        # Topic ids are in the requests and replies.
        ids = (uuid.UUID(int=number) for number in count(1))
        patch.setattr(uuid, "uuid4", ids.__next__)
        use(wire, patch)
        if name == "coroutine":
            patch.setattr(FetchReader, "read_at_once", lambda *_: None)
        if name != "compiled":
            patch.setattr(handler, "fetch_format_2", in_python)
        yield


def implementations() -> list[str]:
    found = ["at once"]
    if compiled.KERNEL == "cython":
        found.append("at once, repeated")
    if handler.compiled is not None:
        found.append("compiled")
    return found


def outcome(conversation: Conversation) -> tuple[Any, ...]:
    gateway = Gateway(conversation)
    for step in conversation.steps:
        if isinstance(step, Asked):
            gateway.ask(step)
        else:
            gateway.change(step)
    state = gateway.state()
    gateway.scenario.disconnect(gateway.consumer)
    assert not gateway.env.bugs
    rows = [row | {"conversion_cpu_us": "varies"} for row in gateway.scenario.rows("usage")]
    return gateway.replies, state, rows


@settings(max_examples=scaled(100), deadline=None)
@given(CONVERSATIONS)
def test_all_implementations_of_fetch_are_equal(conversation: Conversation) -> None:
    with implementation("coroutine"):
        expected = outcome(conversation)
    for name in implementations():
        with implementation(name):
            found = outcome(conversation)
        for part, expected_part in zip(found, expected, strict=True):
            assert part == expected_part, name
