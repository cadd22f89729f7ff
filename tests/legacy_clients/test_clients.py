"""The table is well-formed, and drivers' lines encode every record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.legacy_clients.clients import Client, Record, line_of, record_from, table
from tests.legacy_clients.install import DRIVERS, INSTALLERS

BYTES = st.none() | st.binary(max_size=20)
HEADERS = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), BYTES), max_size=3
).map(tuple)


@given(
    st.builds(
        Record,
        st.just("topic"),
        st.integers(0, 9),
        BYTES,
        BYTES,
        st.none() | st.integers(0, 1 << 50),
        HEADERS,
    )
)
def test_line_encodes_the_whole_record(record: Record) -> None:
    """A driver prints its input with an offset after the partition."""
    topic, partition, *rest = line_of(record).removesuffix("\n").split("\t")
    read = record_from("\t".join([topic, partition, "17", *rest]))
    assert (read.offset, read.key, read.value, read.timestamp, read.headers) == (
        17,
        record.key,
        record.value,
        record.timestamp,
        record.headers,
    )


@pytest.mark.parametrize("client", table().values(), ids=str)
def test_driver_and_sources_of_a_row_exist(client: Client) -> None:
    assert client.driver in INSTALLERS
    there = {file.name for file in (DRIVERS / client.driver).glob("*")} or {
        file.name for file in DRIVERS.glob(f"{client.driver}.*")
    }
    assert there
    assert set(client.sources) <= there


@pytest.mark.parametrize("client", table().values(), ids=str)
def test_row_has_formats_codecs_and_assignors(client: Client) -> None:
    assert client.writes in (0, 1, 2)
    assert (client.reads in (0, 1, 2) and bool(client.decodes)) == client.consumes
    assert bool(client.assignors) == (client.groups == "member")
    assert set(client.codecs) | set(client.decodes) <= {"none", "gzip", "snappy", "lz4", "zstd"}
