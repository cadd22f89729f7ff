"""Compression and bounded decompression in the variants that clients of all ages read and write.

The input is untrusted: neither the output nor intermediate memory exceeds the limit. Compression
levels favour speed, because conversion compresses again for each old consumer: level 1 of igzip is
five times as fast as zlib's level 6, for 10-15 % more bytes. All libraries release the GIL.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

import cramjam
import lz4.frame
import zstandard
from isal import igzip_lib

from records import lz4_header
from records.errors import CorruptRecords, NoMemory, RecordsTooLarge, UnsupportedCodec
from records.layout import LENGTH, Buffer, Codec

MAX_DECOMPRESSED_BYTES = 100 * 1024 * 1024
"""Default limit for one stored unit: the size of a whole request in Kafka
(socket.request.max.bytes).
"""

_GZIP_LEVEL = 1
_ZSTD_LEVEL = 1
_GZIP_START = b"\x1f\x8b"

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
"""Framing of snappy-java: magic, version 1, compatible with version 1; blocks with 4-byte lengths
follow.
"""
XERIAL_BLOCK_BYTES = 32 * 1024
MAX_XERIAL_BLOCKS = 100_000
"""Limit per stream. It allows 3 GiB in full blocks; tiny blocks cost as much work each as full
ones.
"""

MAX_SNAPPY_EXPANSION = 22
"""A 3-byte snappy element copies at most 64 bytes, so a block cannot expand further than this."""

MAX_LZ4_EXPANSION = 256
"""An lz4 block expands at most 255 times.

