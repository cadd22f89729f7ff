"""What libraries with versions are called in the plots."""

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


def test_a_library_without_a_highest_version_is_not_called_as_all_of_it(spark):
    from reports.analysis.small_tables import small_table
    from reports.page.page_data import kind_of

    rows = small_table(spark, CLIENTS, "library string, version string, generation string")
    assert [row[0] for row in rows.select(kind_of("version")).build_page_model()] == [
        "java 2.8",
        "kafka-python 1.4",
        "kafka-python, version open",
        "ours, version open",
        "nameless, as Kafka 0.9",
        "nameless, as Kafka ?",
    ]
