"""A report by a command on this machine: Java is started for it and ends with it, whichever way that is."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from typing import Any, Protocol

from reports.interrupts import Interrupted, SignalHandler
from reports.java import JavaProcess
from reports.run import ReportRequest, run
from reports.spark_errors import translate_errors
from reports.spark_session import open_session


class ProgressDisplay(Protocol):
    """Where a person sees how far it is."""

    def __call__(self, step: str, part: float) -> None: ...

    def print_above(self, text: str) -> None: ...


def run_local_report(
    order: ReportRequest,
    master: str,
    memory: str,
    progress: ProgressDisplay,
    signals: SignalHandler,
) -> dict[str, Any]:
    """The summary. Raises TablesError where nothing can be said, and Stopped."""
    java = JavaProcess(progress.print_above, signals.deferred)
    # First Java: it would write on while others clean up after it.
    signals.before_interrupt = java.stop
    try:
        with translate_errors(order.out):
            session = open_session(master, memory, java.launch)
        # Spark has put a handler of its own in between, which asks Java to stop what it is at, and waits for it.
        signals.reinstall()
        return run(session, order, datetime.now(UTC), progress)
    except Exception:
        if signals.received is not None:
            # Whoever asked Java for something while it ended.
            raise Interrupted(signals.received) from None
        raise
    except KeyboardInterrupt:
        # By that handler, before it was replaced.
        raise Interrupted(signal.SIGINT) from None
    finally:
        java.stop()
