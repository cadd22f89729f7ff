"""The principal of a client certificate, as in Kafka: its subject, mapped by rules.

The subject has the form of Java's X500Principal.getName() (RFC 2253). The rules are those of
Kafka's SslPrincipalMapper, in RE2's syntax instead of Java's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509

from auth.mapping_rules import MAX_RULES, compile_pattern, parse_replacement, substitute
from auth.mechanism import ANONYMOUS, AuthenticationFailed, Principal

MAX_SUBJECT_CHARACTERS = 4096
"""Longest subject that is mapped. Kafka has no limit; X.520 allows 64 characters for a name."""

#: Attribute types with a keyword in RFC 2253. Java writes all others as numbers.
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}

#: UTF8String, PrintableString, T61String and IA5String. Values of other types are written as bytes.
_TEXT_TAGS = frozenset({0x0C, 0x13, 0x14, 0x16})

#: RFC 2253 requires these escapes except `=` and `#`, which Java escapes, too.
_ESCAPED = frozenset(',=+<>#;"\\')


def distinguished_name(name: x509.Name) -> str:
    """Return a name as Java's X500Principal.getName() does.

    Attributes are in reverse order. Exceptions: BMPString and UniversalString are written as bytes
    (`CN=#1e...`), because Java's text for them depends on its release.

    Raises ValueError for a name that cannot be read.
    """
    return ",".join(
        "+".join(_attribute_text(attribute) for attribute in rdn) for rdn in reversed(name.rdns)
    )


def _attribute_text(attribute: x509.NameAttribute[Any]) -> str:
    oid = attribute.oid.dotted_string
    keyword = _KEYWORDS.get(oid)
    encoded = _encoded_value(attribute)
    if keyword is None or encoded[0] not in _TEXT_TAGS or not isinstance(attribute.value, str):
        return f"{keyword or oid}=#{encoded.hex()}"
    text = "".join(
        f"\\{letter}" if letter in _ESCAPED else letter for letter in attribute.value
    ).replace("\0", "\\00")
    lead = len(text) - len(text.lstrip(" \r"))
    trail = len(text.rstrip(" \r"))
    blanks_after = "".join(f"\\{letter}" for letter in text[max(trail, lead) :])
    blanks_before = "".join(f"\\{letter}" for letter in text[:lead])
    return f"{keyword}={blanks_before}{text[lead:trail]}{blanks_after}"


def _encoded_value(attribute: x509.NameAttribute[Any]) -> bytes:
    """Return the value in DER, from a name with this attribute only."""
    # A sequence of a set of a sequence of an identifier and a value.
    content = x509.Name([attribute]).public_bytes()
    for _ in range(3):
        content = content[_header_bytes(content) :]
    return content[_header_bytes(content) + content[1] :]


def _header_bytes(encoded: bytes) -> int:
    """Return the size of the tag and the length of a DER value."""
    return 2 if encoded[1] < 0x80 else 2 + (encoded[1] & 0x7F)


@dataclass(frozen=True, slots=True)
class _Rule:
    """`RULE:pattern/replacement/[LU]`.

    `replacement` has texts and numbers of groups. DEFAULT has no pattern.
    """

    pattern: Any = None
    replacement: tuple[str | int, ...] = ()
    case: str = ""

    def apply(self, subject: str) -> str | None:
        """Return the name, None if the rule does not match the whole subject."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        # As String.replaceAll: every match is replaced, which for a lazy pattern may be shorter
        # than the subject.
        name = substitute(self.pattern, self.replacement, subject)
        if self.case == "L":
            return name.lower()
        return name.upper() if self.case == "U" else name


@dataclass(frozen=True, slots=True)
class PrincipalRules:
    """`ssl_principal_mapping_rules`: the first rule that matches gives the name."""

    text: str = "DEFAULT"
    _rules: tuple[_Rule, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError with a message for the user."""
        object.__setattr__(self, "_rules", tuple(_parse(self.text)))
        if not 1 <= len(self._rules) <= MAX_RULES:
            raise ValueError(f"expected 1 to {MAX_RULES} rules, found {len(self._rules)}")

    def name(self, subject: str) -> str | None:
        """Return the name for a subject, None if no rule matches."""
        return next(
            (name for rule in self._rules if (name := rule.apply(subject)) is not None), None
        )

    def principal(self, certificate: x509.Certificate | None) -> Principal:
        """Return the principal of a verified client certificate, ANONYMOUS without one.

        Raises AuthenticationFailed if no rule matches, or if the subject is too long or malformed.
        """
        if certificate is None:
            return ANONYMOUS
        try:
            subject = distinguished_name(certificate.subject)
        except ValueError:
            raise AuthenticationFailed("malformed subject in the client certificate") from None
        if len(subject) > MAX_SUBJECT_CHARACTERS:
            raise AuthenticationFailed(
                f"subject of the client certificate is longer than {MAX_SUBJECT_CHARACTERS}"
            )
        name = self.name(subject)
        if name is None:
            raise AuthenticationFailed(f"no rule of ssl_principal_mapping_rules matches {subject}")
        return Principal("User", name)


def _parse(text: str) -> Iterator[_Rule]:
    """Parse `RULE:pattern/replacement/[LU]` and `DEFAULT`, separated by commas.

    Empty rules are ignored, as in Kafka. Raises ValueError.
    """
    rest = text.strip()
    while rest:
        if rest.startswith("RULE:"):
            pattern, rest = _until_slash(rest.removeprefix("RULE:"))
            replacement, rest = _until_slash(rest)
            case = rest[:1] if rest[:1] in ("L", "U") else ""
            rest = rest[len(case) :]
            yield _rule(pattern, replacement, case)
        elif rest.startswith("DEFAULT"):
            rest = rest.removeprefix("DEFAULT")
            yield _Rule()
        rest = rest.lstrip()
        if rest and not rest.startswith(","):
            raise ValueError(
                f"{rest!r} is not RULE:PATTERN/REPLACEMENT/, RULE:PATTERN/REPLACEMENT/[LU] or "
                "DEFAULT (rules are separated by commas)"
            )
        rest = rest[1:].lstrip()


def _until_slash(text: str) -> tuple[str, str]:
    """Return the text before the first `/` without backslash, and the text after it."""
    at = 0
    while at < len(text):
        if text[at] == "/":
            return text[:at], text[at + 1 :]
        at += 2 if text[at] == "\\" else 1
    raise ValueError(f"{text!r} has no '/' at its end (RULE:PATTERN/REPLACEMENT/)")


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    compiled = compile_pattern(pattern)
    groups = compiled.groups
    # A group that does not exist is literal (SslPrincipalMapper).
    parts = tuple(
        f"${part}" if isinstance(part, int) and part > groups else part
        for part in parse_replacement(replacement, groups)
    )
    return _Rule(compiled, parts, case)
