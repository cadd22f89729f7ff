"""The complete report: ingests new files, analyses the tables and writes the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reports.analysis import activity as of_activity
from reports.analysis import client_history, costs, readiness
from reports.analysis.behaviour import connection_kinds
from reports.analysis.facts import MigrationTarget, api_names
from reports.analysis.identity import identify
from reports.analysis.terms import APPLICATION, REFUSED, STATES
from reports.analysis.trend import forecast, trend
from reports.ingest.ingest_job import IngestResult, ingest_new, retry_quarantined, stored
from reports.ingest.schema import CONNECTION, USAGE
from reports.ingest.spark_errors import translate_errors
from reports.ingest.taken_files import Tables, TablesError
from reports.outputs import Outputs
from reports.page.answer import count_of
from reports.page.page_data import build_page_model
from reports.page.report_page import page
from reports.preconditions import check_folders_apart

DEFAULT_DAYS = 30
"""Default period: a month contains every weekly and monthly job."""
SINCE_HINT = "--since looks further back"
MAX_IN_SUMMARY = 50
"""Blockers and costs listed in the summary; the tables have all."""
STEPS = ("clients", "readiness", "costs", "trend", "summary")

ReportProgress = Callable[[str, float], None]
"""Called with the current step and the fraction done."""


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Parameters of a report. Without `logs` only the existing tables are used. `since` is the
    first day.
    """

    logs: Path | None
    out: Path
    target: MigrationTarget
    since: date | None = None

    @property
    def tables(self) -> Tables:
        return Tables(self.out / "tables")


def run(
    spark: SparkSession,
    order: ReportRequest,
    now: datetime,
    progress: ReportProgress = lambda step, part: None,
) -> dict[str, Any]:
    """Return the summary, also written to `summary.json`. Raises TablesError if there is no
    result.
    """
    logs, out = order.logs, order.out
    if logs:
        check_folders_apart(logs, out)
    # The lock keeps the tables unchanged until all is read.
    with translate_errors(out), order.tables.locked():
        outputs = Outputs(out, spark)
        taken = retry_quarantined(spark, order.tables, now)
        if logs:
            taken += ingest_new(
                spark, logs, order.tables, now, lambda done, of: progress("files", done / of / 2)
            )
        summary = _report(spark, order, outputs, now, taken, progress)
    progress("done", 1.0)
    return summary


def _report(
    spark: SparkSession,
    order: ReportRequest,
    outputs: Outputs,
    now: datetime,
    taken: IngestResult,
    progress: ReportProgress,
) -> dict[str, Any]:
    since = order.since or now.astimezone(UTC).date() - timedelta(days=DEFAULT_DAYS)
    everything = stored(spark, order.tables, CONNECTION)
    usage = stored(spark, order.tables, USAGE).filter(F.col("date") >= F.lit(since))
    connections = everything.filter(F.col("date") >= F.lit(since))
    place = order.logs or order.tables.folder
    if usage.isEmpty() and connections.isEmpty():
        raise TablesError(
            f"no traffic log data in {place}"
            f"{f' since {since}; {SINCE_HINT}' if everything.head(1) else _why_nothing(taken)}"
        )
    who = of_activity.latest_connection_rows(everything).persist()
    try:
        did = outputs.intermediate("activity", of_activity.activity(usage, connections, who))
        if did.isEmpty():
            raise TablesError(
                f"no applications in {place} since {since}: clients sent no requests or "
                f"never authenticated; {SINCE_HINT}"
            )
        connected = outputs.intermediate("kinds", connection_kinds(usage, connections, who))
        tables = _tables(outputs, did, identify(connected), order.target, progress)
        summary = _summary(tables, order.target, now, taken)
        summary["log"]["library_not_looked_for"] = tables.left_out
        summary["log"]["never_logged_in"] = of_activity.never_logged_in(
            of_activity.latest_connection_rows(connections)
        ).count()
        summary["log"]["lines_missing"] = client_history.missing_lines(
            usage.select("connection", "sequence").unionByName(
                connections.select("connection", "sequence")
            )
        )
        shown = build_page_model(
            tables.clients, tables.matrix, tables.distribution, tables.days, tables.bindings
        )
        tables.outputs.text("report.html", page(summary, shown, order.target, api_names()))
        tables.outputs.summary(summary)
    finally:
        outputs.discard()
        who.unpersist()
    return summary


def _why_nothing(taken: IngestResult) -> str:
    if taken.damaged:
        name, reason = taken.damaged[0]
        return f": {count_of(len(taken.damaged), 'file')} cannot be used, first {name}: {reason}"
    if taken.quarantined:
        reason = next(iter(taken.quarantined))
        return (
            f": {count_of(sum(taken.quarantined.values()), 'line')} quarantined, first "
            f"reason: {reason}"
        )
    return ": its files have no lines yet"


@dataclass(frozen=True, slots=True)
class _ReportTables:
    outputs: Outputs
    clients: DataFrame
    matrix: DataFrame
    distribution: DataFrame
    bindings: DataFrame
    conversions: DataFrame
    days: DataFrame
    left_out: int


