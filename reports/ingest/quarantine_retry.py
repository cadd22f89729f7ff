"""Ingests quarantined lines whose schema version has become known with an upgrade.

They are compared with the existing rows and committed as one batch, like lines of the topic. Its
`source` names the last batch whose quarantine was searched, so that each line counts once even if a
run is interrupted. The quarantine is not changed.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from reports.ingest.ingest_job import Ingester, IngestResult, stored
from reports.ingest.row_parser import reasons_of_known_versions, to_rows
from reports.ingest.schema import QUARANTINE
from reports.ingest.taken_files import IngestedBatch, Tables


def retry_quarantined(spark: SparkSession, tables: Tables, now: datetime) -> IngestResult:
    """Requires the tables' lock. A row counts on the day of its `at`, since the hour of its file is
    not known.
    """
    ingester = Ingester(spark, tables, now)
    total = IngestResult()
    for reason in reasons_of_known_versions():
        left = _unchecked_batches(ingester.batches, reason)
        if left:
            lines = stored(spark, tables, QUARANTINE, left).filter(F.col("problem") == reason)
            rows = to_rows(
                lines.select(F.col("line").alias("value"), F.col("file").alias("path")), now
            )
            total += ingester.compare(rows, source=f"{reason} until {left[-1].name}")
    return total


def _unchecked_batches(batches: list[IngestedBatch], reason: str) -> list[IngestedBatch]:
    """Batches with such lines that were not searched yet. Batch names start with their number."""
    before = f"{reason} until "
    until = max(
        (
            batch.source.removeprefix(before)
            for batch in batches
            if batch.source and batch.source.startswith(before)
        ),
        default="",
    )
    return [batch for batch in batches if reason in batch.quarantined and batch.name > until]
