"""The codec of request headers, compared with kafka-python's in both versions."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_header import RequestHeader as CodecHeader

from gateway.protocol.errors import Refused
from gateway.protocol.wire.header import RequestHeader, read_header
from tests.gateway.protocol.wire import flexible
from tests.gateway.protocol.wire.values import int16s, int32s, texts

#: Key 1 is flexible from version 12, key 18 from 3.
FIRST_FLEXIBLE = {1: 12, 18: 3}


@given(
    api_key=int16s,
    version=int16s,
    correlation_id=int32s,
    client_id=texts | st.none(),
    body=st.binary(max_size=5),
)
def test_header_written_by_codec_is_read(api_key, version, correlation_id, client_id, body):
    written = CodecHeader(
        request_api_key=api_key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    ).encode(flexible=version >= FIRST_FLEXIBLE.get(api_key, 1 << 15))
    assert read_header(bytearray(written) + body, FIRST_FLEXIBLE) == RequestHeader(
        api_key, version, correlation_id, client_id, len(written)
    )


@given(fields=st.dictionaries(st.integers(0, 500), st.binary(max_size=150), max_size=4))
def test_unknown_tagged_fields_are_skipped(fields):
    written = bytearray(b"\0\x01\0\x0c\0\0\0\x07\0\x02me" + flexible.tags(fields))
    assert read_header(written + b"body", FIRST_FLEXIBLE) == RequestHeader(
        1, 12, 7, "me", len(written)
    )


def test_codec_reads_same_header():
    written = b"\0\x01\0\x0c\0\0\0\x07\0\x02me" + flexible.tags({5: b"xy"})
    read = CodecHeader.decode(io.BytesIO(written), flexible=True)
    assert (
        read.request_api_key,
        read.request_api_version,
        read.correlation_id,
        read.client_id,
    ) == (1, 12, 7, "me")


@pytest.mark.parametrize("length", range(10))
def test_truncated_header_is_refused(length):
    with pytest.raises(Refused, match="header"):
        read_header(bytearray(b"\0\x01\0\x04\0\0\0\x07\0\x00")[:length], FIRST_FLEXIBLE)


@pytest.mark.parametrize(
    "lying",
    [
        b"\0\x01\0\x04\0\0\0\x07\0\x03me",  # client id of three bytes, two present
        b"\0\x01\0\x04\0\0\0\x07\0\x01\xff",  # not UTF-8
        b"\0\x01\0\x0c\0\0\0\x07\0\x02me",  # section of tagged fields missing
        b"\0\x01\0\x0c\0\0\0\x07\0\x02me\x01\x00\x05a",  # tagged field longer than the rest
        b"\0\x01\0\x0c\0\0\0\x07\0\x02me" + b"\xff" * 40,  # endless varint
    ],
)
def test_malformed_header_is_refused(lying):
    with pytest.raises(Refused):
        read_header(bytearray(lying), FIRST_FLEXIBLE)
