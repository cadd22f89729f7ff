"""Permissions that a store's medium itself grants to its users, apart from Kafka's ACLs."""

from __future__ import annotations

from typing import Protocol


class Permissions(Protocol):
    """The permissions of a medium's users, which it calls roles.

    Answers come from memory and follow the medium with a delay. A topic is given by any of its
    names. No role may use a topic that the store does not serve. Where a `namespace` is given, the
    answer is about its topics only.
    """

    @property
    def version(self) -> int:
        """Increased whenever an answer may have changed."""
        ...

    def may_write(self, role: str, topic: str) -> bool: ...

    def may_read(self, role: str, topic: str) -> bool: ...

    def may_administer(self, role: str, topic: str) -> bool:
        """Whether the role may create, delete and configure this topic."""
        ...

    def may_write_any(self, role: str, namespace: str | None = None) -> bool:
        """Whether the role may write to at least one topic."""
        ...

    def may_read_any(self, role: str, namespace: str | None = None) -> bool:
        """Whether the role may read at least one topic."""
        ...

    def may_administer_all(self, role: str, namespace: str | None = None) -> bool:
        """Whether the role may administer all topics."""
        ...

    def may_use_group(self, role: str, group: str, namespace: str | None = None) -> bool:
        """Whether no restriction of the medium keeps the role from this consumer group."""
        ...

    def refresh_soon(self) -> None:
        """Read the permissions again before the usual time, since a client was refused.

        A permission that was granted just now then applies sooner. Cheap; limited in rate.
        """
        ...
