"""Hypothesis strategies for the values of Kafka's types."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st

int8s = st.integers(-(2**7), 2**7 - 1)
int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)

#: Without lone surrogates, which UTF-8 cannot encode. The compact length of strings of 128 bytes
#: and more takes two bytes.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["é" * 64, "x" * 249, "漢" * 200]
)
names = texts.filter(bool)
blobs = st.binary(max_size=60) | st.sampled_from([bytes(127), bytes(128), b"\xff" * 20_000])

#: The codec represents an id of zeros by None, so it is excluded.
topic_ids = st.uuids().filter(lambda value: value != uuid.UUID(int=0))