def _tables(
    outputs: Outputs,
    did: DataFrame,
    named: DataFrame,
    target: MigrationTarget,
    progress: ReportProgress,
) -> _ReportTables:
    def step(name: str) -> None:
        progress(name, 0.5 + STEPS.index(name) / len(STEPS) / 2)

    step("clients")
    identity = outputs.intermediate("identity", named)
    most = F.desc(F.col("bytes_in") + F.col("bytes_out"))
    by_application = [F.col(name) for name in APPLICATION]
    sent = outputs.table("matrix", client_history.matrix(did), [*by_application, F.col("api_key")])
    step("readiness")
    found = readiness.findings(did, of_activity.bare_tokens(did), target)
    outputs.table(
        "blockers",
        _with_times(readiness.blockers(found)),
        [F.desc("bytes"), F.desc("requests"), *by_application, F.col("what")],
    )
    applications = readiness.applications(did, identity, readiness.blockers(found), target)
    written = outputs.table(
        "clients",
        _with_times(applications),
        [readiness.state_order(), most, F.desc("requests"), *by_application],
    )
    left_out = identity.filter("is_left_out").select(*APPLICATION).distinct().count()
    spread = outputs.table(
        "distribution",
        client_history.distribution(did, written),
        [
            F.col(name)
            for name in ("date", "dimension", "value", "library", "version", "generation")
        ],
    )
    step("costs")
    bound = outputs.table(
        "bindings", costs.bindings(did, written), [F.col("kind"), F.desc("bytes"), F.col("name")]
    )
    converted = outputs.table(
        "conversions",
        costs.conversions(did),
        [F.desc("cpu_seconds"), F.desc("converted_bytes"), *by_application, F.col("topic")],
    )
    outputs.table("formats", costs.formats(did), [F.col("date"), F.col("topic")])
    step("trend")
    days = outputs.table("trend", trend(did, found), [F.col("date")])
    step("summary")
    return _ReportTables(outputs, written, sent, spread, bound, converted, days, left_out)


def _with_times(rows: DataFrame) -> DataFrame:
    for name in ("first_seen", "last_seen", "last_refused"):
        if name in rows.columns:
            rows = rows.withColumn(name, F.timestamp_millis(name))
    return rows


def _summary(
    tables: _ReportTables, target: MigrationTarget, now: datetime, taken: IngestResult
) -> dict[str, Any]:
    states = {
        row["state"]: row["count"] for row in tables.clients.groupBy("state").count().collect()
    }
    days = [row.asDict() for row in tables.days.orderBy("date").collect()]
    count = {state: states.get(state, 0) for state in STATES}
    return {
        "target": target.name,
        "title": target.title,
        "sources": list(target.sources),
        "made_at": now.astimezone(UTC).isoformat(timespec="seconds"),
        "from": str(days[0]["date"]),
        "until": str(days[-1]["date"]),
        "ready": count[REFUSED] == 0,
        "applications": {"total": sum(count.values()), **count},
        "blockers": _blockers(tables.clients),
        "bindings": _bindings(tables.bindings),
        "conversions": _conversions(tables.conversions),
        "trend": _trend(tables.days, days, now.astimezone(UTC).date()),
        "log": {
            **asdict(taken),
            "damaged": [{"file": name, "reason": reason} for name, reason in taken.damaged],
        },
    }


def _blockers(applications: DataFrame) -> list[dict[str, Any]]:
    rows = applications.filter(F.col("state") == REFUSED).withColumn(
        "bytes", F.col("bytes_in") + F.col("bytes_out")
    )
    fields = (
        *APPLICATION,
        "library",
        "version_low",
        "version_high",
        "libraries",
        "reasons",
        "needs",
        "refused_requests",
        "bytes",
        "topics",
        "groups",
    )
    top = rows.orderBy(F.desc("bytes"), F.desc("refused_requests"), *APPLICATION).select(
        *fields, F.date_format("last_refused", "yyyy-MM-dd").alias("last_refused")
    )
    return [row.asDict(recursive=True) for row in top.limit(MAX_IN_SUMMARY).collect()]


def _bindings(bound: DataFrame) -> dict[str, Any]:
    counts = {row["kind"]: row["count"] for row in bound.groupBy("kind").count().collect()}
    first = bound.orderBy(F.desc("bytes"), "kind", "name").select("kind", "name").head(1)
    named = f"the {first[0]['kind']} {first[0]['name']}" if first else None
    return {"topics": counts.get("topic", 0), "groups": counts.get("group", 0), "first": named}


def _conversions(converted: DataFrame) -> dict[str, Any]:
    names = ("conversions", "converted_records", "converted_bytes", "cpu_seconds")
    total = converted.agg(
        *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]
    ).collect()[0]
    most = (
        converted.groupBy(*APPLICATION)
        .agg(*[F.sum(name).alias(name) for name in names])
        .orderBy(F.desc("cpu_seconds"), *APPLICATION)
    )
    return {
        "conversions": total["conversions"],
        "records": total["converted_records"],
        "bytes": total["converted_bytes"],
        "cpu_seconds": float(total["cpu_seconds"]),
        "most": [row.asDict() for row in most.limit(MAX_IN_SUMMARY).collect()],
    }


def _trend(table: DataFrame, days: list[dict[str, Any]], today: date) -> dict[str, Any]:
    past = [row["refused_applications"] for row in days if row["date"] < today]
    seen = forecast(table, today)
    return {
        "days": seen.days,
        "first": past[0] if past else None,
        "last": past[-1] if past else None,
        "per_day": seen.per_day,
        "reaches_zero": str(seen.reaches_zero) if seen.reaches_zero else None,
        "why": seen.why,
    }
