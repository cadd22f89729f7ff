"""Identifies the libraries of an application by name, or by behaviour (`compat.fingerprint`).

Applications that share a principal, a client id and an address are one row. Their connections tell
them apart: each library and version range is a part of the row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from compat.fingerprint.behaviour import API_VERSIONS, Behaviour
from compat.fingerprint.matcher import identify as identify_behaviour
from compat.fingerprint.splitter import NOT_COMPARED, NamedClient, Splitter
from compat.fingerprint.table import LibraryTable, build_table, read_runs
from reports.analysis.activity import SOFTWARE
from reports.analysis.behaviour import MAX_KEPT, parse_kind, requests_of
from reports.analysis.facts import api_names, generations, library_names
from reports.analysis.terms import APPLICATION
from reports.ingest.small_tables import small_table

STATED_CONFIDENCE = 1.0
"""Confidence of a library that the client states itself."""
MAX_BEHAVIOURS = 10_000
"""Distinct behaviours that are analysed, those of most applications first.

The library of the others stays unknown and the report says of how many. A release of a library has
a few tens of behaviours.
"""
MAX_NAMES = 50
"""Libraries with version per application, those with the most traffic first; clients can send any
name.
"""
LEFT_OUT = "library not determined: too many kinds of clients"
PART = "part"
"""Identifies a part of an application, in addition to APPLICATION."""

_VERDICT = (
    "key string, kind string, its_part string, its_library string, its_version_low "
    "string, its_version_high string, its_confidence double, "
    "its_evidence string, its_difference string"
)


def identify(kinds: DataFrame) -> DataFrame:
    """One row per library and version range of an application.

    Columns: APPLICATION, PART, library, version_low, version_high, confidence (0 to 1), evidence,
    difference, generation, is_left_out, sent, asks, bytes, requests, connections, last_seen.
    `kinds` is the result of `connection_kinds`.

    The name and version that a client sends (KIP-511) are used if present. Otherwise the library is
    determined from behaviour, or null. `version_high` is null if newer versions than the known ones
    are possible. `difference` describes how a client without a name differs from the application's
    others. `generation` is the first Kafka release whose client sends such requests.
    """
    named = _named(kinds)
    return _parts(named.unionByName(_unnamed(kinds, named)))


def _named(kinds: DataFrame) -> DataFrame:
    """One row per library and version that connections of an application stated."""
    said = kinds.filter("software is not null").select("*", _library(), _version())
    # Struct order makes the choice deterministic for names last used in the same minute.
    sent = F.concat_ws(" ", *SOFTWARE).alias("name")
    own = said.groupBy(*APPLICATION, "library", "version").agg(
        F.concat(F.lit("software name "), F.max(F.struct("last_seen", sent))["name"]).alias(
            "evidence"
        ),
        *_sums(),
    )
    place = F.row_number().over(
        Window.partitionBy(*APPLICATION).orderBy(
            F.desc("bytes"), F.desc("connections"), "library", "version"
        )
    )
    is_left_out = place > MAX_NAMES
    name = F.when(~is_left_out, F.concat_ws(" ", F.lit("named"), "library", "version")).otherwise(
        F.lit(LEFT_OUT)
    )
    return own.select(
        *APPLICATION,
        name.alias(PART),
        F.when(~is_left_out, F.col("library")).alias("library"),
        *[
            F.when(~is_left_out, F.col("version")).alias(version)
            for version in ("version_low", "version_high")
        ],
        F.when(~is_left_out, F.lit(STATED_CONFIDENCE)).otherwise(F.lit(0.0)).alias("confidence"),
        F.when(~is_left_out, F.col("evidence")).otherwise(F.lit(LEFT_OUT)).alias("evidence"),
        F.lit(None).cast("string").alias("difference"),
        is_left_out.alias("is_left_out"),
        *_SUMMED,
    )


_SUMMED = ("sent", "bytes", "requests", "connections", "last_seen")


def _sums() -> list[Column]:
    sent = F.sort_array(F.array_distinct(F.flatten(F.collect_set("sent")))).alias("sent")
    return [
        sent,
        *[F.sum(name).alias(name) for name in ("bytes", "requests", "connections")],
        F.max("last_seen").alias("last_seen"),
    ]


def _unnamed(kinds: DataFrame, named: DataFrame) -> DataFrame:
    """One row per kind of connection without a name, with its part."""
    own = kinds.filter("kind is not null")
    looked_at = own.filter("not is_beyond")
    did = looked_at.groupBy(*APPLICATION).agg(F.sort_array(F.collect_set("kind")).alias("kinds"))
    names = (
        named.filter("library is not null")
        .groupBy(*APPLICATION)
        .agg(
            F.sort_array(
                F.collect_list(F.struct("library", F.col("version_low").alias("version"), "sent"))
            ).alias("names")
        )
    )
    did = did.join(names, list(APPLICATION), "left").withColumn(
        "client_id_library", _client_id_library(_library_table())
    )
    did = did.select(
        *APPLICATION, F.to_json(F.struct("kinds", "names", "client_id_library")).alias("behaviour")
    )
    judged = _identify_all(did, _library_table())
    key = F.md5("kind").alias("kind_key")
    rows = own.select(*APPLICATION, key, "is_beyond", *_SUMMED).join(
        judged, [*APPLICATION, "kind_key"], "left"
    )
    is_left_out = F.col("its_part").isNull()
    return rows.select(
        *APPLICATION,
        F.coalesce("its_part", F.lit(LEFT_OUT)).alias(PART),
        *[F.col(f"its_{name}").alias(name) for name in ("library", "version_low", "version_high")],
        F.coalesce("its_confidence", F.lit(0.0)).alias("confidence"),
        F.when(is_left_out, F.lit(LEFT_OUT)).otherwise(F.col("its_evidence")).alias("evidence"),
        F.col("its_difference").alias("difference"),
        is_left_out.alias("is_left_out"),
        *_SUMMED,
    )


def _parts(rows: DataFrame) -> DataFrame:
    """Aggregate kinds of connections by part, with the requests sent."""
    alike = ("confidence", "evidence", "difference", "is_left_out")
    summed = rows.groupBy(*APPLICATION, PART, "library", "version_low", "version_high").agg(
        *[F.max(name).alias(name) for name in alike], *_sums()
    )
    asks = F.exists("sent", lambda pair: pair["api_key"] == API_VERSIONS)
    summed = summed.join(_requests(summed), [*APPLICATION, PART], "left")
    return (
        summed.withColumn("evidence", F.concat_ws("; ", "evidence", "sends"))
        .drop("sends")
        .withColumn("asks", asks)
    )


@cache
def _library_table() -> LibraryTable:
    return build_table(read_runs())


@cache
def _splitter() -> Splitter:
    return Splitter(_library_table())


def _identify_all(did: DataFrame, table: LibraryTable) -> DataFrame:
    """APPLICATION, kind_key and the part of each kind of connection.

    Distinct behaviours are few, so they are identified on the driver and joined back.
    """
    key = F.md5("behaviour")
    behaviours = (
        did.groupBy("behaviour")
        .agg(F.count("*").alias("number"))
        .orderBy(F.desc("number"), "behaviour")
        .limit(MAX_BEHAVIOURS)
    )
    verdicts = [
        (row["key"], *verdict)
        for row in behaviours.select(key.alias("key"), "behaviour").collect()
        for verdict in _identify_clients(row["behaviour"], table)
    ]
    judged = small_table(did.sparkSession, verdicts, _VERDICT).withColumnRenamed("kind", "kind_key")
    return did.select(*APPLICATION, key.alias("key")).join(F.broadcast(judged), "key").drop("key")


def _identify_clients(
    behaviour: str, table: LibraryTable
) -> Iterator[tuple[str | float | None, ...]]:
    """Identify the client of each kind of connection."""
    row = json.loads(behaviour)
    texts: list[str] = row["kinds"]
    connections = [parse_kind(text) for text in texts]
    named = [
        NamedClient(one["library"], one.get("version"), requests_of(one["sent"]))
        for one in row.get("names", ())
    ]
    client_id_library = row.get("client_id_library")
    clients = _splitter().split(connections, named, client_id_library)
    # A client with a name includes the requests of all its connections.
    whole = [
        _combine(
            [
                *([Behaviour(named[one.named].requests)] if one.named is not None else []),
                *(connections[index] for index in one.connections),
            ],
            client_id_library,
        )
        for one in clients
    ]
    for number, client in enumerate(clients):
        verdict: tuple[str | float | None, ...]
        if client.named is not None:
            own = named[client.named]
            part = " ".join(
                ["named", own.library]
                if own.version is None
                else ["named", own.library, own.version]
            )
            verdict = (part, own.library, own.version, own.version, STATED_CONFIDENCE, None, None)
        else:
            found = identify_behaviour(whole[number], table)
            versions = (found.version_low, found.version_high)
            others = [one for place, one in enumerate(whole) if place != number]
            verdict = (
                f"{number}",
                found.library,
                *versions,
                found.confidence,
                "; ".join(found.evidence),
                _difference(whole[number], others),
            )
        for index in client.connections:
            yield (_md5(texts[index]), *verdict)


def _md5(text: str) -> str:
    """Same as Spark's md5."""
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def _combine(connections: Sequence[Behaviour], client_id_library: str | None) -> Behaviour:
    """The combined behaviour of connections."""
    requests: dict[int, frozenset[int]] = {}
    habits: dict[str, frozenset[str]] = {}
    for one in connections:
        for key, versions in one.requests.items():
            requests[key] = requests.get(key, frozenset()) | versions
        for name, values in one.habits.items():
            habits[name] = frozenset(sorted(habits.get(name, frozenset()) | values)[:MAX_KEPT])
    openings = sorted({opening for one in connections for opening in one.openings})
    return Behaviour(requests, frozenset(openings[:MAX_KEPT]), habits, client_id_library)


