"""Short names of Kerberos principals.

Expected names and refusals are those of Kafka's KerberosNameTest and KerberosRuleTest, unless a
comment says otherwise.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.kerberos_names import MAX_NAME_CHARACTERS, KerberosRules, NoMatchingRule
from auth.mapping_rules import MAX_RULES
from auth.mechanism import AuthenticationFailed, Principal

REALM = "REALM.COM"
APPS = (
    r"RULE:[1:$1](App\..*)s/App\.(.*)/$1/g",
    r"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g",
    "DEFAULT",
)


def cases(letter):
    return (
        f"RULE:[1:$1]/{letter}",
        f"RULE:[2:$1](Test.*)s/ABC///{letter}",
        f"RULE:[2:$1](ABC.*)s/ABC/XYZ/g/{letter}",
        rf"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g/{letter}",
        f"RULE:[2:$1]/{letter}",
        "DEFAULT",
    )


def short(name, *rules, realm=REALM):
    return KerberosRules(rules or ("DEFAULT",), realm).short_name(name)


def refusal(name, *rules, realm=REALM):
    with pytest.raises(NoMatchingRule) as caught:
        short(name, *rules, realm=realm)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("App.service-name/example.com@REALM.COM", "service-name"),
        ("App.service-name@REALM.COM", "service-name"),
        ("user/host@REALM.COM", "user"),
    ],
)
def test_first_rule_that_applies_gives_the_name(name, expected):
    assert short(name, *APPS) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("User@REALM.COM", "user"),
        ("TestABC/host@FOO.COM", "test"),
        ("ABC_User_ABC/host@FOO.COM", "xyz_user_xyz"),
        ("App.SERVICE-name/example.com@REALM.COM", "service-name"),
        ("User/root@REALM.COM", "user"),
    ],
)
def test_case_is_changed_after_the_replacement(name, expected):
    assert short(name, *cases("L")) == expected
    upper = "SERVICE-NAME" if name.startswith("App") else expected.upper()
    assert short(name, *cases("U")) == upper


@pytest.mark.parametrize(
    "rule",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/g",
        "rule:[1:$1]",
        "rule:[1:$1]/L/U",
        "rule:[1:$1]/U/L",
        "rule:[1:$1]/LU",
        "RULE:[1:$1/L",
        "RULE:[1:$1]/l",
        "RULE:[2:$1](ABC.*)s/ABC/XYZ/L/g",
        # Kafka refuses it as well, because the number is missing.
        "RULE:[:$1]",
    ],
)
def test_malformed_rule_is_refused(rule):
    with pytest.raises(ValueError, match="is not RULE:"):
        KerberosRules((rule,), REALM)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        # Kafka refuses the format (BadFormatString) and the group when a name meets the rule.
        ("RULE:[1:$2]", "is not one of"),
        ("RULE:[1:hello $a]", "is not one of"),
        ("RULE:[1:$1]s/(a)/$2/", "no group 2"),
        ("RULE:[1:$1]((?=a))", "is not RULE:"),
        ("RULE:[1:$1]([a)", "RE2 syntax"),
        ("RULE:[1:$1]s/*//", "RE2 syntax"),
    ],
)
def test_rule_that_would_fail_at_a_login_is_refused_at_start(rule, problem):
    with pytest.raises(ValueError) as caught:
        KerberosRules((rule,), REALM)
    assert problem in str(caught.value)
    assert repr(rule) in str(caught.value)


def test_number_of_rules_is_limited():
    KerberosRules(("DEFAULT",) * MAX_RULES)
    for number in (0, MAX_RULES + 1):
        with pytest.raises(ValueError, match="expected 1 to"):
            KerberosRules(("DEFAULT",) * number)


@pytest.mark.parametrize(
    ("name", "rule", "expected"),
    [
        # KerberosRule.replaceParameters and apply.
        ("a/b@R", "RULE:[2:$2 of $1 in $0]", "b of a in R"),
        ("a/b@R", "RULE:[2:hello]", "hello"),
        ("$1/b@R", "RULE:[2:$1]", "$1"),
        ("a.b.c@R", "RULE:[1:$1]s/[.]/-/", "a-b.c"),
        ("a.b.c@R", "RULE:[1:$1]s/[.]/-/g", "a-b-c"),
        ("a@R", r"RULE:[1:$1@$0](.*@R)s/@.*//", "a"),
        ("a@R", "RULE:[1:$1]L", "a"),
    ],
)
def test_string_of_a_rule_is_built_from_the_components(name, rule, expected):
    assert short(name, rule) == expected


def test_default_is_for_names_of_the_default_realm():
    assert short("alice@REALM.COM") == "alice"
    assert short("alice/admin@REALM.COM") == "alice"
    assert "applies to alice@OTHER (default realm: REALM.COM)" in refusal("alice@OTHER")
    assert "(default realm: none)" in refusal("alice@OTHER", realm="")


def test_pattern_must_match_the_whole_string():
    assert "no rule" in refusal("alice@R", "RULE:[1:$1](ali)")


def test_result_that_is_not_simple_is_refused_without_trying_further_rules():
    assert "not a simple name" in refusal("alice@REALM.COM", "RULE:[1:$1@$0]", "DEFAULT")


def test_empty_result_is_refused():
    # Kafka logs such a client in as `User:`.
    assert "an empty name" in refusal("alice@REALM.COM", "RULE:[1:$1]s/.*//", "DEFAULT")


@pytest.mark.parametrize("name", ["a/b/c@R", "a@b@R", "a@b/c@R", "", "a\\/b@R", "a\\@b@R", "a\\"])
def test_malformed_name_is_refused(name):
    assert "malformed Kerberos name" in refusal(name, "RULE:[1:$1]", "RULE:[2:$1]")


def test_simple_name_is_not_changed():
    assert short("alice", "RULE:[1:$1]/U") == "alice"


def test_long_name_is_refused():
    assert "longer than" in refusal("a" * MAX_NAME_CHARACTERS + "@R", "RULE:[1:$1]")


def test_principal_is_a_user_and_its_refusal_a_failed_login():
    rules = KerberosRules(("DEFAULT",), REALM)
    assert rules.principal("alice@REALM.COM") == Principal("User", "alice")
    with pytest.raises(AuthenticationFailed, match="no rule"):
        rules.principal("alice@OTHER")


def test_pattern_takes_linear_time():
    # Backtracking would take 2 ** 1000 steps, and longer than the limit of a test.
    name = "a" * 1000 + "!"
    assert short(f"{name}@R", "RULE:[1:$1]s/^(a+)+$/x/") == name


RULE_TEXTS = st.lists(
    st.sampled_from(
        ["DEFAULT", "RULE:[", "1:", "2:", "$1", "$0", "]", "(", ")", ".*", "s/", "/", "g", "L", "a"]
    ),
    max_size=12,
).map("".join) | st.text(max_size=40)


@given(RULE_TEXTS, st.text(alphabet="aA.1/@\\$ü", max_size=20) | st.text(max_size=50))
def test_any_rule_and_name_give_a_simple_name_or_are_refused(rule, name):
    try:
        rules = KerberosRules((rule, "DEFAULT"), "a")
    except ValueError:
        rules = KerberosRules(("RULE:[1:$1]", "RULE:[2:$1]s/a(.)/$1/g"), "a")
    try:
        found = rules.short_name(name)
    except NoMatchingRule:
        return
    assert found
    assert not {"/", "@"} & set(found)
