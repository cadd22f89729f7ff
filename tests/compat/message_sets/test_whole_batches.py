"""Batches converted in one kernel call, in each codec that the kernel handles: same output as the
general path, which handles everything unusual or invalid.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import down_convert_all, read_records
from compat.message_sets.down_conversion import convert_single
from records import RecordsError, RecordsTooLarge
from records.layout import Codec
from tests.compat.message_sets import streams
from tests.compat.message_sets.streams import CONTENT, GOOD, MANY
from tests.compat.message_sets.whole_batches import (
    FUNCTIONS,
    HANDLED,
    LIMIT,
    content_of,
    convert_twice,
    convert_whole,
    fields_of,
    is_left_or_equal,
    kernel,
    needs,
)
from tests.records.kernels import kernel_only
from tests.records.sample_records import (
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    Sample,
    batch,
    message_set,
    random_samples,
    records_of,
)
from tests.records.strategies import damaged, magics, prop, samples

pytestmark = kernel_only


def each(argument: str, table: dict[int, dict[str, object]]) -> pytest.MarkDecorator:
    """Run a test with each entry of a table by codec."""
    return pytest.mark.parametrize(
        ("codec", argument),
        [
            pytest.param(codec, entry, id=f"{Codec(codec).name} {name}".lower(), marks=needs(codec))
            for codec, entries in table.items()
            for name, entry in entries.items()
        ],
    )


each_form = each("compress", {NONE: {"content": bytes}} | streams.FORMS)
each_compressed_form = each("compress", streams.FORMS)
each_kind_of_content = pytest.mark.parametrize(
    "letters", [b"ab", bytes(range(256))], ids=["shrinks", "does not shrink"]
)
each_magic = pytest.mark.parametrize("magic", [0, 1])


@prop
@given(samples(), magics, st.none() | st.integers(0, 2**42))
def test_uncompressed_output_equals_general_path(found, magic, append_time):
    ours, ordinary = convert_twice(batch(found, append_time=append_time), magic)
    assert ours == ordinary


@each_compressed_form
@prop
@given(samples(), magics, st.none() | st.integers(0, 2**42))
def test_output_equals_general_path(codec, compress, found, magic, append_time):
    stream = compress(records_of(found))
    ours, ordinary = convert_twice(
        batch(found, content=stream, attributes=codec, append_time=append_time), magic
    )
    assert list(read_records(ours)) == list(read_records(ordinary))
    assert fields_of(ours) == fields_of(ordinary)


@pytest.mark.parametrize(
    ("count", "size"),
    [(1, 0), (15, 1024), (1, 32_768), (1, 65_600), (3, 65_000), (3, 300_000), (300, 1024)],
)
@each_kind_of_content
@each_magic
@each_compressed_form
def test_content_of_any_size_is_complete(codec, compress, magic, letters, count, size):
    found = random_samples(count, size, letters=letters)
    payload = batch(found, content=compress(records_of(found)), attributes=codec)
    ours, ordinary = convert_twice(payload, magic)
    # Inner offsets are relative in format 1, and here they begin with 0.
    assert content_of(ours) == message_set(found, magic=magic)
    assert list(read_records(ours)) == list(read_records(ordinary))
    most = {LZ4: 1.02, GZIP: 1.05, SNAPPY: 1.1}[codec]
    assert len(ours) < most * len(ordinary) + 10


@each("stream", streams.OTHER_HEADERS)
def test_header_fields_that_do_not_matter_are_ignored(codec, stream):
    ours, ordinary = convert_twice(batch(GOOD, content=stream, attributes=codec))
    assert list(read_records(ours)) == list(read_records(ordinary))


@each("stream", streams.UNUSUAL)
def test_unusual_stream_is_converted_by_the_general_path(codec, stream):
    payload = batch(MANY, content=stream, attributes=codec)
    assert convert_whole(payload) is None
    (ordinary,) = down_convert_all([payload], 1)
    assert [one.value for one in read_records(ordinary)] == [one.value for one in MANY]


@each_magic
@each("stream", streams.INVALID)
def test_invalid_stream_is_left_to_the_general_path(codec, stream, magic):
    payload = batch(GOOD, content=stream, attributes=codec)
    assert convert_whole(payload, magic) is None
    (refused,) = down_convert_all([payload], magic)
    assert isinstance(refused, RecordsError)


@each_form
def test_every_truncated_stream_is_left_to_the_general_path(codec, compress):
    stream = compress(CONTENT)
    payloads = [
        batch(GOOD, content=stream[:size], attributes=codec) for size in range(len(stream) + 1)
    ]
    assert [one for one in payloads if convert_whole(one) is not None] == payloads[-1:]


@each_form
@prop
@given(st.data(), magics)
def test_damaged_stream_is_converted_as_by_the_general_path(codec, compress, data, magic):
    """The checksum of the batch does not protect against hostile producers."""
    found = random_samples(5, 60, letters=b"abc")
    stream = data.draw(damaged(compress(records_of(found))))
    assert is_left_or_equal(batch(found, content=stream, attributes=codec), magic)


@pytest.mark.parametrize(
    ("count", "attributes"),
    [(4, 0), (2, 0), (2**31 - 1, 0), (-1, 0), (3, 0x20)],
    ids=["too few", "too many", "very many", "a negative count", "control"],
)
@each_magic
@each_form
def test_invalid_header_is_left_to_the_general_path(codec, compress, magic, count, attributes):
    payload = batch(GOOD, content=compress(CONTENT), attributes=codec | attributes, count=count)
    assert convert_whole(payload, magic) is None


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(batch(GOOD)[:60], id="half a header"),
        pytest.param(batch(GOOD)[:-1], id="cut short"),
        pytest.param(batch(GOOD) + b"\0", id="too long"),
        pytest.param(batch(GOOD)[:-1] + b"\xff", id="checksum"),
        pytest.param(batch([], base_offset=5, last_offset=9), id="empty"),
        pytest.param(batch(GOOD, codec=ZSTD), id="another codec"),
        pytest.param(batch(GOOD, attributes=7), id="unknown codec"),
        pytest.param(batch(GOOD, content=b"nonsense"), id="nonsense"),
        pytest.param(message_set(GOOD, magic=1), id="a message set"),
    ],
)
@each_magic
def test_other_or_invalid_unit_is_left_to_the_general_path(payload, magic):
    assert convert_whole(payload, magic) is None


@each_kind_of_content
@each_compressed_form
def test_limit_is_exact(codec, compress, letters):
    found = random_samples(100, 1024, letters=letters)
    content = records_of(found)
    payload = batch(found, content=compress(content), attributes=codec)
    assert convert_whole(payload, limit=len(content)) is not None
    assert convert_whole(payload, limit=len(content) - 1) is None


def test_uncompressed_records_have_no_limit():
    assert convert_whole(batch(GOOD), limit=1) is not None


@each_compressed_form
def test_bomb_is_not_decompressed(codec, compress):
    found = [Sample(0, 0, None, bytes(50 << 20))]
    payload = batch(found, content=compress(records_of(found)), attributes=codec)
    assert convert_whole(payload) is None
    with pytest.raises(RecordsTooLarge):
        convert_single(payload, 1, LIMIT)


@each_kind_of_content
def test_many_units_return_in_order(letters):
    units = [
        batch(random_samples(15, 1024 + n, letters=letters), codec=codec)
        for n, codec in enumerate((NONE, LZ4, GZIP, SNAPPY, ZSTD) * 20)
    ]
    units.insert(30, message_set(random_samples(2, 10), magic=0))
    outcomes = down_convert_all([*units[:7], b"junk", *units[7:]], 1)
    assert isinstance(outcomes.pop(7), RecordsError)
    assert outcomes[30] == units[30]
    for unit, outcome in zip(units, outcomes, strict=True):
        assert [one.value for one in read_records(outcome)] == [
            one.value for one in read_records(unit)
        ]


@pytest.mark.parametrize("codec", HANDLED[1:])
def test_codec_is_left_to_the_general_path_without_its_functions(codec):
    payload = batch(GOOD, codec=codec)
    use, functions = FUNCTIONS[codec]
    use(*[0] * len(functions))
    try:
        assert convert_whole(payload) is None
        assert kernel.down_run([payload], 1, 1, 0, LIMIT, False, 100, LIMIT) is None
    finally:
        use(*functions)
    assert convert_whole(payload) is not None


def test_buffers_are_released():
    """A bytearray with an exported buffer cannot be resized."""
    units = [bytearray(batch(GOOD, codec=LZ4)), bytearray(b"junk")]
    kernel.down_all(units, 1, LIMIT)
    with pytest.raises(TypeError):
        kernel.down_all([units[0], 7], 1, LIMIT)
    for unit in units:
        unit.append(0)
