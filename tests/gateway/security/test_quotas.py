from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.security.quotas import (
    MAX_ENTITY_CHARS,
    QuotaEntity,
    QuotaMatch,
    check_value,
    entities_by_precedence,
    entity_text,
    make_entity,
    make_quota_filter,
)

ABSENT, DEFAULT = "", None
INVALID, UNSUPPORTED = ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION


def test_order_of_precedence_is_kafkas() -> None:
    # The order in Kafka's documentation, and whether a quota is shared by a user's client ids or
    # by a client id's users (ClientQuotaManager.DefaultQuotaCallback.quotaMetricTags).
    assert entities_by_precedence("alice", "app") == [
        (QuotaEntity("alice", "app"), ("alice", "app")),
        (QuotaEntity("alice", DEFAULT), ("alice", "app")),
        (QuotaEntity("alice", ABSENT), ("alice", "")),
        (QuotaEntity(DEFAULT, "app"), ("alice", "app")),
        (QuotaEntity(DEFAULT, DEFAULT), ("alice", "app")),
        (QuotaEntity(DEFAULT, ABSENT), ("alice", "")),
        (QuotaEntity(ABSENT, "app"), ("", "app")),
        (QuotaEntity(ABSENT, DEFAULT), ("", "app")),
    ]


def test_client_without_client_id_has_quotas_of_users_only() -> None:
    assert entities_by_precedence("alice", "") == [
        (QuotaEntity("alice", ABSENT), ("alice", "")),
        (QuotaEntity(DEFAULT, ABSENT), ("alice", "")),
    ]


def message_of(work) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as refusal:
        work()
    return refusal.value.code, refusal.value.message


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"user": "alice"}, QuotaEntity("alice", ABSENT)),
        ({"client-id": None}, QuotaEntity(ABSENT, DEFAULT)),
        ({"user": None, "client-id": "app"}, QuotaEntity(DEFAULT, "app")),
        ({"ip": "192.0.2.1"}, None),
        ({"ip": "::1"}, None),
        ({"ip": "host-1.example.com"}, None),
        ({"ip": None}, None),
    ],
)
def test_entity_is_made_of_its_names(names, expected) -> None:
    assert make_entity(names) == expected


# The messages are those of Kafka's ClientQuotaControlManager.
@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"user": ""}, "Empty user not supported"),
        ({"client-id": ""}, "Empty client-id not supported"),
        (
            {"ip": "192.0.2.1", "user": "alice"},
            "Invalid quota entity combination, IP entity shouldnot be combined with User or "
            "ClientId",
        ),
        ({"ip": "192.0.2.300"}, "192.0.2.300 is not a valid IP or resolvable host."),
        ({"ip": "not a host"}, "not a host is not a valid IP or resolvable host."),
        (
            {"user": "u" * MAX_ENTITY_CHARS, "client-id": "c"},
            "The names of an entity may have at most 4000 characters",
        ),
    ],
)
def test_invalid_entity_is_refused(names, message) -> None:
    assert message_of(lambda: make_entity(names)) == (INVALID, message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("retention.ms", 1, "Invalid configuration key retention.ms"),
        ("connection_creation_rate", 1, "Invalid configuration key connection_creation_rate"),
        ("producer_byte_rate", 0, "Quota producer_byte_rate must be greater than 0"),
        ("request_percentage", -1, "Quota request_percentage must be greater than 0"),
        ("request_percentage", float("nan"), "Quota request_percentage must be greater than 0"),
        ("consumer_byte_rate", 1.5, "consumer_byte_rate cannot be a fractional value."),
        (
            "producer_byte_rate",
            1e19,
            "Proposed value for producer_byte_rate is too large for a LONG.",
        ),
        ("controller_mutation_rate", 0, "Quota controller_mutation_rate must be greater than 0"),
        (
            "controller_mutation_rate",
            1.5,
            "The quota controller_mutation_rate is not supported: the gateway would not enforce it",
        ),
    ],
)
def test_invalid_value_is_refused(key, value, message) -> None:
    assert message_of(lambda: check_value(key, value, is_ip=False)) == (INVALID, message)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "Quota connection_creation_rate must be greater than 0"),
        (1.5, "connection_creation_rate cannot be a fractional value."),
        (3e9, "Proposed value for connection_creation_rate is too large for an INT."),
        (
            5,
            "The quota connection_creation_rate is not supported: the gateway would not enforce it",
        ),
    ],
)
def test_quotas_of_addresses_are_refused(value, message) -> None:
    refused = message_of(lambda: check_value("connection_creation_rate", value, is_ip=True))
    assert refused == (INVALID, message)
    assert message_of(lambda: check_value("producer_byte_rate", 1, is_ip=True)) == (
        INVALID,
        "Invalid configuration key producer_byte_rate",
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("producer_byte_rate", 1),
        ("consumer_byte_rate", 2.0**63),
        ("consumer_byte_rate", 5.0000001),
        ("request_percentage", 0.01),
        ("request_percentage", float("inf")),
    ],
)
def test_valid_value_is_accepted(key, value) -> None:
    check_value(key, value, is_ip=False)


