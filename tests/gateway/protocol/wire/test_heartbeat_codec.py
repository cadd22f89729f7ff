"""The codec of Heartbeat, compared with kafka-python's in every version."""

from __future__ import annotations

from struct import error

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.group import HeartbeatRequest as CodecRequest
from kafka.protocol.consumer.group import HeartbeatResponse as CodecResponse

from gateway.protocol.wire.heartbeat_codec import (
    HeartbeatRequest,
    HeartbeatResponse,
    read_heartbeat,
    write_heartbeat_response,
)
from tests.gateway.protocol.wire import flexible
from tests.gateway.protocol.wire.values import int16s, int32s, texts

versions = st.integers(0, 4)


@st.composite
def requests(draw):
    """Version, the codec's request, and the expected one."""
    version = draw(versions)
    group, generation, member = draw(texts), draw(int32s), draw(texts)
    instance = draw(texts | st.none()) if version >= 3 else None
    theirs = CodecRequest(
        version=version,
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
    )
    return version, theirs, HeartbeatRequest(group, generation, member, instance)


@given(request=requests(), before=st.binary(max_size=4), after=st.binary(max_size=4))
def test_request_encoded_by_kafka_python_is_decoded(request, before, after):
    version, theirs, ours = request
    assert (
        read_heartbeat(
            bytearray(before + theirs.encode(version=version) + after), len(before), version
        )
        == ours
    )


@given(request=requests())
def test_truncated_request_is_refused(request):
    version, theirs, _ = request
    whole = theirs.encode(version=version)
    for length in range(len(whole)):
        with pytest.raises((ValueError, IndexError, error)):
            read_heartbeat(bytearray(whole[:length]), 0, version)


@given(unknown=st.dictionaries(st.integers(0, 300), st.binary(max_size=150), max_size=3))
def test_unknown_tagged_fields_are_skipped(unknown):
    frame = (
        flexible.text("g")
        + flexible.int32(3)
        + flexible.text("m")
        + flexible.text(None)
        + flexible.tags(unknown)
    )
    assert read_heartbeat(bytearray(frame), 0, 4) == HeartbeatRequest("g", 3, "m", None)


@pytest.mark.parametrize(("group", "member"), [(None, "m"), ("g", None)])
def test_null_in_non_nullable_field_is_refused(group, member):
    frame = (
        flexible.text(group)
        + flexible.int32(3)
        + flexible.text(member)
        + flexible.text(None)
        + b"\0"
    )
    with pytest.raises(ValueError, match="null"):
        read_heartbeat(bytearray(frame), 0, 4)


@given(version=versions, code=int16s)
def test_response_equals_that_of_codec(version, code):
    theirs = CodecResponse(version=version, error_code=code).encode(version=version)
    assert write_heartbeat_response(HeartbeatResponse(code), version) == bytes(theirs)
