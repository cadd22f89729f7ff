"""Spark in the cache of the tests: an archive of its classes, and its Kafka source from Maven.

A JVM uses an archive only with the class path that it was made with, times of the jars included.
Each environment has its own PySpark; the folder in the cache serves all with the same version. The
Kafka source is the newest release for each Spark version, without what PySpark includes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from tests.reports.traffic.traffic_logs import Process, ms
from tests.testkit import jvm
from tests.testkit.cache import cached, command, fingerprint, maven

ROOT = Path(__file__).parents[2]
DAY = "2026-11-20"
#: Makes a report, and gives Java the time to write the archive when it is stopped.
REPORT = """
import sys
from gateway.cli.main import main
from reports import java

java.TERMINATE_SECONDS = 300.0
main(sys.argv[1:], prog_name="kopgate")
"""


def environment() -> dict[str, str]:
    """Variables with which Spark's driver starts from an archive; none if it cannot be made."""
    try:
        home = _home()
    except OSError as failure:
        warnings.warn(f"Spark starts without archived classes: {failure}", stacklevel=2)
        return {}

    def record(flags: Sequence[str]) -> None:
        _report(_with_flags(home, flags))

    flags = jvm.class_archive([home], record)
    return _with_flags(home, flags) if flags else {}


def _home() -> Path:
    """The scripts and jars of PySpark, as hard links where possible."""
    import pyspark

    source = Path(pyspark.__file__).parent
    jars = sorted((source / "jars").glob("*.jar"))

    def build(folder: Path) -> None:
        for name in ("bin", "jars", "python/lib"):
            shutil.copytree(source / name, folder / name, copy_function=_link)

    parts = [f"{jar.name} {jar.stat().st_size}" for jar in jars]
    return cached(f"spark/{pyspark.__version__}-{fingerprint(parts)}", build)


def _link(file: str, place: str) -> None:
    try:
        os.link(file, place)
    except OSError:
        # On another file system.
        shutil.copy2(file, place)


def _with_flags(home: Path, flags: Sequence[str]) -> dict[str, str]:
    return {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": " ".join(flags)}


def _report(variables: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="kopgate-classes-") as folder:
        process, begin = Process(Path(folder) / "logs"), ms(DAY)
        requests = [(0, 9, 10, 100, 100)]
        process.file(DAY, 12, process.connection(begin, begin + 60_000, ["shop"], requests))
        words = ["report", "--since", "9999d", "--master", "local[1]", "--memory", "1g"]
        folders = ["--logs", process.logs, "--out", Path(folder) / "out"]
        command([sys.executable, "-c", REPORT, *words, *folders], cwd=ROOT, env=variables)


#: By PySpark's major version. Spark may be on PyPI before its connector is on Maven; the previous
#: connector works.
JARS = {
    "4": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.12.1",
    ),
    "3": (
        "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.12:3.5.7",
        "org.apache.kafka:kafka-clients:3.4.1",
        "org.apache.commons:commons-pool2:2.11.1",
    ),
}

#: Without dependencies: PySpark includes them, and their POMs name other repositories.
DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""


def connector(version: str) -> list[Path]:
    """Return the jars for a version of PySpark. Raises CannotInstall."""
    wanted = JARS[version.partition(".")[0]]

    def build(folder: Path) -> None:
        pom = folder / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>kopgate.peers</groupId><artifactId>jars</artifactId><version>1</version>"
            "<dependencies>"
            f"{''.join(DEPENDENCY.format(*coordinate.split(':')) for coordinate in wanted)}"
            "</dependencies></project>\n"
        )
        maven("-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'jars'}")

    return sorted((cached(f"jars/spark-kafka-{fingerprint(wanted)}", build) / "jars").iterdir())
