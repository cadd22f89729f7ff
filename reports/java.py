"""Spark's Java process: starts it, forwards its output line by line without noise, and stops it."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

IGNORED_LINES = re.compile(
    r"WARNING: Using incubator modules: jdk\.incubator\.vector$"
    r"|Picked up (JAVA_TOOL|JDK_JAVA|_JAVA)_OPTIONS: "
    r'|Setting default log level to "[A-Z]+"\.$'
    r"|To adjust logging level use sc\.setLogLevel\(newLevel\)\."
)
"""Lines that Java and Spark write at every start, whatever the log level."""
PY4J_ECHOES = ("Exception while sending command.", "KeyboardInterrupt while sending command.")
"""Errors that py4j logs to the root logger and also raises.

Its finalizer thread does not raise them; it may run while Java is being stopped.
"""
TERMINATE_SECONDS = 5.0
"""Time for Java's shutdown hooks, which remove temporary files, before it is killed."""
DRAIN_SECONDS = 5.0


def silence_py4j() -> None:
    """Suppress py4j's logging of errors, under its own logger and the root logger."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_echo)


def _is_not_echo(record: logging.LogRecord) -> bool:
    return record.msg not in PY4J_ECHOES


class JavaProcess:
    """One Java process.

    `say` is called with each output line, in a thread. `deferred` wraps the start, which must not
    be interrupted halfway.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        deferred: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._say = say
        self._deferred = deferred
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._is_stopped = False

    def launch(self, conf: SparkConf) -> Any:
        """Start Java and return the gateway to it, for SparkContext."""
        silence_py4j()
        reading, writing = os.pipe()
        self._reader = threading.Thread(
            target=self._read, args=(reading,), name="words of Java", daemon=True
        )
        self._reader.start()
        with self._deferred():
            try:
                gateway = launch_gateway(conf, {"stdout": writing, "stderr": writing})
                self._process = gateway.proc
            finally:
                os.close(writing)
        return gateway

    def stop(self) -> None:
        """Stop Java and wait for its end. Later calls to it raise errors; its last output is
        discarded.
        """
        self._is_stopped = self._process is not None
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(TERMINATE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._reader is not None:
            self._reader.join(DRAIN_SECONDS)

    def _read(self, descriptor: int) -> None:
        with open(descriptor, encoding="utf-8", errors="replace") as words:
            for line in words:
                text = line.rstrip()
                if text and not self._is_stopped and not IGNORED_LINES.match(text):
                    self._say(text)
