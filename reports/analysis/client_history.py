"""Libraries and versions over time, and the request versions of each application."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reports.analysis.terms import APPLICATION
from reports.ingest.row_parser import process_of

DIMENSIONS = ("principal", "client_id", "topic", "group", "listener")


def distribution(activity: DataFrame, applications: DataFrame) -> DataFrame:
    """By day and by value of each dimension: dimension, value, library, version, generation,
    applications, requests, bytes.

    The version is the highest possible one of the library. An application with several libraries
    counts for the one that decides its state. Requests of a topic are not known; its bytes are
    those of its batches.
    """
    named = applications.select(
        *APPLICATION, "library", F.col("version_high").alias("version"), "generation"
    )
    sizes = {
        name: F.col("topic_bytes") if name == "topic" else F.col("bytes_in") + F.col("bytes_out")
        for name in DIMENSIONS
    }
    each = F.array(
        *[
            F.struct(
                F.lit(name).alias("dimension"), F.col(name).alias("value"), size.alias("bytes")
            )
            for name, size in sizes.items()
        ]
    )
    # Aggregate before the explode, which creates five rows per row.
    keys = ("date", *APPLICATION, *[name for name in DIMENSIONS if name not in APPLICATION])
    summed = activity.groupBy(*keys).agg(
        *[F.sum(name).alias(name) for name in ("requests", "bytes_in", "bytes_out", "topic_bytes")]
    )
    rows = (
        summed.select("date", *APPLICATION, "requests", F.explode(each).alias("each"))
        .select("*", "each.*")
        .filter("value is not null")
    )
    rows = rows.groupBy("date", *APPLICATION, "dimension", "value").agg(
        F.sum("requests").alias("requests"), F.sum("bytes").alias("bytes")
    )
    joined = rows.join(F.broadcast(named), list(APPLICATION), "left")
    return joined.groupBy("date", "dimension", "value", "library", "version", "generation").agg(
        F.count("*").alias("applications"),
        F.sum("requests").alias("requests"),
        F.sum("bytes").alias("bytes"),
    )


def matrix(activity: DataFrame) -> DataFrame:
    """Request versions by application: APPLICATION, api_key, lowest, highest, requests."""
    return (
        activity.filter("api_key is not null")
        .groupBy(*APPLICATION, "api_key")
        .agg(
            F.min("api_version").alias("lowest"),
            F.max("api_version").alias("highest"),
            F.sum("requests").alias("requests"),
        )
    )


def missing_lines(rows: DataFrame) -> int:
    """Number of lines that gateways numbered but that are not in the tables.

    They were dropped, quarantined, or are in damaged or deleted files. Each process numbers its
    lines without gaps and each number is in the tables once. Lines before the first or after the
    last known number cannot be noticed.
    """
    spans = rows.groupBy(process_of("connection").alias("process")).agg(
        (F.max("sequence") - F.min("sequence") + 1 - F.count("sequence")).alias("gap")
    )
    return int(spans.agg(F.coalesce(F.sum("gap"), F.lit(0))).collect()[0][0])