def _difference(behaviour: Behaviour, others: Sequence[Behaviour]) -> str | None:
    """The requests that this client sends in other versions than the others."""
    if not others:
        return None
    names = api_names()
    found = []
    for key, version in sorted(behaviour.highest.items()):
        sent = {other.highest[key] for other in others if other.requests.get(key)}
        if key not in NOT_COMPARED and sent - {version}:
            found.append(
                f"{names.get(key, f'key {key}')} {version} (others: "
                f"{', '.join(map(str, sorted(sent - {version})))})"
            )
    if found:
        return f"sends {', '.join(found)}"
    return "does not send its name; no version of the others sends the same requests"


def _client_id_library(table: LibraryTable) -> Column:
    """Column version of LibraryTable.client_id_library."""
    found = F.array_compact(
        F.array(
            *[
                F.when(F.col("client_id").rlike(own), F.lit(name))
                for name, own in table.patterns.items()
            ]
        )
    )
    return F.when(F.size(found) == 1, found[0])


def _library() -> Column:
    sent = F.lower("software")
    names = F.create_map(*[F.lit(word) for pair in library_names().items() for word in pair])
    library = F.when(F.col("software_version").contains("rdkafka-"), F.lit("librdkafka")).otherwise(
        F.coalesce(names[sent], sent)
    )
    return library.alias("library")


