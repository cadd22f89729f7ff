"""The Spark session: one set of settings for a laptop, a cluster and the tests."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

#: What the jobs stand on, wherever they run.
REQUIRED_SETTINGS = {
    # Days are days of UTC, as in the log's folders.
    "spark.sql.session.timeZone": "UTC",
    # Skewed joins and partitions are split while they run.
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.skewJoin.enabled": "true",
    # 4 and 3.5 differ in what they take by default.
    "spark.sql.ansi.enabled": "false",
    # What says that a batch is whole is its note, not a file in the folder.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # HotSpot never compiles a method of more bytes (it interprets it, row by row), and Spark's default lets such pass. Beyond it Spark makes smaller ones.
    "spark.sql.codegen.hugeMethodLimit": "8000",
}

#: Without it, Java warns on stdout, among the report's lines, when a process of another container that
#: shares /tmp has the same id.
NO_PERFORMANCE_FILE = "-XX:-UsePerfData"
_LOG4J = Path(__file__).with_name("log4j2.properties").as_uri()

#: On one machine: no page, no bar of Spark's own, nothing on the network.
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"{NO_PERFORMANCE_FILE} -Dlog4j2.configurationFile={_LOG4J}",
}


Launch = Callable[[SparkConf], Any]
"""Starts Java and gives the gateway to it."""


def open_session(
    master: str | None, memory: str | None = None, launch: Launch | None = None, **more: str
) -> SparkSession:
    """`master` is None under spark-submit, which says it. `memory` is the driver's, where this starts it, by `launch` if there is one. `more` has `_`
    for `.`.
    """
    settings = {"spark.app.name": "kopgate report", **REQUIRED_SETTINGS}
    if master is not None:
        settings["spark.master"] = master
        if master.startswith("local"):
            # Else it looks for an address of this machine, and warns of what it finds.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            os.environ.setdefault("SPARK_LAUNCHER_OPTS", NO_PERFORMANCE_FILE)
            # Spark's 200 are for a cluster; here most of the time would go into parts with nothing in them.
            settings |= LOCAL_SETTINGS | {
                "spark.sql.shuffle.partitions": str(max(4, 2 * _cores(master)))
            }
        if memory is not None:
            settings["spark.driver.memory"] = memory
    settings |= {name.replace("_", "."): value for name, value in more.items()}
    if launch is not None:
        conf = SparkConf().setAll(list(settings.items()))
        # The session takes the context that is there.
        SparkContext(conf=conf, gateway=launch(conf))
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _cores(master: str) -> int:
    """That `local`, `local[4]` or `local[*]` has."""
    match = re.match(r"local\[(\d+|\*)", master)
    if match is None:
        return 1
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1])
