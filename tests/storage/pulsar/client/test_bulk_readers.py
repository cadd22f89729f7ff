"""Readers through the library's C API, beside those of its binding."""

from __future__ import annotations

import gc
import os

import msgspec
import pulsar as library
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_twisted import ensureDeferred

from storage.log import LogClosed, UnknownTopic
from storage.pulsar.client import bulk_client
from storage.pulsar.client.bulk_readers import SingleReader
from storage.pulsar.log.entry_messages import HEADER, Header, parse_header
from tests.storage.pulsar.partition_topics import header, numbered, offsets

ALL = 1 << 30
#: Above and below the size from which payloads are not copied.
SIZES = (20_000, 100)

integers = st.one_of(
    st.integers(-2, 9), st.integers(-(1 << 63) - 1, 1 << 63), st.just((1 << 63) - 1)
)
headers = st.builds(
    lambda numbers: msgspec.json.encode([1, *numbers]).decode(),
    st.lists(integers, min_size=4, max_size=9),
)
texts = st.one_of(
    headers,
    st.builds(lambda text, more: text + more, headers, st.sampled_from([" ", "]", ",", "0"])),
    st.text(st.sampled_from('[]0123456789,-+.e "1'), max_size=30),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
)


def parsed(text: str) -> Header | None:
    return parse_header({HEADER: text})


@given(text=texts)
def test_compiled_module_reads_headers_as_the_store_does(text):
    if bulk_client.compiled is None:
        pytest.skip("the compiled module is not built")
    assert bulk_client.compiled.header_in(text.encode()) == parsed(text)


@pytest.mark.parametrize(
    "one",
    [
        Header(0, -1, -1, 0, -1),
        Header(5, 9, 1_700_000_000_000, 123, 4, 1_700_000_000_001, 3, 2),
        Header(0, 0, (1 << 63) - 1, 0, 0, (1 << 63) - 1),
    ],
)
def test_compiled_module_reads_headers_of_the_store(compiled, one):
    text = one.properties("kafka")[HEADER]
    assert compiled.header_in(text.encode()) == one == parsed(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"a word",
        b"\xff",
        b"[1,-1,0,0,0,0]",
        b"[2,0,0,-1,0,0]",
        b"[1,5,3,-1,0,0]",
        b"[1,0,0,7,0,0,6]",
        b"[1,0,0,-1,0,0,-1,0]",
        b"[1,00,0,-1,0,0]",
        b"[1,0,0,-1,0,0,-1,1,0,0]",
        b"[1,0,0,-1,0," + b"9" * 400 + b"]",
    ],
)
def test_header_of_another_writer_is_none(compiled, text):
    assert compiled.header_in(text) is None


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("08 07 10 00 18 00", (7, 0)),
        ("08 ffffffffffffffffff01 10 8001", (-1, 128)),
        ("08 07 10", None),
        ("08 07 10 80", None),
        ("08 80808080808080808080 10 00", None),
        ("10 00 08 07", None),
        ("", None),
    ],
)
def test_position_is_the_first_two_fields_of_a_message_id(compiled, text, position):
    assert compiled.position_in(bytes.fromhex(text)) == position


def test_library_without_a_function_is_refused(compiled):
    with pytest.raises(ImportError, match="pulsar_"):
        compiled.resolve(os.fsencode(msgspec._core.__file__))
    with pytest.raises(ImportError, match="not loaded"):
        compiled.resolve(b"/nowhere.so")


@pytest.mark.peer
@pytest.mark.parametrize("size", SIZES)
@ensureDeferred
async def test_messages_are_the_same_through_both_interfaces(partition, open_side, kind, size):
    written = numbered(0, 9, size=size)
    places = partition.write(written)
    side = await open_side()
    found = await side.reader(partition).read(0, 9, ALL)
    assert [(one.header, bytes(one.payload)) for one in found] == written
    assert [one.position for one in found] == places


