"""Small constant tables as DataFrames, created in the JVM without a Python process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType


def small_table(spark: SparkSession, rows: Sequence[Sequence[Any]], columns: str) -> DataFrame:
    """`columns` is in SQL syntax: "api_key int, api string"."""
    names = [column.split()[0] for column in columns.split(", ")]
    text = json.dumps([dict(zip(names, row, strict=True)) for row in rows])
    return spark.range(1).select(
        F.inline(
            F.from_json(
                F.lit(text), f"array<struct<{columns.replace(' ', ':').replace(',:', ', ')}>>"
            )
        )
    )


def empty_table(spark: SparkSession, schema: StructType) -> DataFrame:
    return spark.range(0).select(
        *[F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
    )
