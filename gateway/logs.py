"""The log: one line per event, written by a separate thread.

A blocked stderr therefore never blocks the reactor.

An event has a name and fields: `logs.get_logger(__name__).warning("refused", peer=peer, api_key=3)`
is written as

    2026-11-21T10:58:44.123Z warning gateway.protocol.session refused peer=127.0.0.1:5000 api_key=3

or as one JSON object. Values that a client sent are escaped, so they cannot forge lines or send
control characters to a terminal. The log uses `logging`, so events of other libraries have the same
format.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec

Field = str | int | float | bool | bytes | None

OWN_PACKAGES = ("gateway", "auth", "compat", "records", "storage")
"""The packages that `log_level` applies to. Others log from `warning` up unless set otherwise."""

MAX_VALUE_CHARS = 1_000
MAX_TRACEBACK_CHARS = 16_000
"""Values are truncated to these lengths. A client id may have 32 KiB."""

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_BARE = re.compile(r"[A-Za-z0-9_.:/@%+,\[\]()*~^$#!?;&<>|-]+\Z")
_NOT_PLAIN = re.compile(r"[^\x20-\x7e]")


class EventLogger:
    """The events of one module. The first argument is the event, the others are its fields."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: Field) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Field) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Field) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Field) -> None:
        self._log(logging.ERROR, event, fields)

    def bug(self, event: str, error: BaseException, /, **fields: Field) -> None:
        """Log an unexpected error, with its traceback in the same line."""
        if self._logger.isEnabledFor(logging.ERROR):
            trace = "".join(traceback.format_exception(error))
            self._log(
                logging.ERROR,
                event,
                {**fields, "error": f"{type(error).__name__}: {error}", "traceback": trace},
            )

    def is_debug_enabled(self) -> bool:
        """Whether `debug` events are written. Check it before computing fields of debug events."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def _log(self, level: int, event: str, fields: Mapping[str, Field]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={"event": event, "fields": fields})


def get_logger(name: str) -> EventLogger:
    """The logger of that name, usually `__name__`."""
    return EventLogger(name)


class LogStream(Protocol):
    """Where lines are written: stderr, or a buffer in tests."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class ProcessLog:
    """The log of this process while it is open; a context manager.

    `context` are fields that every line gets. `dropped` counts lines lost to a full queue or a
    failing stream.
    """

    def __init__(
        self,
        sink: LogStream,
        layout: Literal["text", "json"] = "text",
        level: str = "info",
        levels: Mapping[str, str] | None = None,
        queue_events: int = 10_000,
        context: Mapping[str, Field] | None = None,
    ) -> None:
        self._writer = _Writer(sink, _FORMATS[layout](context or {}), queue_events)
        self._levels = {"": "warning", **dict.fromkeys(OWN_PACKAGES, level), **(levels or {})}
        self._before: dict[str, int] = {}
        self._handlers_before: list[logging.Handler] = []

    def __enter__(self) -> Self:
        root = logging.getLogger()
        for name, level in self._levels.items():
            logger = logging.getLogger(name)
            self._before[name] = logger.level
            logger.setLevel(_LEVELS[level])
        self._handlers_before, root.handlers = root.handlers, [self._writer]
        self._writer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    def close(self, timeout: float = 2.0) -> None:
        """Write queued lines for at most `timeout` seconds and restore `logging`.

        A thread whose stream still blocks is abandoned.
        """
        root = logging.getLogger()
        if self._writer in root.handlers:
            root.handlers = self._handlers_before
            for name, level in self._before.items():
                logging.getLogger(name).setLevel(level)
        self._writer.stop(timeout)


