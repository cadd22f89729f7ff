"""A group member with confluent-kafka (librdkafka).

Arguments: host:port, topic, group and settings NAME=VALUE. Prints one line of JSON per event until
its standard input is closed.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


class OwnershipListener:
    """The assigned partitions, for eager and for incremental rebalancing."""

    def __init__(self, records: list[Any]) -> None:
        self._has: set[int] = set()
        self._records = records

    def assigned(self, _: Any, parts: Any) -> None:
        self._has.update(part.partition for part in parts)
        self._say()

    def revoked(self, _: Any, parts: Any) -> None:
        self._has.difference_update(part.partition for part in parts)
        self._records[:] = [record for record in self._records if record.partition() in self._has]
        self._say()

    def _say(self) -> None:
        say(at=time.monotonic_ns(), assigned=sorted(self._has))


def main(bootstrap: str, topic: str, group: str, *settings: str) -> None:
    told = dict(one.split("=", 1) for one in settings)
    beats = (
        {}
        if told.get("group.protocol") == "consumer"
        else {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 300}
    )
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 200,
        "topic.metadata.refresh.interval.ms": 1_000,
        "log_level": 0,
    }
    consumer = Consumer(config | beats | told)
    records: list[Any] = []
    listener = OwnershipListener(records)
    consumer.subscribe(
        [topic], on_assign=listener.assigned, on_revoke=listener.revoked, on_lost=listener.revoked
    )
    committed: dict[int, int] = {}
    while not select.select([sys.stdin], [], [], 0)[0]:
        records += [record for record in consumer.consume(500, 0.1) if not record.error()]
        if not records:
            continue
        # If one partition is refused and another has nothing to commit, the error is only in the
        # result and nothing is raised.
        try:
            parts = consumer.commit(asynchronous=False)
            failures = [str(part.error) for part in parts if part.error]
            committed.update((part.partition, part.offset) for part in parts if not part.error)
        except KafkaException as failure:
            failures = [str(failure)]
        if failures:
            # The next commit covers these records too, unless the partition moves to another
            # member, which then reads them again.
            say(failed=failures)
            continue
        # After a rebalance within consume() there may be records of revoked partitions. The commit
        # does not cover these; the next owner of the partition reads them again.
        for record in records:
            if record.offset() >= committed.get(record.partition(), 0):
                continue
            say(read=[record.partition(), record.offset(), record.value().decode()])
        records.clear()
    consumer.close()
    say(closed=True)


main(*sys.argv[1:])
