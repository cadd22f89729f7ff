"""A member of a group, kafka-python 3: host:port, topic and group; a line of JSON an event, until its standard input ends."""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

from kafka import KafkaConsumer
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import KafkaError


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


class Listener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: Any) -> None:
        return

    def on_partitions_assigned(self, assigned: Any) -> None:
        say(at=time.monotonic_ns(), assigned=sorted(part.partition for part in assigned))


def main(bootstrap: str, topic: str, group: str) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=3_000,
        heartbeat_interval_ms=300,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=200,
    )
    consumer.subscribe([topic], listener=Listener())
    while not select.select([sys.stdin], [], [], 0)[0]:
        records = [record for part in consumer.poll(timeout_ms=100).values() for record in part]
        if not records:
            continue
        try:
            consumer.commit()
        except KafkaError as failure:
            # They will be read again, by whoever has their partition then.
            say(failed=type(failure).__name__)
            continue
        for record in records:
            say(read=[record.partition, record.offset, record.value.decode()])
    consumer.close()
    say(closed=True)


main(*sys.argv[1:])
