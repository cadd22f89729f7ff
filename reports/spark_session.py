"""The Spark session, with the same settings on a laptop, on a cluster and in tests."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

#: Settings that the jobs depend on, in every environment.
REQUIRED_SETTINGS = {
    # Days are UTC days, as in the log's folders.
    "spark.sql.session.timeZone": "UTC",
    # Skewed joins and partitions are split at run time.
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.skewJoin.enabled": "true",
    # Spark 4 and 3.5 have different defaults.
    "spark.sql.ansi.enabled": "false",
    # A batch is complete when it is committed; marker files are not needed.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # HotSpot does not compile longer methods (it interprets them row by row), and Spark's default
    # allows them. With this limit Spark generates smaller ones.
    "spark.sql.codegen.hugeMethodLimit": "8000",
}

#: Otherwise Java warns on stdout, among the report's lines, if a process of another container that
#: shares /tmp has the same id.
NO_PERFORMANCE_FILE = "-XX:-UsePerfData"
_LOG4J = Path(__file__).with_name("log4j2.properties").as_uri()

#: On one machine: no web UI, no Spark progress bar, no network.
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    # Spark describes each plan for the web UI, also if the UI is off; this form takes least time.
    "spark.sql.ui.explainMode": "simple",
    # Spark would look up where in Python each expression is made, for its error messages.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"{NO_PERFORMANCE_FILE} -Dlog4j2.configurationFile={_LOG4J}",
}


Launch = Callable[[SparkConf], Any]
"""Starts Java and returns the gateway to it."""


def open_session(
    master: str | None, memory: str | None = None, launch: Launch | None = None, **more: str
) -> SparkSession:
    """Open the session.

    `master` is None under spark-submit, which sets it. `memory` is the driver's, if it is started
    here, by `launch` if given. `more` are settings with `_` for `.`.
    """
    settings = {"spark.app.name": "kopgate report", **REQUIRED_SETTINGS}
    if master is not None:
        settings["spark.master"] = master
        if master.startswith("local"):
            # Otherwise Spark searches for the machine's address and warns about it.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            os.environ.setdefault("SPARK_LAUNCHER_OPTS", NO_PERFORMANCE_FILE)
            # Spark's default of 200 partitions is for clusters; here most would be empty.
            settings |= LOCAL_SETTINGS | {
                "spark.sql.shuffle.partitions": str(max(4, 2 * _cores(master)))
            }
        if memory is not None:
            settings["spark.driver.memory"] = memory
    settings |= {name.replace("_", "."): value for name, value in more.items()}
    if launch is not None:
        conf = SparkConf().setAll(list(settings.items()))
        # The session uses the existing context.
        SparkContext(conf=conf, gateway=launch(conf))
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _cores(master: str) -> int:
    """Number of cores in `local`, `local[4]` or `local[*]`."""
    match = re.match(r"local\[(\d+|\*)", master)
    if match is None:
        return 1
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1])
