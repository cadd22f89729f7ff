"""Fuzz targets: every entry point of `compat.message_sets`, and both implementations of its loops.

A target returns nothing. It raises if there is a defect: an exception other than RecordsError, or
two implementations that differ.
"""

from __future__ import annotations

import contextlib
import importlib
import zlib
from collections.abc import Callable
from struct import pack_into, unpack_from
from types import ModuleType

import crc32c

from compat.message_sets import (
    check_message_set,
    cut,
    down_convert,
    filter_records,
    first_at_or_after,
    fix_lz4_checksums,
    newest_timestamp,
    read_records,
    record_keys,
    up_convert,
)
from compat.message_sets.down_conversion import convert_single
from records import RecordsError, _pure, empty_batch
from records.codec_libraries import find_gzip_functions, find_snappy_functions
from tests.fuzz.buffers import exact

LIMIT = 1 << 20

kernel: ModuleType | None
try:
    kernel = importlib.import_module("records._kernel")
except ImportError:
    kernel = None
else:
    # `records.kernel` sets snappy later than this, and neither if KOPGATE_PURE_PYTHON is set.
    if snappy := find_snappy_functions():
        kernel.use_snappy(*snappy)
    if gzip := find_gzip_functions():
        kernel.use_gzip(*gzip)


def check_and_stamp(payload: bytes) -> None:
    checked = check_message_set(payload, max_decompressed_bytes=LIMIT)
    stamped = checked.stamp(bytearray(payload), 1000, None)
    # Accepted records are readable, have the assigned offsets, and can be down-converted.
    assert [one.offset for one in read_records(stamped)] == list(
        range(1000, 1000 + checked.count)
    ) or not checked.count
    if checked.count:
        down_convert(stamped, 0)
        up_convert(stamped)


def down_convert_to_0(payload: bytes) -> None:
    list(read_records(down_convert(payload, 0, max_decompressed_bytes=LIMIT) or _NOTHING))


def down_convert_to_1(payload: bytes) -> None:
    list(read_records(down_convert(payload, 1, max_decompressed_bytes=LIMIT) or _NOTHING))


ENTRANCES: tuple[Callable[[bytes], object], ...] = (
    check_and_stamp,
    down_convert_to_0,
    down_convert_to_1,
    lambda payload: up_convert(payload, max_decompressed_bytes=LIMIT),
    lambda payload: up_convert(
        payload, base_offset=9, log_append_time=5, max_decompressed_bytes=LIMIT
    ),
    lambda payload: list(read_records(payload, max_decompressed_bytes=LIMIT)),
    lambda payload: first_at_or_after(payload, 1000, max_decompressed_bytes=LIMIT),
    lambda payload: filter_records(
        payload, lambda offset, *_: offset % 2 == 0, max_decompressed_bytes=LIMIT
    ),
    lambda payload: cut(payload, 3, 50),
    lambda payload: list(record_keys(payload, max_decompressed_bytes=LIMIT)),
    newest_timestamp,
    empty_batch,
    fix_lz4_checksums,
)

CALLS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("scan", (-1, False)),
    ("scan", (1, True)),
    ("plain_run", (0,)),
    ("cut", (3, 50)),
    ("stamp", (1000, None)),
    ("stamp", (1000, 5)),
    ("down_messages", (0,)),
    ("down_messages", (2**63 - 5,)),
    ("up_messages", (0, 0, 0, 5, None)),
    ("up_messages", (1, 3, 0, -(2**63), 5)),
    ("down_batch", (2, 10, 100, 1000, None, 1, False)),
    ("down_batch", (3, 2**62, 2**31 - 1, 2**63 - 9, None, 0, False)),
    ("down_batch", (1, 0, 0, 0, 7, 1, True)),
)


