"""What a target would do to each application: refuse it on the wire, serve it although it is below the supported baseline, or serve it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from compat.fingerprint.doing import API_VERSIONS
from reports.activity import FORMATS, SUMS
from reports.advice import baselines, needs
from reports.facts import NEVER, Target, api_names
from reports.identity import SENT_BY_ITSELF, numbers
from reports.literals import table_of
from reports.words import APPLICATION, BELOW, FINE, REFUSED, STATES, UNKNOWN

MOST_REASONS = 50
"""Requests that are named as refused to one application, which may send what it likes; blockers has all."""
MOST_NAMES = 100
"""Topics, groups and listeners that are listed for an application; how many there are is told in full."""
SURE_ENOUGH = 0.9
"""The confidence that a conclusion needs to call somebody fine or below."""


def findings(activity: DataFrame, bare: DataFrame, target: Target) -> DataFrame:
    """Each thing that the target would refuse: date, APPLICATION, what (as "Produce 2"), why, requests, bytes, first_seen, last_seen."""
    spark = activity.sparkSession
    names = api_names()
    keys = sorted(target.minimums.keys() | target.maximums.keys())
    rows = [(key, names.get(key, f"key {key}"), target.minimums.get(key, 0), target.maximums.get(key)) for key in keys]
    limits = table_of(spark, rows, "api_key int, api string, minimum int, maximum int")
    below = activity.join(F.broadcast(limits), "api_key").filter("api_version < minimum or api_version > maximum")
    served = (
        F.when(F.col("minimum") == NEVER, F.lit("not served any more"))
        .when(F.col("api_version") < F.col("minimum"), F.concat(F.lit("served from version "), F.col("minimum").cast("string")))
        .otherwise(F.concat(F.lit("served up to version "), F.col("maximum").cast("string")))
    )
    requests = below.groupBy(
        "date", *APPLICATION, F.concat_ws(" ", "api", F.col("api_version").cast("string")).alias("what"), served.alias("why")
    ).agg(
        F.sum("requests").alias("requests"),
        F.sum(F.col("bytes_in") + F.col("bytes_out")).alias("bytes"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
    )
    if target.serves_bare_gssapi:
        return requests
    tokens = bare.select(
        "date", *APPLICATION, F.lit("GSSAPI without a handshake").alias("what"), F.lit("served after SaslHandshake only").alias("why"),
        F.lit(0).cast("long").alias("requests"), F.lit(0).cast("long").alias("bytes"), "first_seen", "last_seen",
    )  # fmt: skip
    return requests.unionByName(tokens)


def blockers(found: DataFrame) -> DataFrame:
    """`findings` over the whole period, one row for an application and a request."""
    return found.groupBy(*APPLICATION, "what", "why").agg(
        F.sum("requests").alias("requests"),
        F.sum("bytes").alias("bytes"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
    )


def applications(activity: DataFrame, identity: DataFrame, blocking: DataFrame, target: Target) -> DataFrame:
    """One row an application, with its state for the target, why, and what it needs."""
    sums = [F.sum(name).alias(name) for name in (*SUMS, *FORMATS)]
    names = [F.sort_array(F.collect_set(name)).alias(f"all_{name}") for name in ("topic", "group", "listener")]
    seen = [F.min("first_seen").alias("first_seen"), F.max("last_seen").alias("last_seen")]
    asks = F.coalesce(F.bool_or(F.col("api_key") == API_VERSIONS), F.lit(False)).alias("asks")
    own = activity.groupBy(*APPLICATION).agg(*names, *sums, *seen, asks)
    why = blocking.groupBy(*APPLICATION).agg(
        F.sort_array(F.collect_set(F.concat(F.col("what"), F.lit(" ("), F.col("why"), F.lit(")")))).alias("reasons"),
        F.sum("requests").alias("refused_requests"),
        F.max("last_seen").alias("last_refused"),
    )
    rows = (
        own.join(identity, list(APPLICATION), "left")
        .join(why, list(APPLICATION), "left")
        .join(F.broadcast(baselines(activity.sparkSession, target)), "library", "left")
    )
    rows = rows.withColumn("state", _state(target))
    for name in ("topic", "group", "listener"):
        rows = rows.withColumn(f"{name}s", F.slice(f"all_{name}", 1, MOST_NAMES)).withColumn(f"{name}_count", F.size(f"all_{name}"))
    return rows.select(
        *APPLICATION, "topics", "groups", "listeners", "topic_count", "group_count",
        "library", "version_low", "version_high", "confidence", "evidence", "generation",
        "state", _reasons().alias("reasons"), needs(target).alias("needs"), F.coalesce("refused_requests", F.lit(0)).alias("refused_requests"), "last_refused",
        *SUMS, *FORMATS, "first_seen", "last_seen",
    )  # fmt: skip


def _state(target: Target) -> Column:
    """Where the target names no baseline, what is served is fine. A range that a baseline lies in is below it where the client itself named its
    versions, and not known where it was concluded. A conclusion that is not sure enough decides nothing; a range without an end ends above.
    """
    low, high, supported = numbers("version_low"), numbers("version_high"), numbers("supported")
    return (
        F.when(F.col("reasons").isNotNull(), F.lit(REFUSED))
        .when(F.lit(not target.libraries), F.lit(FINE))
        .when(F.col("library").isNull() | (F.col("confidence") < SURE_ENOUGH), F.lit(UNKNOWN))
        .when(F.col("instead").isNotNull(), F.lit(BELOW))
        .when(F.col("supported").isNull(), F.lit(FINE))
        .when(low.isNull(), F.lit(UNKNOWN))
        .when((high < supported) | ((low < supported) & (F.col("confidence") >= SENT_BY_ITSELF)), F.lit(BELOW))
        .when(low < supported, F.lit(UNKNOWN))
        .otherwise(F.lit(FINE))
    )


def by_state() -> Column:
    """Rows in the order of STATES."""
    return F.coalesce(*[F.when(F.col("state") == state, F.lit(place)) for place, state in enumerate(STATES)])


def _reasons() -> Column:
    baseline = F.when(F.col("instead").isNotNull(), F.concat(F.lit("no version of "), F.col("library"), F.lit(" is served")))
    baseline = baseline.otherwise(F.concat_ws(" ", F.lit("below"), F.col("library"), F.col("supported")))
    more = F.size("reasons") - MOST_REASONS
    refused = F.concat_ws(
        ", ", F.slice("reasons", 1, MOST_REASONS), F.when(more > 0, F.concat(F.lit("and "), more.cast("string"), F.lit(" more")))
    )
    return F.when(F.col("state") == REFUSED, refused).when(F.col("state") == BELOW, baseline).otherwise(F.lit(""))