If that is within the limit, the frame is decompressed in one call, at a fifth of the cost.
"""

MAX_GZIP_MEMBERS = 16
"""Gzip members per stream. Producers write one; each member costs a pass over the rest of the
stream.
"""

_FIRST_READ = 64 * 1024
_LIBRARY_ERRORS: tuple[type[Exception], ...] = (
    igzip_lib.IsalError,  # type: ignore[assignment]  # a class; the stub says instance
    cramjam.DecompressionError,
    zstandard.ZstdError,
    RuntimeError,
    ValueError,
    OverflowError,
)


class _Decompressor(Protocol):
    """Interface shared by lz4's and igzip's incremental decompressors, as in the standard
    library.
    """

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: Buffer, max_length: int) -> bytes: ...


def compress(codec: Codec, content: Buffer) -> bytes:
    """Raises UnsupportedCodec for Codec.NONE."""
    match codec:
        case Codec.GZIP:
            return bytes(igzip_lib.compress(content, _GZIP_LEVEL, flag=igzip_lib.COMP_GZIP))
        case Codec.SNAPPY:
            return _compress_xerial(content)
        case Codec.LZ4:
            frame: bytes = lz4.frame.compress(
                content,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            )
            return frame
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(content)
        case _:
            raise UnsupportedCodec(f"codec {codec} cannot compress")


def decompress(codec: Codec, content: Buffer, limit: int) -> bytes:
    """Decompress `content` to at most `limit` bytes.

    Bytes after the end of a gzip, lz4 or zstd stream are ignored, as in Java. Raises
    CorruptRecords, UnsupportedCodec, and RecordsTooLarge before more than `limit` bytes are
    produced.
    """
    reader = _READERS.get(codec)
    if reader is None:
        raise UnsupportedCodec(f"codec {codec} cannot decompress")
    try:
        return reader(memoryview(content), limit)
    except (CorruptRecords, RecordsTooLarge):
        raise
    except MemoryError as error:
        raise NoMemory(f"out of memory while decompressing {codec.name.lower()}") from error
    except _LIBRARY_ERRORS as error:
        raise CorruptRecords(f"{codec.name.lower()}: {error}") from error


def _read_gzip(content: memoryview, limit: int) -> bytes:
    """Read all members of the stream; trailing bytes that are not a member are ignored, as in
    GZIPInputStream.
    """
    parts: list[bytes] = []
    rest: Buffer = content
    for _ in range(MAX_GZIP_MEMBERS):
        member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        part = _drain(member, rest, limit)
        limit -= len(part)
        parts.append(part)
        rest = member.unused_data
        if bytes(rest[:2]) != _GZIP_START:
            return b"".join(parts) if len(parts) > 1 else part
    raise CorruptRecords(f"gzip: more than {MAX_GZIP_MEMBERS} members")


def _read_snappy(content: memoryview, limit: int) -> bytes:
    if bytes(content[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _read_snappy_block(content, limit)
    position = len(_XERIAL_HEADER)
    if len(content) < position:
        raise CorruptRecords("snappy: truncated xerial header")
    blocks: list[bytes] = []
    while position < len(content):
        if len(content) - position < LENGTH.size:
            raise CorruptRecords("snappy: truncated block length")
        (size,) = LENGTH.unpack_from(content, position)
        position += LENGTH.size
        if not 0 < size <= len(content) - position:
            raise CorruptRecords("snappy: block extends beyond the end of the data")
        block = _read_snappy_block(content[position : position + size], limit)
        limit -= len(block)
        blocks.append(block)
        if len(blocks) > MAX_XERIAL_BLOCKS:
            raise CorruptRecords(f"snappy: more than {MAX_XERIAL_BLOCKS} blocks")
        position += size
    return b"".join(blocks)


def _read_snappy_block(block: memoryview, limit: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > MAX_SNAPPY_EXPANSION * len(block):
        raise CorruptRecords("snappy: impossible decompressed size of a block")
    if size > limit:
        raise _too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(block))


def _compress_xerial(content: Buffer) -> bytes:
    view = memoryview(content)
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += (LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _read_lz4(content: memoryview, limit: int) -> bytes:
    header = lz4_header.read(content)
    if len(content) * MAX_LZ4_EXPANSION <= limit and not lz4_header.has_content_size(content):
        whole = (
            content
            if content[len(header) - 1] == header[-1]
            else b"".join((header, content[len(header) :]))
        )
        return bytes(lz4.frame.decompress(whole))
    frame = lz4.frame.LZ4FrameDecompressor()
    frame.decompress(header, 1)
    return _drain(frame, content[len(header) :], limit)


def _read_zstd(content: memoryview, limit: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    with zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True) as stream:
        for step in _steps(len(content)):
            part = stream.read(min(step, limit + 1 - total))
            total += len(part)
            if total > limit:
                raise _too_large(limit)
            if not part:
                break
            parts.append(part)
    return b"".join(parts)


def _drain(stream: _Decompressor, content: Buffer, limit: int) -> bytes:
    """Decompress `content` to its end, in reads of growing size."""
    parts: list[bytes] = []
    total = 0
    for step in _steps(len(content)):
        part = stream.decompress(content, min(step, limit + 1 - total))
        content = b""
        total += len(part)
        if total > limit:
            raise _too_large(limit)
        parts.append(part)
        if stream.eof:
            break
        if stream.needs_input or not part:
            raise CorruptRecords("truncated compressed stream")
    return b"".join(parts) if len(parts) > 1 else parts[0]


def _steps(size: int) -> itertools.accumulate[int]:
    """Sizes of successive reads.

    The first read is enough for usual ratios and small enough that a false size causes no large
    allocation.
    """
    return itertools.accumulate(
        itertools.repeat(2), int.__mul__, initial=max(_FIRST_READ, 4 * size)
    )


def _too_large(limit: int) -> RecordsTooLarge:
    return RecordsTooLarge(f"decompressed records exceed {limit} bytes")


_READERS: dict[Codec, Callable[[memoryview, int], bytes]] = {
    Codec.GZIP: _read_gzip,
    Codec.SNAPPY: _read_snappy,
    Codec.LZ4: _read_lz4,
    Codec.ZSTD: _read_zstd,
}
