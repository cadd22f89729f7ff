"""Principals of client certificates.

Expected subjects are what X500Principal.getName() of Java 17 printed for the same certificates;
expected names are those of Kafka's documentation of `ssl.principal.mapping.rules` and of
SslPrincipalMapper.
"""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from auth.certificate_principals import (
    MAX_RULES,
    MAX_SUBJECT_CHARACTERS,
    PrincipalRules,
    distinguished_name,
)
from auth.mechanism import ANONYMOUS, AuthenticationFailed, Principal

KEY = ec.generate_private_key(ec.SECP256R1())


def one(oid, value, kind=None):
    return x509.NameAttribute(oid, value, kind)


def certificate(*rdns):
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.RelativeDistinguishedName(rdn) for rdn in rdns])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (
            [
                one(NameOID.COUNTRY_NAME, "DE"),
                one(NameOID.STATE_OR_PROVINCE_NAME, "Bavaria"),
                one(NameOID.LOCALITY_NAME, "Munich"),
                one(NameOID.ORGANIZATION_NAME, "Acme, Inc."),
                one(NameOID.ORGANIZATIONAL_UNIT_NAME, "Dev+Ops"),
                one(NameOID.COMMON_NAME, "kafka client"),
            ],
            r"CN=kafka client,OU=Dev\+Ops,O=Acme\, Inc.,L=Munich,ST=Bavaria,C=DE",
        ),
        (
            [
                one(NameOID.DOMAIN_COMPONENT, "com"),
                one(NameOID.DOMAIN_COMPONENT, "example"),
                one(NameOID.USER_ID, "u1"),
                one(NameOID.STREET_ADDRESS, "Main 1"),
                one(NameOID.COMMON_NAME, "c"),
            ],
            "CN=c,STREET=Main 1,UID=u1,DC=example,DC=com",
        ),
        (
            [
                one(NameOID.COMMON_NAME, "c"),
                one(NameOID.EMAIL_ADDRESS, "a@b.c"),
                one(NameOID.SERIAL_NUMBER, "12"),
                one(NameOID.TITLE, "Dr"),
                one(NameOID.GIVEN_NAME, "Zoë"),
            ],
            "2.5.4.42=#0c045a6fc3ab,2.5.4.12=#0c024472,2.5.4.5=#13023132,"
            "1.2.840.113549.1.9.1=#16056140622e63,CN=c",
        ),
        ([one(NameOID.COMMON_NAME, ' #a=b<c>;"d\\ ')], r"CN=\ \#a\=b\<c\>\;\"d" + "\\\\\\ "),
        (
            [
                one(NameOID.COMMON_NAME, "  a  b  "),
                one(NameOID.ORGANIZATION_NAME, "a#b"),
                one(NameOID.ORGANIZATIONAL_UNIT_NAME, "ü\U0001f600 \n\tx"),
            ],
            "OU=ü\U0001f600 \n\tx,O=a\\#b,CN=\\ \\ a  b\\ \\ ",
        ),
        ([one(NameOID.COMMON_NAME, "a\0b")], r"CN=a\00b"),
        ([one(NameOID.COMMON_NAME, "\r a \r")], "CN=\\\r\\ a\\ \\\r"),
        ([one(NameOID.COMMON_NAME, "   ")], "CN=\\ \\ \\ "),
        (
            [
                one(NameOID.COMMON_NAME, "vis", _ASN1Type.VisibleString),
                one(NameOID.ORGANIZATION_NAME, "123", _ASN1Type.NumericString),
            ],
            "O=#1203313233,CN=#1a03766973",
        ),
        (
            [
                one(NameOID.ORGANIZATION_NAME, "t61", _ASN1Type.T61String),
                one(NameOID.ORGANIZATIONAL_UNIT_NAME, "unié", _ASN1Type.UniversalString),
                one(NameOID.LOCALITY_NAME, "ia5", _ASN1Type.IA5String),
                one(NameOID.STATE_OR_PROVINCE_NAME, "prt", _ASN1Type.PrintableString),
            ],
            "ST=prt,L=ia5,OU=#1c10000000750000006e00000069000000e9,O=t61",
        ),
        ([], ""),
    ],
)
def test_subject_has_the_form_of_java(attributes, expected):
    subject = certificate(*([attribute] for attribute in attributes)).subject
    assert distinguished_name(subject) == expected


def test_attributes_of_one_rdn_are_joined_by_plus():
    subject = certificate(
        [
            one(NameOID.COMMON_NAME, "c"),
            one(NameOID.ORGANIZATIONAL_UNIT_NAME, "u"),
            one(NameOID.USER_ID, "1"),
        ],
        [one(NameOID.ORGANIZATION_NAME, "o")],
    ).subject
    assert distinguished_name(subject) == "O=o,CN=c+OU=u+UID=1"


