"""Regular expressions in subscriptions: RE2 semantics and limits on cost."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.consumer import topic_regexes
from gateway.groups.consumer.topic_regexes import (
    MAX_CACHED,
    MAX_CPU_SECONDS,
    MAX_CPU_SECONDS_PER_NAME,
    MIN_NAMES_MATCHED,
    TopicRegexes,
)
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings

MAX_BYTES = Settings().group_consumer_regex_max_bytes
NAMES = frozenset({"orders", "orders-eu", "orders.v2", "Orders", "bills", "bill", "a_1"})


def found(expression, names=NAMES):
    return sorted(TopicRegexes(MAX_BYTES).matching(expression, frozenset(names)))


def refusal(expression, names=NAMES, **settings):
    with pytest.raises(KafkaError) as refused:
        TopicRegexes(MAX_BYTES, **settings).matching(expression, frozenset(names))
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    return refused.value.message


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-eu", "orders.v2"]),
        ("^orders$", ["orders"]),
        ("bills?", ["bill", "bills"]),
        ("bill|a_1", ["a_1", "bill"]),
        ("(?i)orders", ["Orders", "orders"]),
        (r"orders\.v\d", ["orders.v2"]),
        (r"\Qorders.v2\E", ["orders.v2"]),
        (r"[[:lower:]]+", ["bill", "bills", "orders"]),
        (r"\p{Lu}\w+", ["Orders"]),
        ("(?P<what>bill).", ["bills"]),
        ("[^ö]{4}", ["bill"]),
        ("ö?bill", ["bill"]),
        ("nothing", []),
        (".", []),
    ],
)
def test_regex_matches_whole_names(expression, expected):
    assert found(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "[a",
        "(a",
        "a)",
        "*",
        "a**",
        r"\8",
        r"(a)\1",
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "a{1001}",
        "((a{100}){100}){2}",
        "\\",
    ],
)
def test_regex_beyond_re2_syntax_is_refused(expression):
    assert refusal(expression).startswith(
        f"SubscribedTopicRegex `{expression}` is not a valid regular expression: "
    )


def test_matches_follow_created_and_deleted_topics():
    kept = TopicRegexes(MAX_BYTES)
    assert kept.matching("orders.*", frozenset({"orders", "bills"})) == {"orders"}
    assert kept.matching("orders.*", frozenset({"orders", "orders-eu"})) == {"orders", "orders-eu"}
    assert kept.matching("orders.*", frozenset({"orders-eu"})) == {"orders-eu"}
    assert kept.matching("orders.*", frozenset({"orders-eu", "orders"})) == {"orders-eu", "orders"}


@given(
    st.lists(st.frozensets(st.sampled_from(sorted(NAMES))), max_size=6),
    st.sampled_from(["orders.*", "b.*", ".*s", "bill"]),
)
def test_cache_does_not_change_matches(moments, expression):
    kept = TopicRegexes(MAX_BYTES)
    for names in moments:
        assert sorted(kept.matching(expression, names)) == found(expression, names)


def test_each_name_is_matched_once(monkeypatch):
    looks = []
    compiled = topic_regexes._compile("orders", MAX_BYTES)

    class Counted:
        def fullmatch(self, name):
            looks.append(name)
            return compiled.fullmatch(name)

    monkeypatch.setattr(topic_regexes, "_compile", lambda text, max_bytes: Counted())
    kept = TopicRegexes(MAX_BYTES)
    kept.matching("orders", frozenset({"orders", "bills"}))
    kept.matching("orders", frozenset({"orders", "bills", "bill"}))
    assert sorted(looks) == [b"bill", b"bills", b"orders"]


def test_least_recently_used_regex_is_evicted():
    kept = TopicRegexes(MAX_BYTES)
    for number in range(MAX_CACHED + 10):
        kept.matching("orders", NAMES)
        kept.matching(f"orders{number}", NAMES)
    assert len(kept._cache) == MAX_CACHED
    assert "orders" in kept._cache


def test_too_long_regex_is_refused_and_truncated_in_error():
    assert found("a" * MAX_BYTES) == []
    assert len(refusal("ö" * (MAX_BYTES // 2 + 1))) < 200


def test_too_slow_regex_is_refused():
    ticks = count(0, 2 * MAX_CPU_SECONDS)
    names = {f"bills{number}" for number in range(MIN_NAMES_MATCHED + 1)}
    assert "too long" in refusal("bills", names, cpu_time=lambda: next(ticks))


def test_slow_clock_does_not_refuse_regex_for_few_names():
    ticks = count(0, 2 * MAX_CPU_SECONDS)
    names = {f"bills{number}" for number in range(MIN_NAMES_MATCHED)}
    assert TopicRegexes(MAX_BYTES, cpu_time=lambda: next(ticks)).matching(
        "bills1", frozenset(names)
    ) == {"bills1"}


@pytest.mark.long
@pytest.mark.parametrize(
    "expression",
    [
        "((a|b)?){1000}",
        "(?:(?:(?:(?:a|b)?){30}){30})",
        "(?i)" + r"\pL" * 600,
        "(a{1000})" * 200,
        r"(?i)[^\pL]" * 200,
        ".*a.{200}b.*|.*b.{200}a.*",
        "(a*)*" * 400 + "c",
        "(" * 1000 + ")" * 1000,
    ],
)
def test_no_regex_exceeds_cpu_limit(expression):
    names = frozenset(("ab" * 125)[number % 40 :] + str(number) for number in range(5000))
    began = time.thread_time()
    with suppress(KafkaError):
        TopicRegexes(MAX_BYTES).matching(expression, names)
    # Without the limit, the first two would take 20 seconds.
    assert time.thread_time() - began < 10 * (
        MAX_CPU_SECONDS + MAX_CPU_SECONDS_PER_NAME * len(names)
    )


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    | st.text("ab.*+?(){}[]|^$\\1,-", max_size=20)
)
def test_any_text_is_matched_or_refused(text):
    with suppress(KafkaError):
        assert TopicRegexes(MAX_BYTES).matching(text, NAMES) <= NAMES


def test_ordinary_regex_matches_ten_thousand_topics_within_limit():
    """Slower expressions are refused. This one needs less than a tenth of the limit."""
    names = frozenset(f"team-{number % 17}.orders.region-{number}" for number in range(10_000))
    assert len(TopicRegexes(MAX_BYTES).matching("team-3\\.orders\\..*", names)) == 589


def test_new_slow_regexes_share_limited_cpu_time():
    ticks, texts, now = count(0, MAX_CPU_SECONDS / 4), map(str, count()), [0.0]
    kept = TopicRegexes(MAX_BYTES, lambda: next(ticks), lambda: now[0])
    assert kept.matching("orders", frozenset({"orders"})) == {"orders"}

    def outcome():
        """The outcome of the next new expression."""
        try:
            kept.matching(next(texts), frozenset({"orders"}))
        except KafkaError as failure:
            return failure.code
        return ErrorCode.NONE

    def looks():
        """Number of new expressions evaluated until the time is used up."""
        return len(list(iter(outcome, ErrorCode.COORDINATOR_NOT_AVAILABLE)))

    first = looks()
    assert looks() == 0
    assert kept.matching("orders", frozenset({"orders"})) == {"orders"}
    now[0] = 2.0
    assert 0 < looks() < first / 2
    now[0] = 1000.0
    assert looks() >= first
