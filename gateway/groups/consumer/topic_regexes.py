"""Which topics the regular expression of a subscription names (KIP-848). RE2's syntax, as Kafka's brokers read it, and RE2's promise: it never goes back
in a name, so no expression takes exponential time. What still takes long is refused like one that is wrong (docs/decisions/013)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import re2

from gateway.protocol.errors import ErrorCode, KafkaError

#: Instructions of a compiled expression, for each byte that one may have: names take one a letter. Each may cost 1 us for a name of 249 characters.
INSTRUCTIONS_PER_BYTE = 1.25

#: Expressions that are remembered, each with half a megabyte at the most and some kilobytes as a rule. One more is compiled anew when it is needed.
MAX_CACHED = 128

#: What looking at topics may take: so much, and so much for each, in seconds of the processor. A usual expression takes 2 us a name. The first is for
#: machines that count as work what others took of a shared processor meanwhile: a good expression must not be refused, for its consumer ends then.
MAX_CPU_SECONDS = 0.25
MAX_CPU_SECONDS_PER_NAME = 20e-6

#: So many names are looked at whatever the clock says: at most a tenth of a second of work, in which a slow clock proves nothing.
MIN_NAMES_MATCHED = 40

#: All first looks together: seconds of the processor that they may take at once, and the share of it in the long run. Whoever sends ever new costly
#: expressions waits for its own kind, and not all others for them.
NEW_REGEX_CPU_SECONDS = 1.0
NEW_REGEX_CPU_SHARE = 0.1

_MAX_MEMORY = 1 << 19


class TopicRegexes:
    """Expressions and what was found by them. A name is looked at once, so a new topic costs one look by each expression."""

    __slots__ = ("_cache", "_cpu_seconds_left", "_cpu_time", "_max_bytes", "_now", "_refilled_at")

    def __init__(
        self,
        max_bytes: int,
        cpu_time: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_bytes` is how long one may be; `cpu_time()` says how long this thread has worked and `now()` what time it is, in seconds."""
        self._max_bytes = max_bytes
        self._cpu_time = cpu_time
        self._now = now
        self._cache: dict[str, _TopicRegex] = {}
        self._cpu_seconds_left = NEW_REGEX_CPU_SECONDS
        self._refilled_at = now()

    def matching(self, expression: str, names: frozenset[str]) -> frozenset[str]:
        """Those of `names`, all names that there are, which the expression matches whole.

        Raises KafkaError: INVALID_REGULAR_EXPRESSION, COORDINATOR_NOT_AVAILABLE for a new one while too much time goes into new ones.
        """
        known = self._cache.pop(expression, None)
        if known is None:
            known, found = self._compile_and_match(expression, names)
        else:
            found = known.match(names, self._cpu_time)
        self._cache[expression] = known
        if len(self._cache) > MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        return found

    def _compile_and_match(
        self, text: str, names: frozenset[str]
    ) -> tuple[_TopicRegex, frozenset[str]]:
        now = self._now()
        self._cpu_seconds_left = min(
            self._cpu_seconds_left + (now - self._refilled_at) * NEW_REGEX_CPU_SHARE,
            NEW_REGEX_CPU_SECONDS,
        )
        self._refilled_at = now
        if self._cpu_seconds_left <= 0:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "Too many new regular expressions that take long; try again later.",
            )
        began = self._cpu_time()
        try:
            made = _TopicRegex(text, self._max_bytes)
            return made, made.match(names, self._cpu_time)
        finally:
            self._cpu_seconds_left -= self._cpu_time() - began


class _TopicRegex:
    __slots__ = ("_compiled", "_matched_names", "_matches", "_text")

    def __init__(self, text: str, max_bytes: int) -> None:
        self._text = text
        self._compiled = _compile(text, max_bytes)
        self._matched_names: frozenset[str] = frozenset()
        self._matches: frozenset[str] = frozenset()

    def match(self, names: frozenset[str], cpu_time: Callable[[], float]) -> frozenset[str]:
        if names is not self._matched_names:
            new = names - self._matched_names
            until = cpu_time() + MAX_CPU_SECONDS + MAX_CPU_SECONDS_PER_NAME * len(new)
            found = set()
            for number, name in enumerate(new):
                if self._compiled.fullmatch(name.encode()) is not None:
                    found.add(name)
                if number >= MIN_NAMES_MATCHED and cpu_time() > until:
                    raise _invalid(self._text, "it takes too long to evaluate")
            self._matches = (self._matches & names) | found
            self._matched_names = names
        return self._matches


def _compile(text: str, max_bytes: int) -> Any:
    raw = text.encode()
    if len(raw) > max_bytes:
        raise _invalid(f"{text[:40]}...", f"it has more than {max_bytes} bytes")
    options = re2.Options()
    options.max_mem = _MAX_MEMORY
    options.never_capture = True
    # To stderr, past the log, with what a stranger wrote.
    options.log_errors = False
    try:
        compiled = re2.compile(raw, options)
    except re2.error as wrong:
        raise _invalid(text, wrong.args[0].decode(errors="replace")) from None
    if compiled.programsize > max_bytes * INSTRUCTIONS_PER_BYTE:
        raise _invalid(text, "it is too large")
    return compiled


def _invalid(text: str, reason: str) -> KafkaError:
    """In Kafka's words, but for the reason."""
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{text}` is not a valid regular expression: {reason}.",
    )
