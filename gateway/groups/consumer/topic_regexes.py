"""Regular expressions in subscriptions (KIP-848), in RE2 syntax like Kafka's.

RE2 does not backtrack, so no expression takes exponential time. Expressions that are still too slow
are refused like malformed ones (docs/decisions/013).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import re2

from gateway.protocol.errors import ErrorCode, KafkaError

#: Limit on compiled instructions per allowed byte; a literal name takes one per letter. An
#: instruction may cost 1 us for a name of 249 characters.
INSTRUCTIONS_PER_BYTE = 1.25

#: Limit on cached expressions, each at most 512 KiB and usually a few KiB. The oldest one is
#: evicted and compiled again when needed.
MAX_CACHED = 128

#: CPU time in seconds for matching all topics: a constant plus an amount per name. An ordinary
#: expression takes 2 us per name. The constant allows for virtual machines that report stolen time
#: as CPU time, because a refusal makes the consumer fail.
MAX_CPU_SECONDS = 0.25
MAX_CPU_SECONDS_PER_NAME = 20e-6

#: Names that are matched regardless of the CPU time: at most a tenth of a second of work. The clock
#: is too coarse to judge fewer.
MIN_NAMES_MATCHED = 40

#: CPU time for new expressions: seconds in a burst, and the share in the long run. A client that
#: sends many slow expressions delays only new expressions.
NEW_REGEX_CPU_SECONDS = 1.0
NEW_REGEX_CPU_SHARE = 0.1

_MAX_MEMORY = 1 << 19


class TopicRegexes:
    """Compiled expressions and their matches.

    Each name is matched once per expression, so a new topic costs one match per expression.
    """

    __slots__ = ("_cache", "_cpu_seconds_left", "_cpu_time", "_max_bytes", "_now", "_refilled_at")

    def __init__(
        self,
        max_bytes: int,
        cpu_time: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_bytes` limits an expression's length.

        `cpu_time` returns the thread's CPU time and `now` a monotonic time, both in seconds.
        """
        self._max_bytes = max_bytes
        self._cpu_time = cpu_time
        self._now = now
        self._cache: dict[str, _TopicRegex] = {}
        self._cpu_seconds_left = NEW_REGEX_CPU_SECONDS
        self._refilled_at = now()

    def matching(self, expression: str, names: frozenset[str]) -> frozenset[str]:
        """The subset of `names`, all existing topics, that the expression matches completely.

        Raises KafkaError: INVALID_REGULAR_EXPRESSION, or COORDINATOR_NOT_AVAILABLE for a new
        expression while the CPU time for new ones is used up.
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
                "Too many slow new regular expressions; retry later.",
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
    # Errors go into the reply. RE2 would write them, with the client's text, to stderr.
    options.log_errors = False
    try:
        compiled = re2.compile(raw, options)
    except re2.error as wrong:
        raise _invalid(text, wrong.args[0].decode(errors="replace")) from None
    if compiled.programsize > max_bytes * INSTRUCTIONS_PER_BYTE:
        raise _invalid(text, "it is too large")
    return compiled


def _invalid(text: str, reason: str) -> KafkaError:
    """The message is Kafka's, except for the reason."""
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{text}` is not a valid regular expression: {reason}.",
    )