def test_entity_is_named_as_in_kafkas_messages() -> None:
    assert entity_text({"user": "alice", "client-id": None}) == (
        "ClientQuotaEntity(entries={client-id=null, user=alice})"
    )


# The messages are those of Kafka's ClientQuotasImage.
@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("", 0, "x")], INVALID, "Invalid empty entity type."),
        (
            [("user", 2, None), ("user", 0, "alice")],
            INVALID,
            "Entity type user cannot appear more than once in the filter.",
        ),
        ([("group", 0, "x")], UNSUPPORTED, "Unsupported entity type group"),
        (
            [("user", 0, None)],
            INVALID,
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [("user", 1, "alice")],
            INVALID,
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [("user", 2, "alice")],
            INVALID,
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
        ([("user", 3, None)], INVALID, "Unknown match type 3"),
        (
            [("ip", 2, None), ("user", 2, None)],
            INVALID,
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component.",
        ),
    ],
)
def test_invalid_filter_is_refused(components, code, message) -> None:
    assert message_of(lambda: make_quota_filter(components, is_strict=False)) == (code, message)


NAMES = (ABSENT, DEFAULT, "a", "b")
ENTITIES = [QuotaEntity(*names) for names in product(NAMES, NAMES) if names != (ABSENT, ABSENT)]
PARTS = st.sampled_from([
    (QuotaMatch.EXACT, "a"), (QuotaMatch.EXACT, "c"), (QuotaMatch.DEFAULT, None),
    (QuotaMatch.ANY, None), None,
])  # fmt: skip


@given(PARTS, PARTS, st.booleans())
def test_filter_selects_what_each_component_selects(user, client_id, is_strict) -> None:
    """KIP-546: a component selects by the name of its type; strict excludes other types."""
    asked = {"user": user, "client-id": client_id}
    selected = make_quota_filter(
        [(kind, *part) for kind, part in asked.items() if part is not None], is_strict=is_strict
    )

    def is_wanted(name, part) -> bool:
        if part is None:
            return name == ABSENT or not is_strict
        match, text = part
        return name != ABSENT and (match is QuotaMatch.ANY or name == text)

    assert [entity for entity in ENTITIES if selected.matches(entity)] == [
        entity
        for entity in ENTITIES
        if is_wanted(entity.user, user) and is_wanted(entity.client_id, client_id)
    ]


@given(
    st.lists(
        st.tuples(st.text(max_size=9) | st.sampled_from(["user", "ip"]), st.integers(-128, 127),
                  st.none() | st.text(max_size=3)), max_size=4,
    ),
    st.booleans(),
)  # fmt: skip
def test_any_filter_is_answered_or_refused(components, is_strict) -> None:
    try:
        make_quota_filter(components, is_strict=is_strict).matches(QuotaEntity("a", None))
    except KafkaError:
        return


@given(
    st.dictionaries(
        st.text(max_size=9) | st.sampled_from(["user", "client-id", "ip"]),
        st.none() | st.text(max_size=9),
    ),
    st.text(max_size=9) | st.sampled_from(["producer_byte_rate", "request_percentage"]),
    st.floats(),
)
def test_any_change_is_accepted_or_refused(names, key, value) -> None:
    try:
        entity = make_entity(names)
        check_value(key, value, is_ip=entity is None)
    except KafkaError:
        return
