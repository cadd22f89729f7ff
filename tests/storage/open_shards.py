"""Opens a store with all its shards, as the only gateway on it does."""

from __future__ import annotations

from twisted.internet.defer import Deferred, gatherResults

from storage.log import Store

_EPOCH = b"test-epoch"


async def open_with_shards(store: Store) -> None:
    """Open a store and all shards, with a leader epoch greater than at earlier calls for it."""
    await store.open()
    table = await store.table("cluster")
    row = dict(await table.items()).get(_EPOCH)
    epoch = getattr(store, "first_epoch", 0) if row is None else int(row) + 1
    await table.put({_EPOCH: b"%d" % epoch})
    await gatherResults(
        [
            Deferred.fromCoroutine(store.open_shard(shard, epoch))
            for shard in range(store.shard_count)
        ]
    )
