"""Input of fuzz targets in memory of its exact size."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


def exact(content: bytes | bytearray) -> memoryview:
    """A writable copy, without the NUL that Python puts behind bytes.

    So the address sanitizer reports each access beyond the end.
    """
    return memoryview(array("B", content))


def parts(content: bytes, sizes: Iterable[int]) -> list[bytes]:
    """`content` in parts of these sizes, as far as it reaches, and what is left."""
    found = []
    for size in sizes:
        found.append(content[:size])
        content = content[size:]
    return [*found, content]
