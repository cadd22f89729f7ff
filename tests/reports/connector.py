"""Spark's Kafka source from Maven: the newest release for each Spark version, without what PySpark
includes.
"""

from __future__ import annotations

from pathlib import Path

from tests.testkit.cache import cached, command, fingerprint

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
        command(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                pom,
                "dependency:copy-dependencies",
                f"-DoutputDirectory={folder / 'jars'}",
            ]
        )

    return sorted((cached(f"jars/spark-kafka-{fingerprint(wanted)}", build) / "jars").iterdir())
