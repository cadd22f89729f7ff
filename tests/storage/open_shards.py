"""Opens a store with all its shards, as the only gateway on it does."""

from __future__ import annotations

from typing import cast

from twisted.internet.defer import Deferred, gatherResults

from storage.cluster import SharedStore
from storage.log import Store

_EPOCH = b"test-epoch"


async def open_as_controller(store: Store, *, takeover: bool = False) -> None:
    """Open a store; if it can be shared, as the controller. `takeover` replaces another one."""
    await store.open()
    if store.is_shared:
        shared = cast("SharedStore", store)
        try:
            await shared.medium.log.acquire(takeover)
            await shared.prepare(list_topics=True)
        except BaseException:
            await store.close()
            raise


async def open_with_shards(store: Store, *, takeover: bool = False) -> None:
    """As `open_as_controller`, with all shards.

    Their leader epoch is greater than at earlier calls for the store.
    """
    await open_as_controller(store, takeover=takeover)
    table = await store.table("cluster")
    row = dict(await table.items()).get(_EPOCH)
    epoch = store.first_epoch if row is None else int(row) + 1
    await table.put({_EPOCH: b"%d" % epoch})
    await gatherResults(
        [
            Deferred.fromCoroutine(store.open_shard(shard, epoch))
            for shard in range(store.shard_count)
        ]
    )
