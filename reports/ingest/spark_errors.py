"""Converts disk and Spark errors to TablesError with a remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException

from reports.ingest.taken_files import TablesError

NO_SPACE = "no space left in {folder}: free some space and run it again; completed batches are kept"
JAVA_NOT_STARTED = (
    "Java did not start, see its output above: it must be version 17 or newer (`java "
    "-version`, JAVA_HOME), and --memory must look like 2g"
)
JAVA_ENDED = (
    "Java ended or was killed: if this machine ran out of memory, use a smaller --memory; run "
    "it again; completed batches are kept"
)
NO_MEMORY = (
    "Java has too little memory: increase --memory and run it again; completed batches are kept"
)
MAX_ERROR_CHARS = 500
"""Length limit of quoted Spark messages."""


@contextmanager
def translate_errors(folder: Path) -> Iterator[None]:
    """Raise disk and Spark errors as TablesError. `folder` is where they write."""
    try:
        yield
    except ConnectionError as error:
        raise TablesError(JAVA_ENDED) from error
    except OSError as error:
        raise TablesError(_os_error_text(error, folder)) from error
    except Exception as error:
        if not is_spark_error(error):
            raise
        raise TablesError(_spark_error_text(error, folder)) from error


def is_spark_error(error: Exception) -> bool:
    """Java exceptions arrive as py4j's, which only Spark imports; so they are checked by name."""
    return isinstance(error, PySparkException) or type(error).__name__ in (
        "Py4JJavaError",
        "Py4JNetworkError",
        "Py4JError",
    )


def _os_error_text(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NO_SPACE.format(folder=folder)
    return (
        f"{error.filename or folder}: {error.strerror or error}: fix this and run it again; "
        "completed batches are kept"
    )


def _spark_error_text(error: Exception, folder: Path) -> str:
    text = str(error)
    if any(
        words in text
        for words in ("No space left on device", "Disk quota exceeded", "no space left in")
    ):
        return NO_SPACE.format(folder=folder)
    if "JAVA_GATEWAY_EXITED" in text or "Java gateway process exited" in text:
        return JAVA_NOT_STARTED
    if type(error).__name__ == "Py4JNetworkError":
        return JAVA_ENDED
    if "java.lang.OutOfMemoryError" in text:
        return NO_MEMORY
    causes = [
        line.strip()
        for line in text.splitlines()
        if line.startswith(("Caused by:", ": ", "org.apache", "java."))
    ]
    return (causes or text.splitlines() or ["Spark failed"])[-1][:MAX_ERROR_CHARS]
