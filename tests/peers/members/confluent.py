"""A member of a group, confluent-kafka (librdkafka): host:port, topic and group; a line of JSON an event, until its standard input ends."""

from __future__ import annotations

import json
import select
import sys
from typing import Any

from confluent_kafka import Consumer, KafkaException


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def main(bootstrap: str, topic: str, group: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 3_000,
            "heartbeat.interval.ms": 300,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 1_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic], on_assign=lambda _, parts: say(assigned=sorted(part.partition for part in parts)))
    while not select.select([sys.stdin], [], [], 0)[0]:
        records = [record for record in consumer.consume(500, 0.1) if not record.error()]
        if not records:
            continue
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as failure:
            # They will be read again, by whoever has their partition then.
            say(failed=str(failure))
            continue
        for record in records:
            say(read=[record.partition(), record.offset(), record.value().decode()])
    consumer.close()
    say(closed=True)


main(*sys.argv[1:])
