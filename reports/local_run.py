"""A report by a command on this machine: Java is started for it and ends with it, whichever way that is."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from typing import Any, Protocol

from reports.failures import told
from reports.interrupts import Signals, Stopped
from reports.java import Java
from reports.run import Order, run
from reports.spark_session import open_session


class Seen(Protocol):
    """Where a person sees how far it is."""

    def __call__(self, step: str, part: float) -> None: ...

    def print_above(self, text: str) -> None: ...


def report_here(
    order: Order, master: str, memory: str, seen: Seen, signals: Signals
) -> dict[str, Any]:
    """The summary. Raises TablesError where nothing can be said, and Stopped."""
    java = Java(seen.print_above, signals.held)
    # First Java: it would write on while others clean up after it.
    signals.first = java.end
    try:
        with told(order.out):
            session = open_session(master, memory, java.launch)
        # Spark has put a handler of its own in between, which asks Java to stop what it is at, and waits for it.
        signals.take()
        return run(session, order, datetime.now(UTC), seen)
    except Exception:
        if signals.came is not None:
            # Whoever asked Java for something while it ended.
            raise Stopped(signals.came) from None
        raise
    except KeyboardInterrupt:
        # By that handler, before it was replaced.
        raise Stopped(signal.SIGINT) from None
    finally:
        java.end()
