"""Finds entries of a topic by values that only the broker knows: index and publish time.

Bisects over all entries and peeks at one entry per step, through the admin API.
"""

from __future__ import annotations

from collections.abc import Callable

from storage.log import StorageFailed
from storage.pulsar.admin.admin_api import NotFound, PeekedEntry, PulsarAdmin
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.offset_search import EntryNumbering

NO_INDEX_MESSAGE = (
    "the brokers assign no index to entries of {topic}: the entry format `pulsar` needs "
    "brokerEntryMetadataInterceptors="
    "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor in broker.conf; "
    "entries written without it are not served"
)


class EntryFinder:
    """Peeks at the entries of one topic."""

    def __init__(self, admin: PulsarAdmin, topic: str) -> None:
        self._admin = admin
        self.topic = topic

    async def entries(self) -> EntryNumbering:
        return EntryNumbering.of(await self._admin.internal_stats(self.topic))

    async def sizes(self) -> tuple[list[tuple[int, int]], int]:
        """Bytes of each ledger in order, and in total."""
        stats = await self._admin.internal_stats(self.topic)
        sizes = [(ledger.ledger_id, ledger.size) for ledger in stats.ledgers]
        if sizes:
            sizes[-1] = (sizes[-1][0], stats.current_ledger_size or sizes[-1][1])
        return sizes, stats.total_size

    async def last(self) -> Position | None:
        """The position of the last entry; None if there is none."""
        last = await self._admin.last_message_id(self.topic)
        return Position(last.ledger_id, last.entry_id) if last.entry_id >= 0 else None

    async def peek(self, position: Position) -> PeekedEntry:
        """Raises NotFound if the entry was trimmed."""
        return await self._admin.peek(self.topic, position)

    async def index_of(self, position: Position) -> int:
        """The broker index of an entry's last message.

        Raises NotFound, and StorageFailed if the brokers assign no index.
        """
        peeked = await self.peek(position)
        if peeked.index < 0:
            raise StorageFailed(NO_INDEX_MESSAGE.format(topic=self.topic))
        return peeked.index

    async def first(
        self,
        entries: EntryNumbering,
        is_reached: Callable[[PeekedEntry], bool],
        begin: int = 0,
        end: int | None = None,
    ) -> tuple[Position, PeekedEntry] | None:
        """The first entry, by number from `begin` to before `end`, for which `is_reached` holds.

        `is_reached` must hold for all later entries too. Returns None if it holds for none. Entries
        that were trimmed meanwhile count as not reached.
        """
        found = None
        end = len(entries) if end is None else end
        while begin < end:
            middle = (begin + end) // 2
            position = entries.position(middle)
            try:
                peeked = await self.peek(position)
            except NotFound:
                begin = middle + 1
                continue
            if is_reached(peeked):
                found, end = (position, peeked), middle
            else:
                begin = middle + 1
        return found
