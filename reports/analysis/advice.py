"""What an application needs: the lowest version of its library, another setting, or another
library.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from compat.fingerprint.table import protocol_settings
from reports.analysis.facts import MigrationTarget
from reports.analysis.identity import version_key
from reports.analysis.terms import BELOW, REFUSED
from reports.ingest.small_tables import small_table


def baselines(spark: SparkSession, target: MigrationTarget) -> DataFrame:
    """By library: `supported` and `instead` of the target, `lowest` with its text, and the protocol
    setting, if any.
    """
    rows = []
    for name, row in sorted(target.libraries.items()):
        least = f" (not refused from {row.wire})" if row.wire and row.wire != row.lowest else ""
        instead = target.libraries.get(row.instead or "")
        other = f"{row.instead} {instead.lowest}" if instead and instead.lowest else row.instead
        rows.append(
            (
                name,
                row.supported,
                row.lowest,
                least,
                other,
                *protocol_settings().get(name, (None, None)),
            )
        )
    columns = ("library", "supported", "lowest", "least", "instead", "configured", "setting")
    return small_table(spark, rows, ", ".join(f"{column} string" for column in columns))


def needs(target: MigrationTarget) -> Column:
    """The advice for a row with a state, a library, its `baselines` and `asks` (whether it sends
    ApiVersions).

    Empty if the target names no libraries.
    """
    if not target.libraries:
        return F.lit("")
    version = F.concat_ws(" ", "library", "lowest")
    unknown = F.concat(
        F.lit("a newer "),
        F.col("library"),
        F.lit(" or another library: the target names no version of it"),
    )
    other = F.concat(
        F.lit("another library, such as "),
        F.col("instead"),
        F.lit(": no version of "),
        F.col("library"),
        F.lit(" is served"),
    )
    return (
        F.when(~F.col("state").isin(REFUSED, BELOW), F.lit(""))
        .when(F.col("library").isNull(), F.lit(_any_library(target)))
        .when(F.col("instead").isNotNull(), other)
        .when(F.col("lowest").isNull(), unknown)
        .when(F.col("state") == BELOW, version)
        .otherwise(_upgrade_or_setting(version))
    )


def _any_library(target: MigrationTarget) -> str:
    """The advice if the library is unknown."""
    each = " or ".join(
        f"{name} {row.lowest}" for name, row in target.libraries.items() if row.lowest
    )
    none = "".join(
        f"; no version of {name} is served" for name, row in target.libraries.items() if row.instead
    )
    return f"{each}, with its protocol setting left out, where it has one{none}"


def _upgrade_or_setting(version: Column) -> Column:
    """The advice for a refused library.

    A version that is new enough is refused if a setting fixes an older protocol. If the library
    then sends no ApiVersions ("unasked"), a client that sends it has no such setting. Without a
    protocol setting the cause has to be investigated.
    """
    is_unasked = (
        (F.col("configured") == "unasked") & ~F.col("asks") & F.col("version_high").isNull()
    )
    may_be_set = F.coalesce((F.col("configured") == "always") | is_unasked, F.lit(False))
    is_new_enough = F.coalesce(version_key("version_low") >= version_key("lowest"), F.lit(False))
    setting = F.concat(F.lit("its protocol setting ("), F.col("setting"), F.lit(") left out"))
    tried = F.concat(
        F.lit("an investigation: "),
        version,
        F.lit(" and later were not refused in tests"),
    )
    at_least = F.concat(version, F.col("least"))
    return (
        F.when(may_be_set & is_new_enough, setting)
        .when(may_be_set, F.concat(at_least, F.lit(", with "), setting))
        .when(is_new_enough, tried)
        .otherwise(at_least)
    )
