"""A group member with kafka-python 3.

Arguments: host:port, topic and group. Prints one line of JSON per event until its standard input is
closed.
"""

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


class PrintingListener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: Any) -> None:
        return

    def on_partitions_assigned(self, assigned: Any) -> None:
        say(at=time.monotonic_ns(), assigned=sorted(part.partition for part in assigned))


def joined(bootstrap: str, topic: str, group: str) -> KafkaConsumer:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=10_000,
        heartbeat_interval_ms=300,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=200,
    )
    consumer.subscribe([topic], listener=PrintingListener())
    return consumer


def main(bootstrap: str, topic: str, group: str) -> None:
    consumer = None
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            # The constructor raises as well if no broker is reachable.
            consumer = consumer or joined(bootstrap, topic, group)
            # Longer than joining takes. If the timeout falls between the replies to JoinGroup and
            # SyncGroup, 3.0.12 may never send another request.
            polled = consumer.poll(timeout_ms=1000)
        except KafkaError as failure:
            # If two coroutines wait for a metadata refresh that fails, only one of them handles the
            # error. The other's is raised by poll() and ends the refresh loop (kafka/cluster.py of
            # 3.0.12). An application then creates a new consumer.
            say(failed=type(failure).__name__)
            if consumer is not None:
                consumer.close(autocommit=False, timeout_ms=1_000)
                consumer = None
            time.sleep(0.1)
            continue
        records = [record for part in polled.values() for record in part]
        if not records:
            continue
        try:
            consumer.commit()
        except KafkaError as failure:
            # The records are read again, by the member that then has the partition.
            say(failed=type(failure).__name__)
            continue
        for record in records:
            say(read=[record.partition, record.offset, record.value.decode()])
    if consumer is not None:
        consumer.close()
    say(closed=True)


main(*sys.argv[1:])
