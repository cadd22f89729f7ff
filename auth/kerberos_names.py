"""Short names of Kerberos principals by rules, as in Kafka.

The rules are those of Kafka's KerberosShortNamer (`sasl.kerberos.principal.to.local.rules`):

    RULE:[n:string](pattern)s/pattern/replacement/g/L
    DEFAULT

A rule is for names with n components before the realm. `string` is built from them: `$0` is the
realm, `$1` the first component. If it matches the pattern as a whole, its matches of the second
pattern are replaced: with `g` all, else the first. `/L` or `/U` changes the case. Everything after
`]` is optional. DEFAULT is the first component of names in the default realm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from auth.mapping_rules import MAX_RULES, compile_pattern, parse_replacement, substitute
from auth.mechanism import AuthenticationFailed, Principal

MAX_NAME_CHARACTERS = 1024
"""Longest Kerberos name that is mapped. Kafka has no limit."""

#: Kafka knows names of one or two components.
_NAME = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE = re.compile(
    r"DEFAULT|RULE:\[(?P<components>[0-9]+):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<old>[^/]*)/(?P<new>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER = re.compile(r"\$([0-9]*)")


class NoMatchingRule(Exception):
    """A name has no short name. The message says why."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A parsed rule; DEFAULT has only a text. `limit` is 0 to replace all matches, else 1."""

    text: str
    components: int = 0
    format: tuple[str | int, ...] = ()
    match: Any = None
    old: Any = None
    new: tuple[str | int, ...] = ()
    limit: int = 1
    case: str = ""

    def apply(self, parts: list[str], default_realm: str) -> str | None:
        """Return the short name, None if the rule does not apply.

        `parts` are the realm and the components. Raises NoMatchingRule.
        """
        if self.text == "DEFAULT":
            name = parts[1] if parts[0] == default_realm else None
        else:
            name = self._converted(parts)
        if name is None:
            return None
        if "/" in name or "@" in name:
            # Kafka tries no other rule either.
            raise NoMatchingRule(f"{self.text} gives {name!r}, which is not a simple name")
        if self.case == "L":
            return name.lower()
        return name.upper() if self.case == "U" else name

    def _converted(self, parts: list[str]) -> str | None:
        if len(parts) - 1 != self.components:
            return None
        name = "".join(part if isinstance(part, str) else parts[part] for part in self.format)
        if self.match is not None and self.match.fullmatch(name) is None:
            return None
        return name if self.old is None else substitute(self.old, self.new, name, self.limit)


@dataclass(frozen=True, slots=True)
class KerberosRules:
    """`sasl_kerberos_principal_to_local_rules`: the first rule that applies gives the name."""

    texts: tuple[str, ...] = ("DEFAULT",)
    default_realm: str = ""
    _rules: tuple[_Rule, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError with a message for the user."""
        if not 1 <= len(self.texts) <= MAX_RULES:
            raise ValueError(f"expected 1 to {MAX_RULES} rules, found {len(self.texts)}")
        object.__setattr__(self, "_rules", tuple(map(_parse, self.texts)))

    def principal(self, name: str) -> Principal:
        """Return the principal of a Kerberos name. Raises AuthenticationFailed."""
        try:
            return Principal("User", self.short_name(name))
        except NoMatchingRule as failure:
            raise AuthenticationFailed(str(failure)) from None

    def short_name(self, name: str) -> str:
        """Return the short name of `component[/component]@REALM`; a simple name is not changed.

        Escaped names (`a\\/b@REALM`) are refused. Raises NoMatchingRule.
        """
        if len(name) > MAX_NAME_CHARACTERS:
            raise NoMatchingRule(f"the Kerberos name is longer than {MAX_NAME_CHARACTERS}")
        match = _NAME.fullmatch(name)
        if name and not {"/", "@", "\\"} & set(name):
            return name
        if match is None or "\\" in name:
            raise NoMatchingRule(f"malformed Kerberos name {name!r}")
        parts = [match[3], match[1], *([] if match[2] is None else [match[2]])]
        for rule in self._rules:
            short = rule.apply(parts, self.default_realm)
            if short:
                return short
            if short is not None:
                raise NoMatchingRule(f"{rule.text} gives an empty name for {name}")
        raise NoMatchingRule(
            f"no rule of sasl_kerberos_principal_to_local_rules applies to {name} "
            f"(default realm: {self.default_realm or 'none'})"
        )


def _parse(text: str) -> _Rule:
    """Parse a rule. Kafka refuses some mistakes only when the rule is applied to a name."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not RULE:[n:string](pattern)s/pattern/replacement/g/L or DEFAULT"
        )
    if match["components"] is None:
        return _Rule(text)
    try:
        components = int(match["components"])
        old = None if match["old"] is None else compile_pattern(match["old"])
        return _Rule(
            text,
            components,
            tuple(_format(match["format"], components)),
            None if match["match"] is None else compile_pattern(match["match"]),
            old,
            () if old is None else _new(match["new"], old.groups),
            0 if match["all"] else 1,
            match["case"] or "",
        )
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def _format(text: str, components: int) -> Iterator[str | int]:
    """Split the string of a rule into texts and numbers of components."""
    for index, part in enumerate(_PARAMETER.split(text)):
        if index % 2 == 0:
            yield part
        elif not part or int(part) > components:
            raise ValueError(f"${part} is not one of $0 to ${components}")
        else:
            yield int(part)


def _new(text: str, groups: int) -> tuple[str | int, ...]:
    parts = tuple(parse_replacement(text, groups))
    for part in parts:
        if isinstance(part, int) and part > groups:
            raise ValueError(f"replacement {text!r}: the pattern has no group {part}")
    return parts
