"""One small Spark session and one browser for these tests.

Tests are skipped with a reason if PySpark, Java or Chromium is missing; in CI that is a failure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping

import pytest

from tests.legacy_clients.brokers import are_required
from tests.reports import spark_cache
from tests.reports.page.browser import browser, find
from tests.testkit import jvm

#: A short-lived Java needs neither its second compiler nor garbage collection threads.
FOR_SHORT_LIVES = " ".join((*jvm.QUIET, *jvm.CLIENT))

#: For small tables, planning and compiling queries takes most of the time. Adaptive execution plans
#: each query again after each shuffle; `test_skew.py` turns it on, and whole commands have it. The
#: last two settings are a check of each optimizer rule and filters derived from other filters.
FOR_SMALL_TABLES = {
    "spark_sql_adaptive_enabled": "false",
    "spark_sql_shuffle_partitions": "1",
    "spark_sql_leafNodeDefaultParallelism": "1",
    "spark_sql_codegen_wholeStage": "false",
    "spark_sql_codegen_factoryMode": "NO_CODEGEN",
    "spark_sql_lightweightPlanChangeValidation": "false",
    "spark_sql_constraintPropagation_enabled": "false",
}


def submit_arguments(settings: Mapping[str, str], *more: str) -> dict[str, str]:
    """The variable with which a command starts Spark with settings and more options."""
    options = [f"--conf {name.replace('_', '.')}={text}" for name, text in settings.items()]
    return {"PYSPARK_SUBMIT_ARGS": " ".join((*options, *more, "pyspark-shell"))}


#: Variables of a command with those of the settings that it does not make itself. The compilation
#: of generated code is a fifth of its CPU time.
FOR_SMALL_REPORTS = submit_arguments(
    {
        name: text
        for name, text in FOR_SMALL_TABLES.items()
        if name not in ("spark_sql_adaptive_enabled", "spark_sql_shuffle_partitions")
    }
)


@pytest.fixture(scope="session")
def pyspark():
    """Skip if Spark cannot run; otherwise set Java's options."""
    missing = [
        name
        for name, is_there in (
            ("PySpark", importlib.util.find_spec("pyspark")),
            ("Java", shutil.which("java")),
        )
        if not is_there
    ]
    if missing:
        (pytest.fail if are_required() else pytest.skip)(
            f"there is no {' and no '.join(missing)} here: `make spark` brings PySpark"
        )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(
            "JAVA_TOOL_OPTIONS",
            f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {FOR_SHORT_LIVES}".strip(),
        )
        for name, text in spark_cache.environment().items():
            patched.setenv(name, text)
        yield


@pytest.fixture(scope="session")
def spark(pyspark):
    from reports.spark_session import open_session

    session = open_session("local[2]", "1g", **FOR_SMALL_TABLES)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    binary = find()
    if binary is None:
        (pytest.fail if are_required() else pytest.skip)(
            "there is no Chromium here; on Debian: apt-get install chromium"
        )
    with browser(binary, tmp_path_factory.mktemp("chromium")) as running:
        yield running
