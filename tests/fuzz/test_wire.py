"""Decoders of all routed requests decode or refuse any bytes: no other exception, no hang, bounded
memory.
"""

from __future__ import annotations

import struct
import tracemalloc
from functools import cache

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

# Importing the handlers registers their routes.
from gateway import handlers as handlers
from gateway.protocol.errors import Refused
from gateway.protocol.forwarded import decode
from gateway.protocol.routes import ROUTES
from gateway.protocol.wire.header import RequestHeader, read_header
from gateway.protocol.wire.messages import FIRST_FLEXIBLE_VERSION, REQUESTS
from tests.examples import scaled
from tests.fuzz.requests import sample

pytestmark = pytest.mark.long

ALL = sorted(ROUTES)

#: Memory limit of a decoder: a multiple of the frame size plus a constant.
TIMES = 100
BESIDES = 256 << 10

HOSTILE_NUMBERS = [
    -1,
    -2,
    0,
    1,
    127,
    128,
    255,
    2**15 - 1,
    2**15,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
]


def attempt(key, version, frame, position=0):
    """True if a request was decoded, False if it was refused. Other exceptions propagate."""
    try:
        decode(
            ROUTES[key, version],
            bytearray(frame),
            RequestHeader(key, version, 1, None, position),
            scope=None,
        )
    except Refused:
        return False
    return True


@cache
def whole(key, version):
    return sample(REQUESTS[key], version)


@st.composite
def mutated(draw):
    """A request of some version, damaged in one to four places."""
    key, version = draw(st.sampled_from(ALL))
    frame = bytearray(whole(key, version))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, max(len(frame) - 1, 0)))
        match draw(st.sampled_from(["byte", "cut", "drop", "insert", "number", "repeat"])):
            case "byte" if frame:
                frame[position] = draw(st.integers(0, 255))
            case "cut":
                del frame[position:]
            case "drop":
                del frame[position : position + draw(st.integers(1, 8))]
            case "insert":
                frame[position:position] = draw(st.binary(max_size=12))
            case "number":
                number = draw(st.sampled_from(HOSTILE_NUMBERS))
                size = draw(st.sampled_from([2, 4, 8]))
                frame[position : position + size] = (number % (1 << 8 * size)).to_bytes(size, "big")
            case "repeat":
                frame[position:position] = frame[position : position + 16] * draw(
                    st.integers(1, 20)
                )
    return key, version, bytes(frame)


@pytest.mark.parametrize(
    ("key", "version"), ALL, ids=[f"{key.name}-{version}" for key, version in ALL]
)
def test_request_is_decoded_and_its_prefixes_never_crash(key, version):
    frame = whole(key, version)
    assert attempt(key, version, frame)
    for length in range(len(frame)):
        attempt(key, version, frame[:length])


@settings(max_examples=scaled(1000), suppress_health_check=[HealthCheck.too_slow])
@given(request=mutated())
def test_damaged_request_is_decoded_or_refused(request):
    attempt(*request)


@settings(max_examples=scaled(500))
@given(route=st.sampled_from(ALL), frame=st.binary(max_size=400))
@example(route=ALL[0], frame=b"")
def test_random_bytes_are_decoded_or_refused(route, frame):
    attempt(*route, frame)


@settings(max_examples=scaled(500))
@given(frame=st.binary(max_size=200))
def test_random_bytes_have_a_header_or_are_refused(frame):
    try:
        header = read_header(bytearray(frame), FIRST_FLEXIBLE_VERSION)
    except Refused:
        return
    assert 10 <= header.body <= len(frame)


#: Patterns that decode as huge counts, endless varints, tiny rows and nested ones in any schema.
PATTERNS = [
    b"\0",
    b"\x01",
    b"\x02",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\0\0\0\x01",
    b"\0\x01a",
    b"\x02a\0",
    b"\x02a\x01\0\0",
    b"\0\0\x03\xe8",
    b"\x7f\xff\xff\xff",
]


@pytest.mark.parametrize(
    ("key", "version"), ALL, ids=[f"{key.name}-{version}" for key, version in ALL]
)
def test_decoding_memory_is_bounded_by_frame_size(key, version):
    for pattern in PATTERNS:
        for head in (
            b"",
            b"\0\0\xff\xff",
            struct.pack(">hi", 1, 1000) + b"\0\0\0\xff",
            b"\xff\x01",
        ):
            frame = bytearray(head + pattern * ((16 << 10) // len(pattern)))
            tracemalloc.start()
            try:
                attempt(key, version, frame)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < TIMES * len(frame) + BESIDES, (pattern, head)
