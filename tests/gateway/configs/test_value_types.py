from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.configs.value_types import (
    ConfigDefinition,
    ConfigType,
    Rule,
    between,
    gzip_level,
    kafka_version,
    one_of,
    throttled_replicas,
)
from gateway.protocol.errors import ErrorCode, KafkaError


def definition(kind: ConfigType, rule: Rule | None = None) -> ConfigDefinition:
    return ConfigDefinition("some.config", kind, "", rule)


def refusal(kind: ConfigType, text: str, rule: Rule | None = None) -> str:
    with pytest.raises(KafkaError) as raised:
        definition(kind, rule).read(text)
    assert raised.value.code is ErrorCode.INVALID_CONFIG
    return raised.value.message


# How Kafka 3.9.2 describes a topic that was created with this text.
@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        (ConfigType.LONG, " 5 ", "5"),
        (ConfigType.LONG, "+5", "5"),
        (ConfigType.INT, "-2147483648", "-2147483648"),
        (ConfigType.LONG, "9223372036854775807", "9223372036854775807"),
        (ConfigType.BOOLEAN, " TRUE\n", "true"),
        (ConfigType.BOOLEAN, "False", "false"),
        (ConfigType.LIST, " compact ,\tdelete ", "compact,delete"),
        (ConfigType.LIST, "  ", ""),
        (ConfigType.LIST, "a,", "a,"),
        (ConfigType.STRING, " as it is ", " as it is "),
        (ConfigType.DOUBLE, "0.5", "0.5"),
        (ConfigType.DOUBLE, "1", "1.0"),
        (ConfigType.DOUBLE, ".25", "0.25"),
        # Java's Double.toString uses an exponent below 0.001 and from ten million on.
        (ConfigType.DOUBLE, "0.001", "0.001"),
        (ConfigType.DOUBLE, "0.0001", "1.0E-4"),
        (ConfigType.DOUBLE, "1.25e-5", "1.25E-5"),
        (ConfigType.DOUBLE, "12345678", "1.2345678E7"),
        (ConfigType.DOUBLE, "1e22", "1.0E22"),
        (ConfigType.DOUBLE, "-0.0001", "-1.0E-4"),
    ],
)
def test_value_is_shown_in_canonical_form(kind: ConfigType, text: str, shown: str) -> None:
    assert definition(kind).show(text) == shown


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(
            (ConfigType.INT, text)
            for text in ("", "x", "1_0", "٣", "1.0", "2147483648", "-2147483649", "0x10", "9" * 400)
        ),
        *((ConfigType.LONG, text) for text in ("9223372036854775808", "1e3", "--1")),
        *(
            (ConfigType.DOUBLE, text)
            for text in ("", "x", "1_0", "nan", "infinity", ".", "1e", "9" * 400)
        ),
        *((ConfigType.BOOLEAN, text) for text in ("", "yes", "1", "true false")),
    ],
)
def test_value_of_wrong_type_is_refused(kind: ConfigType, text: str) -> None:
    why = (
        "Expected value to be either true or false"
        if kind is ConfigType.BOOLEAN
        else f"Not a number of type {kind.name}"
    )
    assert refusal(kind, text) == f"Invalid value {text[:200]} for configuration some.config: {why}"


# Messages of Kafka 3.9.2.
@pytest.mark.parametrize(
    ("kind", "rule", "text", "complaint"),
    [
        (
            ConfigType.LONG,
            between(-1, None),
            "-2",
            "Invalid value -2 for configuration some.config: Value must be at least -1",
        ),
        (
            ConfigType.DOUBLE,
            between(0, 1),
            "2",
            "Invalid value 2.0 for configuration some.config: Value must be no more than 1",
        ),
        (
            ConfigType.LIST,
            one_of("compact", "delete"),
            "compact,zzz",
            "Invalid value zzz for configuration some.config: String must be one of: compact, "
            "delete",
        ),
        (
            ConfigType.INT,
            gzip_level,
            "0",
            "Invalid value 0 for configuration some.config: Value must be between 1 and 9 or "
            "equal to -1",
        ),
        (
            ConfigType.STRING,
            kafka_version,
            "x",
            "Invalid value x for configuration some.config: Version x is not a valid version",
        ),
        (
            ConfigType.LIST,
            throttled_replicas("some.config"),
            "x",
            "Invalid value [x] for configuration some.config: some.config must be the literal "
            "'*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
    ],
)
def test_value_that_breaks_rule_is_refused_with_kafka_message(
    kind: ConfigType, rule: Rule, text: str, complaint: str
) -> None:
    assert refusal(kind, text, rule) == complaint


@pytest.mark.parametrize(
    ("kind", "rule", "texts"),
    [
        (ConfigType.DOUBLE, between(0, 1), ["0", "1", "0.5"]),
        (ConfigType.INT, gzip_level, ["-1", "1", "9"]),
        (ConfigType.LIST, one_of("compact", "delete"), ["", "delete", "delete,compact"]),
        (ConfigType.LIST, throttled_replicas("x"), ["", "*", "0:1,2:3"]),
        (
            ConfigType.STRING,
            kafka_version,
            ["0.8.2", "0.10.2", "0.11.0-IV2", "2.8", "2.8.1", "3.0-IV1", "3.9-IV0"],
        ),
    ],
)
def test_allowed_value_is_accepted(kind: ConfigType, rule: Rule, texts: list[Any]) -> None:
    for text in texts:
        definition(kind, rule).read(text)


def test_long_invalid_value_is_quoted_partially() -> None:
    assert len(refusal(ConfigType.INT, "x" * 5000)) < 300


@given(st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: abs(value) < 1e38))
def test_shown_double_parses_to_same_number(value: float) -> None:
    one = definition(ConfigType.DOUBLE)
    assert one.read(one.show(format(value, ".17g"))) == float(format(value, ".17g"))


@given(
    st.sampled_from(
        [ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST]
    ),
    st.text(max_size=60),
)
def test_any_text_is_refused_or_shown_stably(kind: ConfigType, text: str) -> None:
    one = definition(kind)
    try:
        shown = one.show(text)
    except KafkaError:
        return
    assert one.show(shown) == shown