class _Writer(logging.Handler):
    """Formats events in the calling thread and writes them in another.

    Formatting first avoids references to connections in the queue.
    """

    def __init__(self, sink: LogStream, formatter: logging.Formatter, queue_events: int) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.dropped = 0
        self._reported_drops = 0
        self._sink = sink
        self._queue: queue.Queue[str | None] = queue.Queue(queue_events)
        self._stopping = threading.Event()
        # A daemon thread: the process can end while a blocked stderr still blocks it.
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> None:
        if self._stopping.is_set():
            return
        self._stopping.set()
        with suppress(queue.Full):  # a full queue wakes the thread anyway
            self._queue.put_nowait(None)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._queue.put_nowait(self.format(record))
        except queue.Full:
            self.dropped += 1
        except Exception:  # noqa: BLE001 - a faulty log call must not fail its caller
            self.dropped += 1

    def _run(self) -> None:
        while True:
            line = self._queue.get()
            if line is not None:
                self._write(line)
            if self.dropped > self._reported_drops and self._queue.empty():
                self._log_drops()
            if self._stopping.is_set() and self._queue.empty():
                return

    def _log_drops(self) -> None:
        count, self._reported_drops = self.dropped - self._reported_drops, self.dropped
        fields = {
            "event": "lines dropped",
            "fields": {"count": count, "reason": "stderr was too slow or closed"},
        }
        record = logging.makeLogRecord(
            {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", **fields}
        )
        self._write(self.format(record))

    def _write(self, line: str) -> None:
        try:
            self._sink.write(line + "\n")
            if self._queue.empty():
                self._sink.flush()
        except (OSError, ValueError):  # pipe or file closed, disk full
            self.acquire()  # `emit` counts under the same lock
            self.dropped += 1
            self.release()


class _Layout(logging.Formatter):
    def __init__(self, context: Mapping[str, Field]) -> None:
        super().__init__()
        self._context = context


class _Text(_Layout):
    def format(self, record: logging.LogRecord) -> str:
        event, fields = _event_of(record, self._context)
        shown = [
            _time(record),
            record.levelname.lower(),
            _quote(record.name),
            _quote(event, also=" "),
        ]
        shown += [
            f"{_quote(name)}={_quote(_text_of(name, value))}" for name, value in fields.items()
        ]
        return " ".join(shown)


class _Json(_Layout):
    def format(self, record: logging.LogRecord) -> str:
        event, fields = _event_of(record, self._context)
        row: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "part": record.name,
            "event": _without_surrogates(event),
        }
        for name, value in fields.items():
            row[name if name not in row else f"{name}_"] = (
                value if isinstance(value, int | float | bool | None) else _text_of(name, value)
            )
        return _NOT_PLAIN.sub(_as_escape, msgspec.json.encode(row).decode())


_FORMATS = {"text": _Text, "json": _Json}


def _event_of(
    record: logging.LogRecord, context: Mapping[str, Field]
) -> tuple[str, Mapping[str, object]]:
    """The event and its fields, with those of `context`.

    For a record of another library: the event `message`, with its text and traceback as fields.
    """
    event = getattr(record, "event", None)
    fields = getattr(record, "fields", None)
    if isinstance(event, str) and isinstance(fields, Mapping):
        return event, {**context, **fields} if context else fields
    foreign: dict[str, object] = {**context, "text": record.getMessage()}
    if record.exc_info and record.exc_info[1]:
        foreign["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
    return "message", foreign


def _as_escape(match: re.Match[str]) -> str:
    """JSON's escape of one character; a surrogate pair above U+FFFF."""
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _time(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _text_of(name: str, value: object) -> str:
    text = (
        value
        if isinstance(value, str)
        else value.hex()
        if isinstance(value, bytes | bytearray | memoryview)
        else str(value)
    )
    limit = MAX_TRACEBACK_CHARS if name == "traceback" else MAX_VALUE_CHARS
    if len(text) > limit:
        # The end of a traceback and the beginning of other values matter most.
        cut = f"...({len(text) - limit} more)"
        text = cut + text[-limit:] if name == "traceback" else text[:limit] + cut
    return _without_surrogates(text)


def _without_surrogates(text: str) -> str:
    """Escape lone surrogates, which no encoding can represent."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _quote(text: str, also: str = "") -> str:
    """Return plain ASCII without spaces unchanged, and other text as an ASCII JSON string.

    `also` lists further plain characters.
    """
    plain = text.replace(also, "") if also else text
    return text if _BARE.match(plain) else json.dumps(text).replace("\x7f", "\\u007f")
