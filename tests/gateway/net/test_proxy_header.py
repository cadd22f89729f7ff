"""The PROXY header, with the examples and limits of HAProxy's specification (sections 2.1, 2.2)."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.net.proxy_header import (
    MAX_HEADER_BYTES,
    MAX_LINE_BYTES,
    InvalidProxyHeader,
    ProxyHeader,
    parse_proxy_header,
)

EXAMPLE = b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n"
LONGEST_TCP4 = b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n"
LONGEST_ADDRESS = b":".join([b"ffff"] * 8)
LONGEST_TCP6 = b"PROXY TCP6 %b %b 65535 65535\r\n" % (LONGEST_ADDRESS, LONGEST_ADDRESS)
LONGEST = b"PROXY UNKNOWN %b %b 65535 65535\r\n" % (LONGEST_ADDRESS, LONGEST_ADDRESS)
SIGNATURE = bytes.fromhex("0D0A0D0A000D0A515549540A")

IPV4 = bytes([192, 0, 2, 7, 198, 51, 100, 9]) + struct.pack(">HH", 56324, 9092)
IPV6 = (
    ipaddress.ip_address("2001:db8::7").packed
    + ipaddress.ip_address("2001:db8::9").packed
    + struct.pack(">HH", 56324, 9092)
)

#: A checksum, a unique id and padding, as some load balancers send them.
FIELDS = b"\x03\0\4\1\2\3\4" + b"\x05\0\x10" + bytes(16) + b"\4\0\x24" + bytes(36)


def binary(version_and_command: int, family: int, fields: bytes) -> bytes:
    return SIGNATURE + struct.pack(">BBH", version_and_command, family, len(fields)) + fields


@pytest.mark.parametrize(
    ("header", "source"),
    [
        (EXAMPLE, ("192.168.0.1", 56324)),
        (LONGEST_TCP4, ("255.255.255.255", 65535)),
        (LONGEST_TCP6, ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 65535)),
        (b"PROXY TCP6 2001:DB8::1 ::1 0 65535\r\n", ("2001:db8::1", 0)),
        (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", ("192.0.2.1", 1)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN whatever \n is here\r\n", None),
        (LONGEST, None),
        (binary(0x21, 0x11, IPV4), ("192.0.2.7", 56324)),
        (binary(0x21, 0x21, IPV6), ("2001:db8::7", 56324)),
        (binary(0x21, 0x11, IPV4 + b"\x04\x00\x01x"), ("192.0.2.7", 56324)),
        (binary(0x21, 0x21, b"\0" * 10 + b"\xff\xff\xc0\0\2\1" + IPV6[16:]), ("192.0.2.1", 56324)),
        (binary(0x21, 0x21, IPV6 + FIELDS), ("2001:db8::7", 56324)),
        (binary(0x20, 0x00, b""), None),
        (binary(0x20, 0x11, IPV4), None),
        (binary(0x20, 0xFF, b"skipped"), None),
        (binary(0x21, 0x00, b"skipped"), None),
        (binary(0x21, 0x12, IPV4), None),
        (binary(0x21, 0x31, bytes(216)), None),
        (binary(0x21, 0x00, bytes(MAX_HEADER_BYTES - 16)), None),
    ],
)
def test_header_states_source_and_size_and_every_fragment_waits(header, source):
    for size in range(len(header)):
        assert parse_proxy_header(header[:size]) is None
    assert parse_proxy_header(bytearray(header + b"\0\0\0\x0a rest")) == ProxyHeader(
        len(header), source
    )


def test_longest_lines_have_the_documented_lengths():
    assert (len(LONGEST_TCP4), len(LONGEST_TCP6), len(LONGEST)) == (56, 104, MAX_LINE_BYTES)


@pytest.mark.parametrize(
    "received",
    [
        b"\0\0\0\x1a\0\x12\0\0",  # a Kafka request
        b"\x16\x03\x01\x02\0\x01",  # TLS
        b"GET / HTTP/1.1\r\n",
        b"PROXX",
        b"proxy TCP4",
        b"PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
        b"PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2 1 2\r\n",
        b"PROXY TCP4 192.0.2.256 192.0.2.2 1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
        b"PROXY TCP6 fe80::1%lo ::1 1 2\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n\r\n",
        b"PROXY TCP4 192.0.2.1\0 192.0.2.2 1 2\r\n",
        b"PROXY TCP4 \xd9\xa1.0.2.1 192.0.2.2 1 2\r\n",
        b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"PROXY UNKNOWNS\r\n",
        LONGEST[:-2] + b"x\r\n",
        b"PROXY UNKNOWN ".ljust(MAX_LINE_BYTES),
        SIGNATURE[:-1] + b"\r",
        binary(0x11, 0x11, IPV4),
        binary(0x31, 0x11, IPV4),
        binary(0x22, 0x11, IPV4),
        binary(0x21, 0x41, IPV4),
        binary(0x21, 0x13, IPV4),
        binary(0x21, 0x11, IPV4[:-1]),
        binary(0x21, 0x21, IPV6[:-1]),
        binary(0x21, 0x11, IPV4 + bytes(MAX_HEADER_BYTES)),
    ],
)
def test_other_bytes_are_refused(received):
    with pytest.raises(InvalidProxyHeader):
        parse_proxy_header(received)


@pytest.mark.parametrize(
    "received",
    [b"\0\0", b"PROXY TCP4 192.0.2.1".ljust(MAX_LINE_BYTES, b"1"), binary(0x21, 0x11, bytes(9000))],
)
def test_refusal_does_not_wait_for_the_rest(received):
    with pytest.raises(InvalidProxyHeader):
        parse_proxy_header(received[: MAX_LINE_BYTES + 1])


_FRAGMENTS = st.sampled_from(
    [
        b"PROXY ",
        b"TCP4 ",
        b"TCP6 ",
        b"UNKNOWN",
        b"192.0.2.1 ",
        b"::1 ",
        b"1 ",
        b"\r",
        b"\n",
        b"\r\n",
    ]
)


@given(
    st.binary(max_size=300)
    | st.lists(_FRAGMENTS | st.binary(max_size=4), max_size=12).map(b"".join)
    | st.builds(
        lambda kind, family, size, rest: SIGNATURE + struct.pack(">BBH", kind, family, size) + rest,
        st.integers(0, 255) | st.just(0x21),
        st.integers(0, 255) | st.sampled_from([0x11, 0x21]),
        st.integers(0, 65535) | st.integers(0, 60),
        st.binary(max_size=80),
    )
)
def test_any_bytes_are_a_header_incomplete_or_refused_and_so_is_every_start(received):
    outcomes = []
    for size in range(len(received) + 1):
        try:
            outcomes.append(parse_proxy_header(received[:size]))
        except InvalidProxyHeader:
            outcomes.append("refused")
    # More bytes decide what is undecided, and never change a decision.
    decided = [outcome for outcome in outcomes if outcome is not None]
    assert len(set(decided)) <= 1
    assert outcomes[len(outcomes) - len(decided) :] == decided
    if decided and decided[0] != "refused":
        header = decided[0]
        assert header.size <= MAX_HEADER_BYTES
        assert len(outcomes) - len(decided) == header.size
        if header.source is not None:
            host, port = header.source
            ipaddress.ip_address(host)
            assert 0 <= port <= 65535
    elif not decided:
        assert len(received) < MAX_HEADER_BYTES
