"""A report on this machine: Java is started for it and always stopped with it."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from typing import Any, Protocol

from reports.ingest.spark_errors import translate_errors
from reports.interrupts import Interrupted, SignalHandler
from reports.java import JavaProcess
from reports.run import ReportRequest, run
from reports.spark_session import open_session


class ProgressDisplay(Protocol):
    """Shows the progress to a person."""

    def __call__(self, step: str, part: float) -> None: ...

    def print_above(self, text: str) -> None: ...


def run_local_report(
    order: ReportRequest,
    master: str,
    memory: str,
    progress: ProgressDisplay,
    signals: SignalHandler,
) -> dict[str, Any]:
    """Return the summary. Raises TablesError if there is no result, and Interrupted."""
    java = JavaProcess(progress.print_above, signals.deferred)
    # Java is stopped first; it would continue to write during cleanup.
    signals.before_interrupt = java.stop
    try:
        with translate_errors(order.out):
            session = open_session(master, memory, java.launch)
        # Spark installs its own SIGINT handler, which asks Java to cancel its jobs and waits for
        # it.
        signals.reinstall()
        return run(session, order, datetime.now(UTC), progress)
    except Exception:
        if signals.received is not None:
            # A call to Java failed because it was being stopped.
            raise Interrupted(signals.received) from None
        raise
    except KeyboardInterrupt:
        # Raised by Spark's handler, before it was replaced.
        raise Interrupted(signal.SIGINT) from None
    finally:
        java.stop()
