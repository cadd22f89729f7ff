"""The output folder of a report: each table as Parquet and CSV, and the summary.

Every file in it is complete, either old or new.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType, TimestampType

FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"
"""Start of a text that a spreadsheet would run as a formula; clients can choose such names.

The CSV gets a `'` before it; the Parquet file has the original.
"""
TIMES = "yyyy-MM-dd'T'HH:mm:ss'Z'"


class Outputs:
    """Tables are read back from their Parquet, so that CSV and summary have the same data, computed
    once.
    """

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self._folder = folder
        self._spark = spark
        self._new = folder / ".new"
        # Tables that a killed run left would take space that this run needs. Spark creates the
        # folder with the first table.
        self.discard()

    def table(self, name: str, rows: DataFrame, order: Sequence[Column]) -> DataFrame:
        """Write `NAME/` and `NAME.csv` (sorted by `order`) and return the table."""
        self.intermediate(name, rows)
        place = self._folder / name
        shutil.rmtree(place, ignore_errors=True)
        (self._new / name).rename(place)
        written = self._spark.read.schema(rows.schema).parquet(str(place))
        texts = written.orderBy(*order).select(
            *[_as_text(field.name, field.dataType) for field in rows.schema.fields]
        )
        self._csv(f"{name}.csv", rows.columns, (tuple(row) for row in texts.toLocalIterator()))
        return written

    def intermediate(self, name: str, rows: DataFrame) -> DataFrame:
        """Write `rows` to a folder that `discard` removes, and return them.

        Unlike with `persist`, later queries do not contain the plan that computes them, and Spark
        does not analyse it each time; in a small log that takes most of the time.
        """
        path = str(self._new / name)
        rows.write.mode("overwrite").parquet(path)
        return self._spark.read.schema(rows.schema).parquet(path)

    def text(self, name: str, text: str) -> None:
        path = self._new / name
        path.write_text(text, "utf-8")
        path.replace(self._folder / name)

    def summary(self, summary: dict[str, Any]) -> None:
        """Written last: if the summary is new, all other files are."""
        self.text("summary.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
        self.discard()

    def discard(self) -> None:
        """Remove unfinished files."""
        shutil.rmtree(self._new, ignore_errors=True)

    def _csv(self, name: str, head: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
        path = self._new / name
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(head)
            writer.writerows(rows)
        path.replace(self._folder / name)


def _as_text(name: str, kind: DataType) -> Column:
    """Arrays and structures become JSON; times are UTC."""
    match kind:
        case ArrayType() | MapType() | StructType():
            return F.to_json(name).alias(name)
        case TimestampType():
            return F.date_format(name, TIMES).alias(name)
        case StringType():
            return (
                F.when(F.col(f"`{name}`").rlike(FORMULA), F.concat(F.lit("'"), F.col(f"`{name}`")))
                .otherwise(F.col(f"`{name}`"))
                .alias(name)
            )
    return F.col(f"`{name}`").cast("string").alias(name)
