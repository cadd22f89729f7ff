"""The relay recognizes every request, however its bytes are divided."""

from __future__ import annotations

import struct

import pytest

from tests.legacy_clients.relay import RequestParser

# Hand-written: Metadata v1 with a client id and Fetch v0 without: size, key, version, correlation
# id, client id, the rest.
NAMED = bytes.fromhex("00000011 0003 0001 00000007 0003") + b"old" + bytes(4)
UNNAMED = bytes.fromhex("0000000c 0001 0000 00000008 ffff 0000")


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_requests_are_recognized_in_chunks_of_any_size(step: int) -> None:
    heard: list[tuple[str, int, int]] = []
    requests = RequestParser(lambda *one: heard.append(one))
    wire = NAMED + UNNAMED + NAMED[:-1]
    for at in range(0, len(wire), step):
        requests.feed(wire[at : at + step])
    assert heard == [("old", 3, 1), ("", 1, 0)]


def test_sizes_of_the_examples_are_correct() -> None:
    assert [struct.unpack(">i", one[:4])[0] for one in (NAMED, UNNAMED)] == [
        len(NAMED) - 4,
        len(UNNAMED) - 4,
    ]
