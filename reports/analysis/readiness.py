"""The state of each application for a target: refused, below the supported baseline, unknown, or
fine.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from compat.fingerprint.behaviour import API_VERSIONS
from reports.analysis.activity import FORMATS, SUMS
from reports.analysis.advice import baselines, needs
from reports.analysis.facts import NO_VERSION, MigrationTarget, api_names
from reports.analysis.identity import PART, STATED_CONFIDENCE, version_key
from reports.analysis.terms import APPLICATION, BELOW, FINE, REFUSED, STATES, UNKNOWN
from reports.ingest.small_tables import small_table

MAX_REASONS = 50
"""Refused requests listed per application; blockers has all of them."""
NAMES = ("topic", "group", "listener")
"""What an application names in its requests."""
MAX_NAMES = 100
"""Topics, groups and listeners listed per application; the counts are complete."""
NOT_SERVED = "api_version < minimum or api_version > maximum"
LIBRARY_FIELDS = (
    "library",
    "version_low",
    "version_high",
    "confidence",
    "share",
    "state",
    "reasons",
    "needs",
    "evidence",
    "difference",
    "generation",
    "connections",
    "requests",
    "bytes",
    "last_seen",
)
"""Fields of each library of an application.

`share` is its share of the application's bytes, null if there are none.
"""
MIN_CONFIDENCE = 0.9
"""Minimum confidence of a library for the states fine and below."""


def findings(activity: DataFrame, bare: DataFrame, target: MigrationTarget) -> DataFrame:
    """Requests and bare GSSAPI tokens that the target refuses, by day and application.

    Columns: date, APPLICATION, what (as "Produce 2"), why, requests, bytes, first_seen, last_seen.
    """
    below = activity.join(F.broadcast(_limits(activity.sparkSession, target)), "api_key").filter(
        NOT_SERVED
    )
    requests = below.groupBy(
        "date", *APPLICATION, _request_text().alias("what"), _reason_text().alias("why")
    ).agg(
        F.sum("requests").alias("requests"),
        F.sum(F.col("bytes_in") + F.col("bytes_out")).alias("bytes"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
    )
    if target.serves_bare_gssapi:
        return requests
    tokens = bare.select(
        "date",
        *APPLICATION,
        F.lit("GSSAPI without a handshake").alias("what"),
        F.lit("served after SaslHandshake only").alias("why"),
        F.lit(0).cast("long").alias("requests"),
        F.lit(0).cast("long").alias("bytes"),
        "first_seen",
        "last_seen",
    )
    return requests.unionByName(tokens)


def blockers(found: DataFrame) -> DataFrame:
    """`findings` of the whole period, one row per application and request."""
    return found.groupBy(*APPLICATION, "what", "why").agg(
        F.sum("requests").alias("requests"),
        F.sum("bytes").alias("bytes"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
    )


def _limits(spark: SparkSession, target: MigrationTarget) -> DataFrame:
    names = api_names()
    keys = sorted(target.minimums.keys() | target.maximums.keys())
    rows = [
        (key, names.get(key, f"key {key}"), target.minimums.get(key, 0), target.maximums.get(key))
        for key in keys
    ]
    return small_table(spark, rows, "api_key int, api string, minimum int, maximum int")


def _request_text() -> Column:
    return F.concat_ws(" ", "api", F.col("api_version").cast("string"))


def _reason_text() -> Column:
    return (
        F.when(F.col("minimum") == NO_VERSION, F.lit("no longer served"))
        .when(
            F.col("api_version") < F.col("minimum"),
            F.concat(F.lit("served from version "), F.col("minimum").cast("string")),
        )
        .otherwise(F.concat(F.lit("served up to version "), F.col("maximum").cast("string")))
    )


def _all_reasons() -> Column:
    return F.sort_array(
        F.collect_set(F.concat(F.col("what"), F.lit(" ("), F.col("why"), F.lit(")")))
    ).alias("reasons")


def applications(
    activity: DataFrame, identity: DataFrame, blocking: DataFrame, target: MigrationTarget
) -> DataFrame:
    """One row per application, with its state for the target, the reasons, and what it needs.

    `libraries` are its parts in `identity`, the worst first. The first decides state, library and
    confidence; `version_low` and `version_high` cover all parts of that library.
    """
    own = _activity_by_application(activity)
    why = blocking.groupBy(*APPLICATION).agg(
        _all_reasons(),
        F.sum("requests").alias("refused_requests"),
        F.max("last_seen").alias("last_refused"),
    )
    libraries = F.broadcast(baselines(activity.sparkSession, target))
    rows = own.join(_by_application(identity, libraries, target), list(APPLICATION), "left").join(
        why, list(APPLICATION), "left"
    )
    worst = ("library", "version_low", "version_high", "confidence", "evidence", "generation")
    rows = rows.withColumns({name: F.col("libraries")[0][name] for name in worst})
    rows = (
        rows.join(libraries, "library", "left")
        .withColumn("state", _state(target))
        .withColumn("needs", needs(target))
    )
    # With several parts, the advice names each of them.
    rows = rows.withColumn(
        "needs",
        F.coalesce(F.when(F.size("libraries") > 1, F.nullif(_needs_of_each(), F.lit(""))), "needs"),
    )
    low, high = _lowest(), _highest()
    for name in NAMES:
        rows = rows.withColumn(f"{name}s", F.slice(f"all_{name}", 1, MAX_NAMES)).withColumn(
            f"{name}_count", F.size(f"all_{name}")
        )
    return rows.select(
        *APPLICATION,
        "topics",
        "groups",
        "listeners",
        "topic_count",
        "group_count",
        "library",
        low.alias("version_low"),
        high.alias("version_high"),
        F.coalesce("confidence", F.lit(0.0)).alias("confidence"),
        "evidence",
        "generation",
        "state",
        _reasons().alias("reasons"),
        "needs",
        F.coalesce("refused_requests", F.lit(0)).alias("refused_requests"),
        "last_refused",
        *SUMS,
        *FORMATS,
        "first_seen",
        "last_seen",
        "libraries",
    )


def _activity_by_application(activity: DataFrame) -> DataFrame:
    sums = [F.sum(name).alias(name) for name in (*SUMS, *FORMATS)]
    names = [F.sort_array(F.collect_set(name)).alias(f"all_{name}") for name in NAMES]
    seen = [F.min("first_seen").alias("first_seen"), F.max("last_seen").alias("last_seen")]
    asks = F.coalesce(F.bool_or(F.col("api_key") == API_VERSIONS), F.lit(False)).alias("asks")
    return activity.groupBy(*APPLICATION).agg(*names, *sums, *seen, asks)


def _by_application(
    identity: DataFrame, libraries: DataFrame, target: MigrationTarget
) -> DataFrame:
    """APPLICATION and an array of its libraries, ordered by state and traffic."""
    limits = F.broadcast(_limits(identity.sparkSession, target))
    sent = (
        identity.select(*APPLICATION, PART, F.explode("sent").alias("pair"))
        .select(*APPLICATION, PART, "pair.*")
        .distinct()
    )
    refused = (
        sent.join(limits, "api_key")
        .filter(NOT_SERVED)
        .select(*APPLICATION, PART, _request_text().alias("what"), _reason_text().alias("why"))
    )
    refused = refused.groupBy(*APPLICATION, PART).agg(_all_reasons())
    total = F.sum("bytes").over(Window.partitionBy(*APPLICATION))
    parts = identity.withColumn("share", F.round(F.col("bytes") / F.nullif(total, F.lit(0)), 4))
    parts = parts.join(refused, [*APPLICATION, PART], "left").join(libraries, "library", "left")
    parts = (
        parts.withColumn("state", _state(target))
        .withColumn("needs", needs(target))
        .withColumn("reasons", _reasons())
    )
    told = parts.withColumn(
        "last_seen", F.date_format(F.timestamp_millis("last_seen"), "yyyy-MM-dd")
    )
    one = F.struct(
        state_order().alias("place"), (-F.col("bytes")).alias("less"), PART, *LIBRARY_FIELDS
    )
    ordered = F.sort_array(F.collect_list(one))
    each = F.transform(
        ordered, lambda part: F.struct(*[part[name].alias(name) for name in LIBRARY_FIELDS])
    )
    return told.groupBy(*APPLICATION).agg(each.alias("libraries"))


def _needs_of_each() -> Column:
    """The advice for each part that needs something, with the part's description."""
    needy = F.filter("libraries", lambda part: part["needs"] != "")
    return F.array_join(
        F.transform(needy, lambda part: F.concat(_describe_part(part), F.lit(": "), part["needs"])),
        "; ",
    )


