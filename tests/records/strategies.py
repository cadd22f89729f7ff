"""Hypothesis strategies and settings for record sets."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.examples import scaled
from tests.records.sample_records import Sample

prop = settings(
    deadline=None,
    max_examples=scaled(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""The function-scoped fixture only selects the implementation, the same for all examples."""

contents = (
    st.none()
    | st.binary(max_size=40)
    | st.binary(min_size=1, max_size=3).map(lambda part: part * 700)
)
timestamps = st.integers(min_value=-1, max_value=2**42) | st.integers(
    min_value=1_700_000_000_000, max_value=1_700_000_000_100
)
headers = st.lists(
    st.tuples(st.text(max_size=3).map(str.encode), st.none() | st.binary(max_size=5)), max_size=3
).map(tuple)
codecs = st.integers(min_value=0, max_value=4)
legacy_codecs = st.integers(min_value=0, max_value=3)
magics = st.integers(min_value=0, max_value=1)


@st.composite
def samples(draw, *, with_gaps: bool = True, max_size: int = 12) -> list[Sample]:
    """At least one record, with ascending offsets from below 2^40, with gaps if allowed."""
    offset = draw(st.integers(min_value=0, max_value=2**40))
    found = []
    for _ in range(draw(st.integers(min_value=1, max_value=max_size))):
        found.append(
            Sample(offset, draw(timestamps), draw(contents), draw(contents), draw(headers))
        )
        offset += draw(st.integers(min_value=1, max_value=5)) if with_gaps else 1
    return found


@st.composite
def damaged(draw, stream: bytes) -> bytes:
    """`stream` with some bytes replaced, and some inserted."""
    changed = bytearray(stream)
    places = st.integers(0, len(stream) - 1)
    for place, value in draw(
        st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=6)
    ):
        changed[place] = value
    at = draw(places)
    changed[at:at] = draw(st.binary(max_size=20))
    return bytes(changed)
