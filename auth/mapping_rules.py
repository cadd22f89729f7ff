"""What rules for principals share: patterns in RE2's syntax, replacements as in Java.

RE2 has neither lookahead nor back references in patterns, and takes linear time for every name that
a client chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import re2

MAX_RULES = 100
"""Most rules of a setting; each log-in may try all of them."""


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern. Raises ValueError with a message for the user."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "replace")
        raise ValueError(f"pattern {pattern!r}: {reason} (RE2 syntax)") from None


def substitute(pattern: Any, replacement: Sequence[str | int], text: str, limit: int = 0) -> str:
    """Replace the matches, or the first `limit` of them, as String.replaceAll does."""
    parts, end = [], 0
    for number, match in enumerate(pattern.finditer(text), 1):
        parts.append(text[end : match.start()])
        parts += [
            part if isinstance(part, str) else match.group(part) or "" for part in replacement
        ]
        end = match.end()
        if number == limit:
            break
    return "".join(parts) + text[end:]


def parse_replacement(text: str, groups: int) -> Iterator[str | int]:
    """Split a replacement into texts and numbers of groups, as Matcher.appendReplacement of Java
    does: `$1` is a group, and a backslash makes the next character literal.

    As in Java, a number ends before the digit with which it would exceed the number of groups. A
    single digit without a group is yielded, too. Raises ValueError.
    """
    at = 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            yield text[at + 1]
            at += 2
        elif text[at] == "$":
            end = at + 1
            while (
                end < len(text)
                and text[end] in "0123456789"
                and (end == at + 1 or int(text[at + 1 : end + 1]) <= groups)
            ):
                end += 1
            if end == at + 1 or (not groups and text[at + 1] != "0"):
                raise ValueError(
                    f"replacement {text!r}: the pattern has no group {text[at : at + 2]!r}; a "
                    "literal '$' is '\\$'"
                )
            yield int(text[at + 1 : end])
            at = end
        else:
            yield text[at]
            at += 1
