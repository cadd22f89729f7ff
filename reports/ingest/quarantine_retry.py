"""Lines of a schema version that no report knew when they came, and that is known by now: they lie in the quarantine, whatever became of their files.

They are taken like lines of the topic: compared with the rows that there are, and noted with them as one batch, whose `source` says up to which batch the
quarantine was looked through. So each counts once, whenever a run ends. The quarantine stays as it is: it says what came when.
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
    """By who has the tables for himself. In which hour's file a line was is not known any more: a row counts on the day of its `at`."""
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
    """Those that have such lines, and were not looked through. A batch's name begins with its number."""
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
