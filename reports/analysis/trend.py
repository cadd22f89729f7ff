"""Refused applications and conversion costs by day, and the day without refused applications."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reports.analysis.terms import APPLICATION

MIN_DAYS = 7
"""Fewer days would show weekly variation rather than a trend."""
MAX_DAYS_AHEAD = 3650
"""A line that reaches zero later than this counts as flat."""
PACE = "at the current rate"


@dataclass(frozen=True, slots=True)
class Forecast:
    """`reaches_zero` is None if it is not reached or there are too few days; `why` gives the
    reason.
    """

    days: int
    per_day: float | None
    reaches_zero: date | None
    why: str


def trend(activity: DataFrame, found: DataFrame) -> DataFrame:
    """One row per day with traffic.

    Columns: applications, requests, converted_bytes, conversion_cpu_seconds, refused_applications,
    refused_requests, refused_bytes.
    """
    who = F.struct(*APPLICATION)
    days = activity.groupBy("date").agg(
        F.countDistinct(who).alias("applications"),
        F.sum("requests").alias("requests"),
        F.sum("converted_bytes").alias("converted_bytes"),
        (F.sum("conversion_cpu_us") / 1e6).alias("conversion_cpu_seconds"),
    )
    refused = found.groupBy("date").agg(
        F.countDistinct(who).alias("refused_applications"),
        F.sum("requests").alias("refused_requests"),
        F.sum("bytes").alias("refused_bytes"),
    )
    columns = ["refused_applications", "refused_requests", "refused_bytes"]
    return days.join(F.broadcast(refused), "date", "left").fillna(0, columns)


def forecast(days: DataFrame, today: date) -> Forecast:
    """Linear regression over the refused applications before `today`. `days` is the result of
    `trend`.
    """
    day = F.datediff("date", F.lit(today)).cast("double")
    past = days.filter(F.col("date") < F.lit(today))
    line = (
        F.regr_slope("refused_applications", day),
        F.regr_intercept("refused_applications", day),
    )
    known, per_day, at_today, last = past.agg(
        F.count("*"), *line, F.max_by("refused_applications", "date")
    ).collect()[0]
    if known < MIN_DAYS or per_day is None:
        return Forecast(known, per_day, None, f"needs {MIN_DAYS} full days of data, has {known}")
    if at_today <= 0:
        return Forecast(known, per_day, today, PACE if last else "none left")
    if per_day >= 0 or at_today / -per_day > MAX_DAYS_AHEAD:
        return Forecast(known, per_day, None, "not decreasing")
    return Forecast(known, per_day, today + timedelta(days=math.ceil(at_today / -per_day)), PACE)