def _describe_part(part: Column) -> Column:
    """For example "librdkafka 0.11.0 to 0.11.6"; for an unknown library, what the client sends."""
    low, high = part["version_low"], part["version_high"]
    versions = (
        F.when(low.isNull() & high.isNull(), F.lit(None))
        .when(low == high, low)
        .when(high.isNull(), F.concat(low, F.lit(" or newer")))
        .when(low.isNull(), F.concat(F.lit("up to "), high))
        .otherwise(F.concat(low, F.lit(" to "), high))
    )
    unknown = F.concat_ws(
        "",
        F.lit("a client of unknown library, which "),
        F.coalesce(part["difference"], part["evidence"]),
    )
    return F.when(part["library"].isNull(), unknown).otherwise(
        F.concat_ws(" ", part["library"], versions)
    )


def _lowest() -> Column:
    """The lowest version of all parts of the row's library."""
    known = F.filter(
        "libraries",
        lambda part: (part["library"] == F.col("library")) & part["version_low"].isNotNull(),
    )
    pairs = F.transform(
        known,
        lambda part: F.struct(
            version_key(part["version_low"]).alias("order"), part["version_low"].alias("version")
        ),
    )
    return F.array_min(pairs)["version"]


def _highest() -> Column:
    """The highest version of all parts of the row's library; null if one of them has no upper
    end.
    """
    own = F.filter("libraries", lambda part: part["library"] == F.col("library"))
    pairs = F.transform(
        own,
        lambda part: F.struct(
            version_key(part["version_high"]).alias("order"), part["version_high"].alias("version")
        ),
    )
    return F.when(
        ~F.exists(own, lambda part: part["version_high"].isNull()), F.array_max(pairs)["version"]
    )


