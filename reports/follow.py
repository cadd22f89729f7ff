"""Ingests the traffic log's topic continuously, with Spark's Kafka source and through the gateway.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1 \\
        "$(python -m reports.places follow)" --bootstrap-servers gateway:9092 --out DIR

The tables are those of `kopgate report --out DIR`. Each row is in them once, whether it comes from
files, from the topic or from both.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reports.ingest.ingest_job import Ingester, IngestResult
from reports.ingest.row_parser import to_rows
from reports.ingest.spark_errors import translate_errors
from reports.ingest.taken_files import Tables, TablesError
from reports.places import argument
from reports.spark_session import open_session

TOPIC = "__kopgate_traffic"
INTERVAL_SECONDS = 600
"""Seconds between batches. Each batch is a folder; a month has some thousands."""
MAX_ROWS_PER_BATCH = 2_000_000


def follow(
    spark: SparkSession, tables: Tables, options: dict[str, str], every: float | None
) -> None:
    """Ingest the topic every `every` seconds until stopped, or once. Raises TablesError.

    `options` are those of Spark's Kafka source. Each batch is committed with the name that Spark
    gives it, so that a batch repeated after a crash is recognized. If Spark's checkpoint is lost,
    reading starts over and each row is compared with the existing ones.
    """
    place = tables.folder / "following"

    def take(lines: DataFrame, number: int) -> None:
        ingest_batch(lines, tables, f"{_query(place)}/{number}", datetime.now(UTC))

    with translate_errors(tables.folder):
        # Rows deleted from the topic are gaps in the row numbers and are reported as missing lines.
        source = (
            spark.readStream.format("kafka")
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "false")
        )
        lines = source.option("maxOffsetsPerTrigger", MAX_ROWS_PER_BATCH).options(**options).load()
        lines = lines.select(
            F.coalesce(F.col("value").cast("string"), F.lit("")).alias("value"), "timestamp"
        )
        writer = lines.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(place))
        timed = (
            writer.trigger(availableNow=True)
            if every is None
            else writer.trigger(processingTime=f"{every} seconds")
        )
        timed.start().awaitTermination()


def ingest_batch(lines: DataFrame, tables: Tables, source: str, now: datetime) -> IngestResult:
    """Ingest `lines`, with columns `value` and the record's `timestamp`. Waits for a running
    report.
    """
    with translate_errors(tables.folder), tables.locked(waits=True):
        ingester = Ingester(lines.sparkSession, tables, now)
        if any(batch.source == source for batch in ingester.batches):
            return IngestResult()
        return ingester.compare(
            to_rows(lines.withColumn("path", F.lit(TOPIC)), now, F.col("timestamp")), source=source
        )


def _query(place: Path) -> str:
    """The id of the streaming query, kept in its checkpoint folder."""
    name: str = json.loads((place / "metadata").read_text("utf-8"))["id"]
    return name


def _options(file: Path | None) -> dict[str, str]:
    """Read Kafka client properties (`security.protocol=SASL_SSL`) from a file, since they contain
    secrets.

    Raises ValueError and OSError.
    """
    options = {}
    for line in file.read_text("utf-8").splitlines() if file else []:
        name, sign, value = line.partition("=")
        if line.strip() and not line.startswith("#"):
            if not sign:
                raise ValueError(f"{file}: a line is not `name=value`")
            options[f"kafka.{name.strip()}"] = value.strip()
    return options


def _missing_package_hint(error: BaseException) -> str | None:
    if "data source: kafka" not in str(error):
        return None
    scala = "2.12" if pyspark.__version__.startswith("3.") else "2.13"
    package = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
    return (
        f"Spark's Kafka source is missing: spark-submit --packages {package} (or the latest "
        "earlier version, if it does not exist yet)"
    )


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done (with --once), 1 failed."""
    parser = argparse.ArgumentParser(
        prog="reports.follow",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="the gateway"
    )
    parser.add_argument(
        "--out",
        type=argument,
        required=True,
        metavar="DIR",
        help="same as for `kopgate report`",
    )
    parser.add_argument(
        "--consumer-config",
        type=Path,
        metavar="FILE",
        help="properties of the Kafka consumer, one name=value per line",
    )
    parser.add_argument(
        "--every",
        type=float,
        default=INTERVAL_SECONDS,
        metavar="SECONDS",
        help="time between batches (%(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="read what is available and exit")
    parser.add_argument(
        "--master", help="if spark-submit does not set it: local[N] or spark://HOST:PORT"
    )
    given = parser.parse_args(arguments)
    try:
        options = _options(given.consumer_config) | {
            "kafka.bootstrap.servers": given.bootstrap_servers
        }
        follow(
            open_session(given.master),
            Tables(given.out / "tables"),
            options,
            None if given.once else given.every,
        )
    except (TablesError, ValueError, OSError) as error:
        sys.stderr.write(f"Error: {_missing_package_hint(error.__cause__ or error) or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
