"""Batches of idempotent producers that were refused before they reached the partition.

A producer sends several batches at a time. If the first is refused because the partition cannot be
served, and the partition can be served when the next one arrives, the partition does not know the
producer yet, and an unknown producer may start with any sequence. The retry of the first batch
would then be out of order forever. So the next batch is refused as well, until the first one is
sent again. Kafka has the same race, but its leaders change less often.
"""

from __future__ import annotations

from collections import OrderedDict

from records import BatchHeader

#: Seconds after which a producer that has not sent the refused batch again is not waited for.
RETRY_SECONDS = 30.0
#: Limit on the number of producers and partitions; the oldest are forgotten.
MAX_REFUSED = 10_000

Key = tuple[str, int, int]
"""Topic, partition index and producer id."""


class RefusedBatches:
    """The lowest refused sequence of each producer, oldest refusal first. Times are in seconds.

    `refused` is empty if there is none, as in nearly all requests.
    """

    def __init__(self) -> None:
        self.refused: OrderedDict[Key, tuple[int, int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.refused)

    def has_any(self, now: float) -> bool:
        """Whether a producer may still send a refused batch again; forgets the others.

        A producer that has found another leader does not come back to this gateway.
        """
        while self.refused:
            key, (_, _, refused_at) = next(iter(self.refused.items()))
            if now - refused_at < RETRY_SECONDS:
                return True
            del self.refused[key]
        return False

    def add(self, topic: str, index: int, batch: BatchHeader, now: float) -> None:
        """Record that a batch was refused with an error that its producer retries."""
        key = topic, index, batch.producer_id
        epoch, sequence, _ = self.refused.pop(key, (-1, 0, 0.0))
        if epoch == batch.producer_epoch:
            sequence = min(sequence, batch.base_sequence)
        else:
            sequence = batch.base_sequence
        self.refused[key] = batch.producer_epoch, sequence, now
        if len(self.refused) > MAX_REFUSED:
            self.refused.popitem(last=False)

    def precede(self, topic: str, index: int, batch: BatchHeader, now: float) -> bool:
        """Whether an earlier batch of the producer was refused and has not been sent again.

        Forgets the producer if this batch is the refused one, or if it was refused too long ago.
        """
        key = topic, index, batch.producer_id
        found = self.refused.get(key)
        if found is None:
            return False
        epoch, sequence, refused_at = found
        if (
            epoch == batch.producer_epoch
            and sequence < batch.base_sequence
            and now - refused_at < RETRY_SECONDS
        ):
            return True
        del self.refused[key]
        return False