def _state(target: MigrationTarget) -> Column:
    """The state of a row.

    Without a baseline for the library, served means fine. A version range that contains the
    baseline is "below" if the client stated its versions, and "unknown" if they were concluded. A
    conclusion with too little confidence gives "unknown". A range without upper end counts as above
    the baseline.
    """
    low, high, supported = (
        version_key("version_low"),
        version_key("version_high"),
        version_key("supported"),
    )
    return (
        F.when(F.col("reasons").isNotNull(), F.lit(REFUSED))
        .when(F.lit(not target.libraries), F.lit(FINE))
        .when(F.col("library").isNull() | (F.col("confidence") < MIN_CONFIDENCE), F.lit(UNKNOWN))
        .when(F.col("instead").isNotNull(), F.lit(BELOW))
        .when(F.col("supported").isNull(), F.lit(FINE))
        .when(low.isNull(), F.lit(UNKNOWN))
        .when(
            (high < supported) | ((low < supported) & (F.col("confidence") >= STATED_CONFIDENCE)),
            F.lit(BELOW),
        )
        .when(low < supported, F.lit(UNKNOWN))
        .otherwise(F.lit(FINE))
    )


def state_order() -> Column:
    """Sort key in the order of STATES."""
    return F.coalesce(
        *[F.when(F.col("state") == state, F.lit(place)) for place, state in enumerate(STATES)]
    )


def _reasons() -> Column:
    baseline = F.when(
        F.col("instead").isNotNull(),
        F.concat(F.lit("no version of "), F.col("library"), F.lit(" is served")),
    )
    baseline = baseline.otherwise(
        F.concat_ws(" ", F.lit("below"), F.col("library"), F.col("supported"))
    )
    more = F.size("reasons") - MAX_REASONS
    refused = F.concat_ws(
        ", ",
        F.slice("reasons", 1, MAX_REASONS),
        F.when(more > 0, F.concat(F.lit("and "), more.cast("string"), F.lit(" more"))),
    )
    return (
        F.when(F.col("state") == REFUSED, refused)
        .when(F.col("state") == BELOW, baseline)
        .otherwise(F.lit(""))
    )
