"""`kopgate report`, suspended at a point, so that a test can act on it there."""

from __future__ import annotations

from pathlib import Path

#: Spark's tasks sleep once a file matches the pattern, so that nothing further is finished.
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
    return write(rows.filter("java_method('java.lang.Thread', 'sleep', 86400000L) is null") if is_there else rows)

DataFrame.write = property(suspended)
main(words, prog_name="kopgate")
"""


def suspend_at(command: list[str], out: Path, there: str) -> list[str]:
    """A command (`python -m gateway report ...`) that is suspended once a file below `out` matches `there`."""
    python, _, _, *words = command
    return [python, "-c", SCRIPT, str(out), there, *words]
