"""The names of a tenant-bound client: what it sends and sees, and what the gateway uses inside.

A client that is bound to `TENANT/NAMESPACE` uses short names. Inside they become:

| client sends                       | inside                              |
|------------------------------------|-------------------------------------|
| topic `t`                          | `persistent://TENANT/NAMESPACE/t`   |
| topic `TENANT/NAMESPACE/t`         | the same                            |
| the same with `persistent://`      | `persistent:///TENANT/NAMESPACE/t`  |
| topic with another slash           | `\\0` and the name: no such topic    |
| group or transactional id `g`      | `\\0TENANT/NAMESPACE\\0g`             |

The first is the canonical name; all three are names of one topic
(`storage.pulsar.topics.pulsar_names`), and each is returned as it was sent. In the default
namespace topic names are the same inside, since its canonical names are short.

A name outside of the namespace resolves to nothing, so its existence does not show in any reply.
Ids that begin with `\\0` are accepted from no client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from gateway.topics.topic_names import TRAFFIC_TOPIC

#: Begins the ids of tenants' groups, and names that a tenant-bound client may not use.
MARK = "\0"

_SCHEME = "persistent://"


class ForeignName(Exception):
    """A reply to a tenant-bound client contains a name from outside: a bug."""


@dataclass(frozen=True)
class TenantScope:
    """The names within one namespace, `TENANT/NAMESPACE`."""

    namespace: str
    is_default: bool = False

    @cached_property
    def _canonical_prefix(self) -> str:
        """Prefix of canonical names outside of the default namespace."""
        return f"{_SCHEME}{self.namespace}/"

    @cached_property
    def _id_prefix(self) -> str:
        return f"{MARK}{self.namespace}{MARK}"

    @cached_property
    def _long_prefixes(self) -> tuple[str, ...]:
        """Prefixes of names with the namespace."""
        path = f"{self.namespace}/"
        return path, f"{_SCHEME}{path}", f"{_SCHEME}/{path}"

    @cached_property
    def _in_text(self) -> re.Pattern[str]:
        canonical = "" if self.is_default else f"{_SCHEME}(/?){re.escape(self.namespace)}/|"
        return re.compile(f"{canonical}{re.escape(self._id_prefix)}|{MARK}")

    def topic_from_client(self, name: str) -> str:
        if self.is_default and name.rpartition("/")[2] == TRAFFIC_TOPIC:
            return MARK + name
        if "/" not in name and not name.startswith(MARK):
            return name if self.is_default else self._canonical_prefix + name
        path, canonical, _ = self._long_prefixes
        if name.startswith(path) or (self.is_default and name.startswith(canonical)):
            return name
        if name.startswith(canonical):
            return f"{_SCHEME}/{name.removeprefix(_SCHEME)}"
        return MARK + name

    def topic_to_client(self, name: str) -> str:
        """Raises ForeignName."""
        if name.startswith(MARK):
            return name.removeprefix(MARK)
        path, canonical, other = self._long_prefixes
        if not name or name.startswith(path) or (self.is_default and self.owns_topic(name)):
            return name
        if name.startswith(canonical):
            return name.removeprefix(canonical)
        if name.startswith(other):
            return canonical + name.removeprefix(other)
        raise ForeignName(f"topic {name!r} is not in {self.namespace}")

    def owns_topic(self, name: str) -> bool:
        """Whether a name, canonical or returned by `topic_from_client`, is in the namespace.

        The traffic topic belongs to no tenant, because it names the topics and groups of all.
        """
        if self.is_default and name == TRAFFIC_TOPIC:
            return False
        is_short = "/" not in name and not name.startswith(MARK)
        return (self.is_default and is_short) or name.startswith(self._long_prefixes)

    def id_from_client(self, name: str) -> str:
        """The inner form of a group or transactional id."""
        return self._id_prefix + name

    def id_to_client(self, name: str) -> str:
        """Raises ForeignName."""
        if not name.startswith(self._id_prefix):
            raise ForeignName(f"id {name!r} is not of {self.namespace}")
        return name[len(self._id_prefix) :]

    def owns_id(self, name: str) -> bool:
        return name.startswith(self._id_prefix)

    def text_to_client(self, text: str) -> str:
        """An error message with the names that the client knows."""
        return self._in_text.sub(self._shorten, text)

    def _shorten(self, found: re.Match[str]) -> str:
        return self._canonical_prefix if found.lastindex and found[1] else ""


def namespace_of(name: str) -> str | None:
    """The namespace that a group or transactional id belongs to, None for one without tenant."""
    return name[len(MARK) :].partition(MARK)[0] if name.startswith(MARK) else None


def plain_id(name: str) -> str:
    """A group or transactional id as its clients write it."""
    return name[len(MARK) :].partition(MARK)[2] if name.startswith(MARK) else name


def printable_id(name: str) -> str:
    """A group or transactional id for logs and ACLs: `TENANT/NAMESPACE/ID` for a tenant's."""
    namespace, mark, plain = name.removeprefix(MARK).partition(MARK)
    return f"{namespace}/{plain}" if mark and name.startswith(MARK) else name


def printable_topic(name: str) -> str:
    """The name of a topic that may not exist, for logs."""
    return name.removeprefix(MARK) if "/" in name else name
