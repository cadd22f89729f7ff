"""Runs `kopgate report` until a given point and suspends it there."""

from __future__ import annotations

from pathlib import Path

#: Spark's tasks sleep once a file matches the pattern, so that nothing further is completed.
SCRIPT = """
import sys
from pathlib import Path
from gateway.cli.main import main

try:
    from pyspark.sql.classic.dataframe import DataFrame
except ImportError:  # before Spark 4
    from pyspark.sql import DataFrame

out, there, *words = sys.argv[1:]
write = DataFrame.write.fget

def suspended(rows):
    is_there = any(Path(out).glob(there))
    sleep = "java_method('java.lang.Thread', 'sleep', 86400000L) is null"
    return write(rows.filter(sleep) if is_there else rows)

DataFrame.write = property(suspended)
main(words, prog_name="kopgate")
"""


def suspend_at(command: list[str], out: Path, there: str) -> list[str]:
    """Return a command (`python -m gateway report ...`) that suspends once a file in `out` matches
    `there`.
    """
    python, _, _, *words = command
    return [python, "-c", SCRIPT, str(out), there, *words]
