"""Which library an application is: what it says of itself, or else what its doing tells (`compat.fingerprint`)."""

from __future__ import annotations

from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from compat.fingerprint.matching import identify as identify_doing
from compat.fingerprint.table import Table, runs_in
from compat.fingerprint.table import table_of as table_of_runs
from reports.activity import SOFTWARE
from reports.doings import doings, read
from reports.facts import api_names, generations, library_names
from reports.literals import table_of
from reports.words import APPLICATION

SENT_BY_ITSELF = 1.0
"""The confidence in what the client says of itself."""
MOST_DOINGS = 10_000
"""Different doings that are looked at, those of most applications first; of others the library stays unknown, and the report says of how many. A release of
a library makes some tens."""
LEFT_OUT = "one of too many kinds of clients to tell its library"


def identify(activity: DataFrame, connections: DataFrame, who: DataFrame) -> DataFrame:
    """APPLICATION, library, version_low, version_high, confidence (0 to 1), evidence, generation, is_left_out.

    Where the client sent its name and version (KIP-511), that is it. Else it is told from what it did; where that cannot be, the library is null.
    `version_high` is null where it may be newer than any that is known. `generation` is the Kafka release whose own client is the first to send such
    requests. Who is left out says no name, and does what is beyond MOST_DOINGS.
    """
    all_ = _said(activity).join(_requests(activity), list(APPLICATION), "full_outer")
    all_ = all_.join(_concluded(doings(activity, connections, who, _known()), _known()), list(APPLICATION), "left")
    is_said = F.col("library").isNotNull()
    is_left_out = ~is_said & F.coalesce("its_doing_is_left_out", F.lit(False))
    return all_.select(
        *APPLICATION,
        F.coalesce("library", "its_library").alias("library"),
        *[F.when(is_said, F.col(name)).otherwise(F.col(f"its_{name}")).alias(name) for name in ("version_low", "version_high")],
        F.when(is_said, F.lit(SENT_BY_ITSELF)).otherwise(F.coalesce("its_confidence", F.lit(0.0))).alias("confidence"),
        F.concat_ws("; ", "said", F.when(is_left_out, F.lit(LEFT_OUT)), F.when(~is_said, F.col("its_evidence")), "sends").alias("evidence"),
        "generation",
        is_left_out.alias("is_left_out"),
    )


@cache
def _known() -> Table:
    return table_of_runs(runs_in())


def _concluded(did: DataFrame, table: Table) -> DataFrame:
    """APPLICATION and the verdict on its doing. The doings are few, so they are judged here, and joined back."""
    key = F.md5("doing")
    kinds = did.groupBy("doing").agg(F.count("*").alias("number")).orderBy(F.desc("number"), "doing").limit(MOST_DOINGS)
    verdicts = []
    for row in kinds.select(key.alias("key"), "doing").collect():
        verdict = identify_doing(read(row["doing"]), table)
        versions = (verdict.version_low, verdict.version_high)
        verdicts.append((row["key"], verdict.library, *versions, verdict.confidence, "; ".join(verdict.evidence)))
    columns = "key string, its_library string, its_version_low string, its_version_high string, its_confidence double, its_evidence string"
    judged = table_of(did.sparkSession, verdicts, columns)
    all_ = did.select(*APPLICATION, key.alias("key")).join(F.broadcast(judged), "key", "left").drop("key")
    return all_.withColumn("its_doing_is_left_out", F.col("its_confidence").isNull())


def _said(activity: DataFrame) -> DataFrame:
    """The library that was used last, and its versions. Of several that were last used in the same minute it is always the same one."""
    # First by what is said, so that an application with most of the log has a row for each name and version where they are joined.
    named = activity.filter("software is not null").groupBy(*APPLICATION, *SOFTWARE).agg(F.max("last_seen").alias("last_seen"))
    named = named.select("*", _library(), _version())
    last = named.groupBy(*APPLICATION).agg(F.max(F.struct("last_seen", "library"))["library"].alias("last_library"))
    own = named.join(last, list(APPLICATION)).filter("library = last_library")
    # Arrays of numbers stand in the order of versions, which text does not.
    sent = F.concat_ws(" ", *SOFTWARE).alias("sent")
    return own.groupBy(*APPLICATION, "library").agg(
        F.min_by("version", numbers("version")).alias("version_low"),
        F.max_by("version", numbers("version")).alias("version_high"),
        F.concat(F.lit("calls itself "), F.max(F.struct("last_seen", sent))["sent"]).alias("said"),
    )


def _library() -> Column:
    sent = F.lower("software")
    names = F.create_map(*[F.lit(word) for pair in library_names().items() for word in pair])
    library = F.when(F.col("software_version").contains("rdkafka-"), F.lit("librdkafka")).otherwise(F.coalesce(names[sent], sent))
    return library.alias("library")


def _version() -> Column:
    within = F.regexp_extract("software_version", r"rdkafka-v?(\d+(?:\.\d+)*)", 1)
    own = F.regexp_extract("software_version", r"(\d+(?:\.\d+)*)", 1)
    return F.nullif(F.when(within != "", within).otherwise(own), F.lit("")).alias("version")


def numbers(version: str) -> Column:
    """A column with a version like 1.10.2 as an array that sorts as versions do; null where there is none."""
    return F.transform(F.split(version, r"\."), lambda part: part.cast("int"))


def _requests(activity: DataFrame) -> DataFrame:
    """What each application sends at most, as a text, and the generation of that."""
    spark = activity.sparkSession
    names = table_of(spark, sorted(api_names().items()), "api_key int, api string")
    first = table_of(spark, generations(), "api_key int, highest int, number int, release string")
    highest = activity.filter("api_key is not null").groupBy(*APPLICATION, "api_key").agg(F.max("api_version").alias("highest"))
    told = highest.join(F.broadcast(names), "api_key", "left").join(F.broadcast(first), ["api_key", "highest"], "left")
    words = F.concat_ws(" ", F.coalesce("api", F.concat(F.lit("key "), F.col("api_key").cast("string"))), F.col("highest").cast("string"))
    return told.groupBy(*APPLICATION).agg(
        F.concat(
            F.lit("sends "),
            F.concat_ws(
                ", ", F.transform(F.sort_array(F.collect_list(F.struct("api_key", words.alias("words")))), lambda row: row["words"])
            ),
        ).alias("sends"),
        F.max_by("release", "number").alias("generation"),
    )