@pytest.mark.peer
@ensureDeferred
async def test_reader_starts_at_first_and_later_messages_of_a_ledger(partition, open_side, kind):
    places = []
    for begin in range(0, 9, 3):
        places += partition.write(numbered(begin, begin + 3))
        partition.roll()
    side = await open_side()
    # The smallest queue: the broker must not wait for room for a message that is left out.
    for start, place in enumerate(places):
        reader = await side.client.run(
            lambda place=place: side.client.bulk_reader(partition.topic, place, 1)
        )
        assert isinstance(reader, SingleReader) == (kind == "binding")
        found = []
        while len(found) < 9 - start:
            found += await side.client.run(lambda reader=reader: reader.read(ALL, 9, 60_000, 9))
        assert [one.base_offset for one, *_ in found] == list(range(start, 9))
        await side.client.run(reader.close)


@pytest.mark.peer
@ensureDeferred
async def test_read_ends_at_each_of_its_limits(partition, open_side, compiled):
    partition.write(numbered(0, 9, size=100))
    side = await open_side()
    reader = await side.client.run(lambda: side.client.bulk_reader(partition.topic, None, 64))
    found = []
    for room, end, most in ((150, ALL, 9), (ALL, 4, 9), (ALL, ALL, 2), (0, ALL, 9)):
        received = await side.client.run(
            lambda room=room, end=end, most=most: reader.read(room, end, 60_000, most)
        )
        found.append([one.base_offset for one, *_ in received])
    assert found == [[0, 1], [2, 3], [4, 5], [6]]
    await side.client.run(reader.close)


@pytest.mark.peer
@ensureDeferred
async def test_read_without_messages_times_out(partition, open_side, kind):
    side = await open_side()
    reader = await side.client.run(lambda: side.client.bulk_reader(partition.topic, None, 1))
    timeouts = []

    def read() -> None:
        try:
            reader.read(ALL, ALL, 1, 9)
        except library.Timeout as error:
            timeouts.append(error)

    await side.client.run(read)
    assert len(timeouts) == 1
    assert not await side.client.run(reader.has_message_available)
    partition.write(numbered(0, 1))
    assert await side.client.run(reader.has_message_available)


@pytest.mark.peer
@ensureDeferred
async def test_read_whose_wait_was_over_is_not_followed_by_another_wait(
    partition, open_side, compiled
):
    """The caller asks for the end of the topic instead."""
    side = await open_side()
    reader = await side.client.run(lambda: side.client.bulk_reader(partition.topic, None, 64))
    partition.write(numbered(0, 3))

    def received(wait_ms: int) -> list[int]:
        try:
            return [one.base_offset for one, *_ in reader.read(ALL, ALL, wait_ms, 9)]
        except library.Timeout:
            return []

    found = []
    while len(found) < 3:
        found += await side.client.run(lambda: received(10))
    partition.write(numbered(3, 12))
    assert await side.client.run(lambda: received(60_000)) == []
    # The error is raised once.
    assert (await side.client.run(lambda: received(60_000)))[0] == 3
    await side.client.run(reader.close)


@pytest.mark.peer
@ensureDeferred
async def test_payload_outlives_its_reader_and_its_client(partition, open_side, kind):
    written = [(header(0), os.urandom(300_000)), (header(1), os.urandom(20_000))]
    partition.write(written)
    side = await open_side()
    payloads = [one.payload for one in await side.reader(partition).read(0, 2, ALL)]
    # Slices of an entry are sent, too.
    slices = [memoryview(one)[10:] for one in payloads]
    await side.close()
    del side, payloads
    gc.collect()
    assert [bytes(one) for one in slices] == [payload[10:] for _, payload in written]


@pytest.mark.peer
@ensureDeferred
async def test_topic_that_does_not_exist_is_unknown(partition, open_side, kind):
    side = await open_side()
    with pytest.raises(UnknownTopic):
        await side.client.run(lambda: side.client.bulk_reader(f"{partition.topic}-no", None, 1))


@pytest.mark.peer
@ensureDeferred
async def test_no_reader_is_opened_by_a_closed_client(partition, open_side, kind):
    side = await open_side()
    partition.write(numbered(0, 1))
    assert offsets(await side.reader(partition).read(0, 1, ALL)) == [0]
    await side.client.close()
    with pytest.raises(LogClosed):
        side.client.bulk_reader(partition.topic, None, 1)
