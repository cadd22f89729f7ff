"""Types and validation rules of config values, as in Kafka's ConfigDef."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any

from gateway.protocol.errors import ErrorCode, KafkaError

INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1

#: Characters that Java's String.trim removes.
_WHITESPACE = "".join(map(chr, range(0x21)))

# int() and float() also accept underscores, digits of other scripts, and "nan".
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?\Z")
_COMMA = re.compile(r"[ \t\n\v\f\r]*,[ \t\n\v\f\r]*")

#: Characters of an invalid value quoted in a message.
_MAX_QUOTED_CHARS = 200


class ConfigType(IntEnum):
    """Config types of DescribeConfigsResponse (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class _InvalidValue(Exception):
    """Raised by a rule: the invalid part of the value, and the reason."""

    def __init__(self, shown: str, why: str) -> None:
        super().__init__(why)
        self.shown = shown
        self.why = why


#: Checks a parsed value; raises _InvalidValue.
Rule = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """A config: name, type, documentation and validation rule."""

    name: str
    type: ConfigType
    documentation: str
    rule: Rule | None = None

    def read(self, text: str) -> Any:
        """Parse a value into bool, int, float, str, or list of str for a LIST.

        Raises KafkaError(INVALID_CONFIG) with Kafka's message.
        """
        try:
            value = _READ[self.type](text)
            if self.rule is not None:
                self.rule(value)
        except _InvalidValue as wrong:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Invalid value {wrong.shown[:_MAX_QUOTED_CHARS]} for configuration {self.name}: "
                f"{wrong.why}",
            ) from None
        return value

    def show(self, text: str) -> str:
        """Return the value in canonical form. Raises KafkaError(INVALID_CONFIG)."""
        return show(self.read(text))


def show(value: Any) -> str:
    """Format a value as ConfigDef.convertToString."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    return ",".join(value) if isinstance(value, list) else str(value)


def at_least(lowest: int) -> Rule:
    return between(lowest, None)


def between(lowest: int, highest: int | None) -> Rule:
    """Return a rule for values from `lowest` to `highest`, inclusive."""

    def rule(value: float) -> None:
        if value < lowest:
            raise _InvalidValue(show(value), f"Value must be at least {lowest}")
        if highest is not None and value > highest:
            raise _InvalidValue(show(value), f"Value must be no more than {highest}")

    return rule


def gzip_level(value: int) -> None:
    if value != -1 and not 1 <= value <= 9:
        raise _InvalidValue(str(value), "Value must be between 1 and 9 or equal to -1")


def one_of(*choices: str) -> Rule:
    """Return a rule for a STRING, or each item of a LIST, that must be one of these."""

    def rule(value: str | list[str]) -> None:
        for item in [value] if isinstance(value, str) else value:
            if item not in choices:
                raise _InvalidValue(item, f"String must be one of: {', '.join(choices)}")

    return rule


_VERSION = re.compile(
    r"(0\.(8\.[0-2]|9\.0|10\.[0-2]|11\.0)|[1-9]\.[0-9]{1,2})(\.[0-9]{1,3})?(-IV[0-9]{1,2})?\Z"
)


def kafka_version(value: str) -> None:
    """Check for a Kafka release or intermediate version, such as 2.8-IV1 (MetadataVersion)."""
    if not _VERSION.match(value):
        raise _InvalidValue(value, f"Version {value[:_MAX_QUOTED_CHARS]} is not a valid version")


_REPLICA = re.compile(r"([0-9]+:[0-9]+)?\Z")


def throttled_replicas(name: str) -> Rule:
    """Return a rule for `*` or partition:broker pairs (ThrottledReplicaListValidator)."""

    def rule(value: list[str]) -> None:
        if "".join(value) != "*" and not all(_REPLICA.match(item) for item in value):
            raise _InvalidValue(
                f"[{', '.join(value)}]",
                f"{name} must be the literal '*' or a list of replicas in the following format: "
                "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
            )

    return rule


def _read_boolean(text: str) -> bool:
    word = text.strip(_WHITESPACE).lower()
    if word not in ("true", "false"):
        raise _InvalidValue(text, "Expected value to be either true or false")
    return word == "true"


def _integer_up_to(bound: int, noun: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.strip(_WHITESPACE)
        if not _INTEGER.match(digits) or not -bound - 1 <= int(digits) <= bound:
            raise _InvalidValue(text, f"Not a number of type {noun}")
        return int(digits)

    return read


def _read_double(text: str) -> float:
    digits = text.strip(_WHITESPACE)
    if not _DECIMAL.match(digits):
        raise _InvalidValue(text, "Not a number of type DOUBLE")
    return float(digits)


def _read_list(text: str) -> list[str]:
    trimmed = text.strip(_WHITESPACE)
    return _COMMA.split(trimmed) if trimmed else []


def _java_double(value: float) -> str:
    """Format as Java's Double.toString: with an exponent below 0.001 and from ten million on."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    if not isinstance(exponent, int):
        return repr(value)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{exponent + len(digits) - 1}"


_READ: dict[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: _read_boolean,
    ConfigType.STRING: str,
    ConfigType.INT: _integer_up_to(INT_MAX, "INT"),
    ConfigType.LONG: _integer_up_to(LONG_MAX, "LONG"),
    ConfigType.DOUBLE: _read_double,
    ConfigType.LIST: _read_list,
}
