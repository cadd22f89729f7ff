"""Checks made before Spark is started, which takes a while."""

from __future__ import annotations

import tempfile
from pathlib import Path

from reports.ingest import log_files
from reports.ingest.taken_files import Tables, TablesError

NOTHING = (
    "no traffic log data in {place}: --logs must be the folder that `kopgate serve "
    "--traffic-log` writes to; files appear a minute after clients connect"
)


def check_folders_apart(logs: Path, out: Path) -> None:
    """Raise TablesError if the report would be written into the log folder."""
    if out.resolve() == logs.resolve() or logs.resolve() in out.resolve().parents:
        raise TablesError(
            f"{out} is inside {logs}: choose another folder for the report with --out"
        )


def check_preconditions(logs: Path | None, out: Path) -> None:
    """Raise TablesError if there is nothing to report or the output folder is not writable."""
    if logs:
        check_folders_apart(logs, out)
    try:
        if not (logs and log_files.find(logs)) and not Tables(out / "tables").batches():
            raise TablesError(NOTHING.format(place=logs or out / "tables"))
    except OSError as error:
        raise TablesError(
            f"{error.filename or logs}: {error.strerror}; a report reads the whole log"
        ) from error
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise TablesError(
            f"{out} is not writable: {error.strerror}; make it writable, or choose "
            "another folder with --out"
        ) from error
