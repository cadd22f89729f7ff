"""Cache of encoded replies for repeated requests.

Encoding the metadata of a thousand partitions takes milliseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

#: Limits of the cache: replies with all topics of a large cluster (10,000 partitions, 0.5 MB) in
#: the versions of ten generations of clients, and those of many clients that request a few topics
#: each.
MAX_BYTES = 16 << 20
MAX_REPLIES = 4096


class ReplyCache:
    """Encoded reply bodies by request, least recently used first.

    All of them belong to one version of the data; a newer version clears the cache.
    """

    __slots__ = ("_bodies", "_max_bytes", "_version", "cached_bytes")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bodies: OrderedDict[Hashable, bytes] = OrderedDict()
        self._version = -1
        self.cached_bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    def get(self, key: Hashable, version: int) -> bytes | None:
        """Return the body cached for this key and version."""
        if version != self._version:
            return None
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
        return body

    def put(self, key: Hashable, version: int, body: bytes) -> None:
        """Cache a body. Evicts the least recently used ones over the limits."""
        if version != self._version:
            self._bodies.clear()
            self.cached_bytes = 0
            self._version = version
        self.cached_bytes += len(body) - len(self._bodies.pop(key, b""))
        self._bodies[key] = body
        while self.cached_bytes > self._max_bytes or len(self._bodies) > MAX_REPLIES:
            _, oldest = self._bodies.popitem(last=False)
            self.cached_bytes -= len(oldest)
