"""Length-prefixed frames out of a byte stream, each byte copied once.

A frame is an int32 length (big-endian, not counting itself) and that many bytes. Every frame handed out is a bytearray of its own, so that
its owner may stamp records in place and let it go whole.
"""

from __future__ import annotations

from struct import Struct

from gateway.protocol.errors import Refused

_LENGTH = Struct(">i")


class FrameSplitter:
    """Cuts what arrives into frames. `limit` (bytes) may be changed between calls: it is small before a log-in and large after."""

    __slots__ = ("_frame", "_prefix", "_remaining", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._prefix = b""
        self._frame = bytearray()
        self._remaining = 0

    @property
    def partial_bytes(self) -> int:
        """How many bytes have come of a frame that is not whole yet, its length among them; 0 where none has begun."""
        return 4 + len(self._frame) if self._remaining else len(self._prefix)

    @property
    def partial_start(self) -> bytes:
        """The first bytes, two at most, that have come of a frame that is not whole yet, its length not among them."""
        return bytes(self._frame[:2])

    def discard_partial(self) -> None:
        """Release what has come of a frame that will never be whole."""
        self._prefix, self._frame, self._remaining = b"", bytearray(), 0

    def feed(self, chunk: bytes | memoryview) -> list[bytearray]:
        """The frames that `chunk` completes, in order. Raises Refused for a length below zero or above the limit."""
        frames: list[bytearray] = []
        view = memoryview(chunk)
        position, end = 0, len(view)
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
                raise Refused(f"a frame of {length} bytes where at most {self.limit} are allowed")
            if length <= end - position:
                frames.append(bytearray(view[position : position + length]))
                position += length
            else:
                self._remaining = length
        return frames
