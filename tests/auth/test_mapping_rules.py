"""Substitution as in Java. Expected texts are those of String.replaceAll and replaceFirst."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.mapping_rules import compile_pattern, parse_replacement, substitute


def replaced(pattern, replacement, text, limit=0):
    compiled = compile_pattern(pattern)
    return substitute(compiled, list(parse_replacement(replacement, compiled.groups)), text, limit)


@pytest.mark.parametrize(
    ("pattern", "replacement", "limit", "expected"),
    [
        ("a", "x", 0, "xbcxbc"),
        ("a", "x", 1, "xbcabc"),
        ("(a)(b)", "$2$1", 0, "bacbac"),
        ("(a)|(b)", "<$2>", 0, "<><b>c<><b>c"),
        ("(a)", "$12", 0, "a2bca2bc"),
        ("a", r"\$1\\", 0, "$1\\bc$1\\bc"),
        ("a", "$0$0", 1, "aabcabc"),
        ("b?", "-", 0, "-a--c-a--c-"),
        ("z", "x", 0, "abcabc"),
    ],
)
def test_matches_are_replaced_as_in_java(pattern, replacement, limit, expected):
    assert replaced(pattern, replacement, "abcabc", limit) == expected


@pytest.mark.parametrize("replacement", ["$", "$a", "a$"])
def test_dollar_without_number_is_refused(replacement):
    with pytest.raises(ValueError, match="a literal"):
        list(parse_replacement(replacement, 3))


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "[a"])
def test_pattern_that_re2_cannot_read_is_refused(pattern):
    with pytest.raises(ValueError, match="RE2 syntax") as raised:
        compile_pattern(pattern)
    assert "b'" not in str(raised.value)


@given(st.text(), st.text(max_size=30), st.integers(0, 3))
def test_text_without_special_characters_is_literal(text, replacement, limit):
    plain = replacement.replace("\\", "").replace("$", "")
    assert replaced("a", plain, text, limit) == text.replace("a", plain, limit or -1)
