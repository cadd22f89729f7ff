"""Finds the partitions that other clients deleted, so that their state is deleted as well.

A topic that is missing from the list is looked up again, because a list may be incomplete. Until
Pulsar answers, this is retried.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from storage.bridge import Reactor
from storage.pulsar.admin.admin_api import AdminFailed, NotFound
from storage.pulsar.topics.refresh import Refresher

#: Bytes of a partition's key that are the topic id.
_ID_BYTES = 16


class DeletedPartitions:
    """The partitions opened since the start, by key.

    `look_up` reads a Pulsar topic; it raises NotFound, or StorageFailed if it is not known whether
    the topic exists. `delete` deletes the state of a partition that is gone.
    """

    def __init__(
        self,
        look_up: Callable[[str], Awaitable[object]],
        delete: Callable[[bytes], Awaitable[None]],
        retry_seconds: float,
        reactor: Reactor,
    ) -> None:
        self._look_up = look_up
        self._delete = delete
        self._full_names: dict[bytes, str] = {}
        self._missing: dict[bytes, str] = {}
        self._refresher = Refresher(
            self._delete_missing, "the list of deleted partitions", retry_seconds, reactor
        )

    def start(self) -> None:
        self._refresher.start()

    def stop(self) -> None:
        self._refresher.stop()

    def opened(self, key: bytes, full_name: str) -> None:
        """Note that a partition was opened; `full_name` is its Pulsar topic."""
        self._full_names[key] = full_name

    def topics_listed(self, topic_ids: Collection[bytes]) -> None:
        """Look up the partitions of all other topics soon."""
        for key in [key for key in self._full_names if key[:_ID_BYTES] not in topic_ids]:
            self._missing[key] = self._full_names.pop(key)
        if self._missing:
            self._refresher.hasten(0)

    async def _delete_missing(self) -> None:
        """Raises StorageFailed if some could not be looked up."""
        refusal = None
        for key, full_name in list(self._missing.items()):
            try:
                await self._look_up(full_name)
            except NotFound:
                await self._delete(key)
            except AdminFailed as failure:
                # Others may be answered.
                refusal = failure
                continue
            self._missing.pop(key, None)
        if refusal is not None:
            raise refusal
