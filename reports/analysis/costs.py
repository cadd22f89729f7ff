"""Obstacles to a migration: topics and groups shared by old and new applications, and conversion
costs.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reports.analysis.activity import FORMATS
from reports.analysis.readiness import MAX_NAMES
from reports.analysis.terms import APPLICATION, REFUSED

PRODUCE, FETCH = 0, 1


def bindings(activity: DataFrame, applications: DataFrame) -> DataFrame:
    """Topics and groups that refused applications share with others.

    Columns: kind, name, old and new (numbers of applications), old_applications, bytes. These
    applications must be migrated together, or something must convert between them.
    """
    states = F.broadcast(
        applications.select(*APPLICATION, (F.col("state") == REFUSED).alias("is_old"))
    )
    used = activity.join(states, list(APPLICATION))
    measures = {"topic": F.col("topic_bytes"), "group": F.col("bytes_in") + F.col("bytes_out")}
    kinds = F.array(
        *[
            F.struct(F.lit(kind).alias("kind"), F.col(kind).alias("name"), size.alias("size"))
            for kind, size in measures.items()
        ]
    )
    each = (
        used.withColumn("bound", F.explode(kinds))
        .select("*", "bound.kind", "bound.name", "bound.size")
        .filter("name is not null")
    )
    each = each.groupBy("kind", "name", *APPLICATION, "is_old").agg(F.sum("size").alias("bytes"))
    shared = each.groupBy("kind", "name").agg(
        F.count_if("is_old").alias("old"),
        F.count_if(~F.col("is_old")).alias("new"),
        F.slice(
            F.sort_array(F.collect_set(F.when(F.col("is_old"), F.struct(*APPLICATION)))),
            1,
            MAX_NAMES,
        ).alias("old_applications"),
        F.sum("bytes").alias("bytes"),
    )
    return shared.filter("old > 0 and new > 0")


def conversions(activity: DataFrame) -> DataFrame:
    """Conversion costs by application and topic. The cost of a converted fetch is the
    consumer's.
    """
    converted = activity.filter("conversions > 0 or converted_records > 0 or conversion_cpu_us > 0")
    return converted.groupBy(*APPLICATION, "topic").agg(
        F.sum(F.when(F.col("api_key") == FETCH, F.col("conversions")).otherwise(F.lit(0))).alias(
            "fetches_converted"
        ),
        F.sum(F.when(F.col("api_key") == PRODUCE, F.col("conversions")).otherwise(F.lit(0))).alias(
            "produces_converted"
        ),
        F.sum("conversions").alias("conversions"),
        F.sum("converted_records").alias("converted_records"),
        F.sum("converted_bytes").alias("converted_bytes"),
        (F.sum("conversion_cpu_us") / 1e6).alias("cpu_seconds"),
    )


def formats(activity: DataFrame) -> DataFrame:
    """Batches by record format, in and out, by day and topic."""
    return (
        activity.filter("topic is not null")
        .groupBy("date", "topic")
        .agg(*[F.sum(name).alias(name) for name in FORMATS])
    )
