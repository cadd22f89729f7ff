"""Names of libraries with versions in the plots."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.spark

CLIENTS = [
    ("java", "2.8.2", "2.3"),
    ("kafka-python", "1.4.1", "0.10.1"),
    ("kafka-python", None, "0.9"),
    ("ours", "nightly", "0.11.0"),
    (None, None, "0.9"),
    (None, None, None),
]


def test_library_without_version_number_is_labelled_no_upper_version(spark):
    from reports.ingest.small_tables import small_table
    from reports.page.page_data import kind_of

    rows = small_table(spark, CLIENTS, "library string, version string, generation string")
    assert [row[0] for row in rows.select(kind_of("version")).collect()] == [
        "java 2.8",
        "kafka-python 1.4",
        "kafka-python, no upper version",
        "ours, no upper version",
        "unknown, like Kafka 0.9",
        "unknown, like Kafka ?",
    ]