def entry_points(payload: bytes) -> None:
    """The first byte selects the entry point and whether checksums are repaired to reach later
    checks.
    """
    if not payload:
        return
    entrance = ENTRANCES[payload[0] // 2 % len(ENTRANCES)]
    content = payload[1:] if payload[0] & 1 else repaired(payload[1:])
    with contextlib.suppress(RecordsError):
        entrance(content)


def agreement(payload: bytes) -> None:
    """The first byte selects the loop and whether checksums are repaired."""
    if not payload or kernel is None:
        return
    name, arguments = CALLS[payload[0] // 2 % len(CALLS)]
    content = payload[1:] if payload[0] & 1 else repaired(payload[1:])
    ours, theirs = (
        _outcome(getattr(module, name), content, arguments) for module in (_pure, kernel)
    )
    assert ours == theirs, (name, ours, theirs)


def whole_batches(payload: bytes) -> None:
    """The kernel's single-call conversion of a batch equals the generic one, apart from
    compression.
    """
    if not payload or kernel is None:
        return
    magic = payload[0] & 1
    content = exact(repaired(payload[1:]))
    (made,) = kernel.down_all((content,), magic, LIMIT)
    if made is not None:
        ordinary = convert_single(content, magic, LIMIT)
        assert list(read_records(made)) == list(read_records(ordinary))
        # Everything of a wrapper except size and checksum, up to the length of its value.
        end = 22 + 8 * magic
        assert made == ordinary or made[16:end] == ordinary[16:end]
    run = kernel.down_run((content, content), 2, magic, 0, LIMIT, False, LIMIT, LIMIT)
    if run is not None:
        assert run[0] == made + made
    # Lengths that the checksums do not protect.
    kernel.down_run(
        (exact(payload[1:]),), payload[0] // 2 % 4, magic, len(payload), 100, True, LIMIT, LIMIT
    )


def repaired(payload: bytes) -> bytes:
    """The same bytes with valid checksums: of each message whose size fits, and of a batch with its
    length.
    """
    fixed = bytearray(payload)
    if len(fixed) >= 61 and fixed[16] == 2:
        pack_into(">i", fixed, 8, len(fixed) - 12)
        pack_into(">I", fixed, 17, crc32c.crc32c(bytes(fixed[21:])))
        return bytes(fixed)
    position = 0
    while position + 26 <= len(fixed):
        (size,) = unpack_from(">i", fixed, position + 8)
        end = position + 12 + size
        if size < 14 or end > len(fixed):
            break
        pack_into(">I", fixed, position + 12, zlib.crc32(fixed[position + 16 : end]))
        position = end
    return bytes(fixed)


def _outcome(
    function: Callable[..., object], content: bytes, arguments: tuple[object, ...]
) -> object:
    """The result or exception, and the final contents of the buffer."""
    buffer = exact(content)
    try:
        return function(buffer, *arguments), bytes(buffer)
    except RecordsError as error:
        return type(error), str(error), bytes(buffer)


_NOTHING = down_convert(bytes(16) + b"\x00" + bytes(20), 0)
TARGETS: dict[str, Callable[[bytes], None]] = {
    "entry_points": entry_points,
    "agreement": agreement,
    "whole": whole_batches,
}


def seeds() -> list[bytes]:
    """Valid sets of every format and codec, prefixed with the selecting byte, and the records of a
    batch.
    """
    import cramjam

    from tests.records.sample_records import SNAPPY, Sample, batch, message_set, wrapper

    found = [
        Sample(
            n,
            1000 - n,
            b"k" * (n % 3) or None,
            b"value" * n if n % 4 else None,
            ((b"h", b"v"),) * (n % 2),
        )
        for n in range(4)
    ]
    sets = [
        batch(found[:3])[61:],
        batch(found),
        message_set(found, magic=0),
        message_set(found, magic=1),
    ]
    sets += [batch(found, codec=codec) for codec in (1, 2, 3, 4)]
    block = bytes(cramjam.snappy.compress_raw(sets[0]))
    sets.append(batch(found[:3], content=block, attributes=SNAPPY))
    sets += [wrapper(found, codec, magic=magic) for codec in (1, 2, 3) for magic in (0, 1)]
    sets.append(message_set(found, magic=1) + wrapper(found, 1, magic=1))
    return [b"\0" + content for content in sets]