def _version() -> Column:
    within = F.regexp_extract("software_version", r"rdkafka-v?(\d+(?:\.\d+)*)", 1)
    own = F.regexp_extract("software_version", r"(\d+(?:\.\d+)*)", 1)
    return F.nullif(F.when(within != "", within).otherwise(own), F.lit("")).alias("version")


def version_key(version: Column | str) -> Column:
    """Convert a version like 1.10.2 to an array that sorts correctly; null if there is none."""
    return F.transform(F.split(version, r"\."), lambda part: part.cast("int"))


def _requests(parts: DataFrame) -> DataFrame:
    """By part: the highest request versions as text, and their generation."""
    spark = parts.sparkSession
    names = small_table(spark, sorted(api_names().items()), "api_key int, api string")
    first = small_table(
        spark, generations(), "api_key int, highest int, number int, release string"
    )
    each = parts.select(*APPLICATION, PART, F.explode("sent").alias("pair")).select(
        *APPLICATION, PART, "pair.*"
    )
    highest = each.groupBy(*APPLICATION, PART, "api_key").agg(F.max("api_version").alias("highest"))
    told = highest.join(F.broadcast(names), "api_key", "left").join(
        F.broadcast(first), ["api_key", "highest"], "left"
    )
    words = F.concat_ws(
        " ",
        F.coalesce("api", F.concat(F.lit("key "), F.col("api_key").cast("string"))),
        F.col("highest").cast("string"),
    )
    return told.groupBy(*APPLICATION, PART).agg(
        F.concat(
            F.lit("sends "),
            F.concat_ws(
                ", ",
                F.transform(
                    F.sort_array(F.collect_list(F.struct("api_key", words.alias("words")))),
                    lambda row: row["words"],
                ),
            ),
        ).alias("sends"),
        F.max_by("release", "number").alias("generation"),
    )
