"""What a config's value may be: its type, its bounds, and the one way in which it is shown. The rules are those of Kafka's ConfigDef."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any

from gateway.protocol.errors import ErrorCode, KafkaError

INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1

#: What Java's String.trim takes off.
_WHITESPACE = "".join(map(chr, range(0x21)))

# int() and float() themselves would also take underscores, digits of other scripts, and "nan".
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?\Z")
_COMMA = re.compile(r"[ \t\n\v\f\r]*,[ \t\n\v\f\r]*")

#: How much of a wrong value a message quotes, in characters.
_MAX_QUOTED_CHARS = 200


class ConfigType(IntEnum):
    """DescribeConfigsResponse's config types (KIP-569)."""

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
    """A value that a rule does not pass: what of it, and why."""

    def __init__(self, shown: str, why: str) -> None:
        super().__init__(why)
        self.shown = shown
        self.why = why


#: Looks at a value of the config's type and raises _Wrong.
Rule = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """One config: its name, its type, what else its value must be, and what it is for."""

    name: str
    type: ConfigType
    documentation: str
    rule: Rule | None = None

    def read(self, text: str) -> Any:
        """The value: bool, int, float, str, or for a LIST a list of str. Raises KafkaError(INVALID_CONFIG) in Kafka's words."""
        try:
            value = _READ[self.type](text)
            if self.rule is not None:
                self.rule(value)
        except _InvalidValue as wrong:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Invalid value {wrong.shown[:_MAX_QUOTED_CHARS]} for configuration {self.name}: {wrong.why}",
            ) from None
        return value

    def show(self, text: str) -> str:
        """The same value in the one form in which it is told to clients. Raises as `read`."""
        return show(self.read(text))


def show(value: Any) -> str:
    """A value as ConfigDef.convertToString writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    return ",".join(value) if isinstance(value, list) else str(value)


def at_least(lowest: int) -> Rule:
    return between(lowest, None)


def between(lowest: int, highest: int | None) -> Rule:
    """Raises _Wrong outside `lowest` to `highest`, both of them allowed."""

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
    """For a STRING: one of these; for a LIST: each item one of these."""

    def rule(value: str | list[str]) -> None:
        for item in [value] if isinstance(value, str) else value:
            if item not in choices:
                raise _InvalidValue(item, f"String must be one of: {', '.join(choices)}")

    return rule


_VERSION = re.compile(
    r"(0\.(8\.[0-2]|9\.0|10\.[0-2]|11\.0)|[1-9]\.[0-9]{1,2})(\.[0-9]{1,3})?(-IV[0-9]{1,2})?\Z"
)


def kafka_version(value: str) -> None:
    """A release of Kafka, or one of its intermediate versions, such as 2.8-IV1 (MetadataVersion)."""
    if not _VERSION.match(value):
        raise _InvalidValue(value, f"Version {value[:_MAX_QUOTED_CHARS]} is not a valid version")


_REPLICA = re.compile(r"([0-9]+:[0-9]+)?\Z")


def throttled_replicas(name: str) -> Rule:
    """All of them, or partition:broker pairs (ThrottledReplicaListValidator)."""

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
    """As Java's Double.toString: decimal from 0.001 on and below ten million, otherwise with an exponent."""
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