def test_long_value_is_written_as_bytes():
    subject = x509.Name([one(NameOID.TITLE, "x" * 300, None)])
    assert distinguished_name(subject) == "2.5.4.12=#0c82012c" + "78" * 300


# Examples of Kafka's documentation (security, "Customizing SSL User Name").
DOCUMENTED = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "subject", "expected"),
    [
        (
            DOCUMENTED,
            "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown",
            "serviceuser",
        ),
        (
            DOCUMENTED,
            "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown",
            "adminuser@admin",
        ),
        (DOCUMENTED, "O=x,CN=Duke", "duke"),
        (DOCUMENTED, "O=only", "O=only"),
        ("RULE:^CN=(.*?),.*$/$1/U", "CN=duke,O=x", "DUKE"),
        ("RULE:^CN=(.*?),.*$/$1/", "O=x", None),
        (" RULE:a/b/ , DEFAULT ,, ", "c", "c"),
        # The whole subject has to match, and every match is replaced.
        ("RULE:CN=/x/,DEFAULT", "CN=a", "CN=a"),
        (r"RULE:CN=(.*?)/<$1>/", "CN=a", "<>a"),
        (r"RULE:.*/x/", "CN=a", "xx"),
        # A backslash quotes; `$0` is the match; a group without match is empty.
        (r"RULE:^CN=(.*)\/(.*)$/$2\/$1\$\\/", "CN=a/b", "b/a$\\"),
        ("RULE:^CN=.*$/[$0]/", "CN=a", "[CN=a]"),
        ("RULE:^CN=(a)?(b)?$/<$1$2>/", "CN=b", "<b>"),
        # Groups that do not exist are literal.
        ("RULE:^CN=(.*)$/$1@$4/", "CN=a", "a@$4"),
        ("RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
        ("DEFAULT,RULE:^CN=(.*)$/$1/", "CN=a", "CN=a"),
    ],
)
def test_first_matching_rule_gives_the_name(rules, subject, expected):
    assert PrincipalRules(rules).name(subject) == expected


@pytest.mark.parametrize(
    "rules",
    [
        "",
        " , ",
        "default",
        "RULE:a/b",
        "RULE:a",
        "RULE:a/b/c",
        "RULE:a/b/LU",
        "RULE:a/b/l",
        "DEFAULTS",
        "RULE:a/b/L DEFAULT",
        "RULE:(/b/",
        "RULE:(?=a)a/b/",
        "RULE:a/$1/",
        "RULE:a/$/",
        "RULE:(a)/$x/",
        ",".join(["DEFAULT"] * (MAX_RULES + 1)),
    ],
)
def test_unusable_rules_are_refused(rules):
    with pytest.raises(ValueError, match=r".+"):
        PrincipalRules(rules)


def test_certificate_that_no_rule_matches_fails_the_login():
    rules = PrincipalRules("RULE:^CN=(a),.*$/$1/")
    with pytest.raises(AuthenticationFailed, match=r"no rule .* CN=b"):
        rules.principal(certificate([one(NameOID.COMMON_NAME, "b")]))


def test_certificate_gives_the_principal():
    mine = certificate([one(NameOID.ORGANIZATION_NAME, "o")], [one(NameOID.COMMON_NAME, "a")])
    assert PrincipalRules().principal(mine) == Principal("User", "CN=a,O=o")
    assert PrincipalRules("RULE:^CN=(.*?),.*$/$1/").principal(mine) == Principal("User", "a")
    assert PrincipalRules().principal(None) == ANONYMOUS


def test_subject_beyond_the_limit_fails_the_login():
    names = [[one(NameOID.ORGANIZATIONAL_UNIT_NAME, "u" * 64)]] * (MAX_SUBJECT_CHARACTERS // 68)
    assert PrincipalRules().principal(certificate(*names))
    with pytest.raises(AuthenticationFailed, match="longer than"):
        PrincipalRules().principal(certificate(*names, names[0], names[0]))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([NameOID.COMMON_NAME, NameOID.TITLE, NameOID.DOMAIN_COMPONENT]),
            st.text(min_size=1, max_size=200),
        ),
        max_size=5,
    )
)
def test_any_subject_is_mapped(pairs):
    try:
        name = x509.Name([one(oid, value) for oid, value in pairs])
    except ValueError:
        # cryptography limits the length of some attributes.
        return
    subject = distinguished_name(name)
    assert subject.count("=") >= len(pairs)
    PrincipalRules(DOCUMENTED).name(subject)


@given(st.text(alphabet="RULE:DEFAULT/\\$(),[]*.?a1 ", max_size=40))
def test_any_text_is_rules_or_an_error(text):
    try:
        rules = PrincipalRules(text)
    except ValueError:
        return
    rules.name("CN=a,O=b")
