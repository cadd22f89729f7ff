"""Splits a byte stream into length-prefixed frames. Each byte is copied once.

A frame is an int32 length (big-endian, not counting itself) and that many bytes. Each returned
frame is a separate bytearray, so that its owner can write offsets into its records in place and
free it independently.
"""

from __future__ import annotations

from struct import Struct

from gateway.protocol.wire import compiled

_LENGTH = Struct(">i")


class FrameSplitter:
    """Splits received bytes into frames.

    `limit` is the largest length in bytes. It may change between calls: it is small before a login
    and large after it. `partial_bytes` is how much was received of an incomplete frame, including
    its length field; 0 if there is none. `refusal` is why the stream cannot be split further: a
    length is negative or above the limit. The frames before it are valid.
    """

    __slots__ = ("_frame", "_prefix", "_remaining", "limit", "partial_bytes", "refusal")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._prefix = b""
        self._frame = bytearray()
        self._remaining = 0
        self.partial_bytes = 0
        self.refusal: str | None = None

    @property
    def partial_start(self) -> bytes:
        """The first bytes received of an incomplete frame, at most two, after its length field."""
        return bytes(self._frame[:2])

    def discard_partial(self) -> None:
        """Free the bytes of a frame that will not be completed."""
        self._prefix, self._frame, self._remaining = b"", bytearray(), 0
        self.partial_bytes = 0

    def feed(self, chunk: bytes | memoryview) -> list[bytearray]:
        """Return the frames that `chunk` completes, in order, up to an invalid length."""
        frames: list[bytearray] = []
        position = 0
        if not self.partial_bytes:
            whole = compiled.frames(chunk, self.limit)
            if whole is not None:
                frames, position = whole
                if position == len(chunk):
                    return frames
        view, end = memoryview(chunk), len(chunk)
        while position < end:
            if self._remaining:
                taken = min(self._remaining, end - position)
                self._frame += view[position : position + taken]
                position += taken
                self._remaining -= taken
                if not self._remaining:
                    frames.append(self._frame)
                    self._frame = bytearray()
                continue
            if self._prefix or end - position < 4:
                taken = min(4 - len(self._prefix), end - position)
                self._prefix += view[position : position + taken]
                position += taken
                if len(self._prefix) < 4:
                    break
                (length,) = _LENGTH.unpack(self._prefix)
                self._prefix = b""
            else:
                (length,) = _LENGTH.unpack_from(view, position)
                position += 4
            if not 0 <= length <= self.limit:
                self.refusal = f"frame length {length} is outside 0..{self.limit}"
                break
            if length <= end - position:
                frames.append(bytearray(view[position : position + length]))
                position += length
            else:
                self._remaining = length
        self.partial_bytes = 4 + len(self._frame) if self._remaining else len(self._prefix)
        return frames
