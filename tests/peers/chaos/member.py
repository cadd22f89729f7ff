# A group member with confluent-kafka 1.0 on Python 3.6. Arguments: host:port, topic, group and
# settings NAME=VALUE. Prints one line of JSON per event until its standard input is closed. Same as
# `tests/peers/groups/members/confluent_member.py`, in old syntax.
import json
import select
import sys

from confluent_kafka import Consumer, KafkaException


def say(event):
    print(json.dumps(event), flush=True)


def main(bootstrap, topic, group, *settings):
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": False,
        "auto.offset.reset": "earliest",
        "reconnect.backoff.jitter.ms": 200,
        # Otherwise 1.0.0 may never look for the next coordinator (librdkafka #2266).
        "enable.sparse.connections": False,
        "topic.metadata.refresh.interval.ms": 1000,
        "log_level": 0,
    }
    config.update(one.split("=", 1) for one in settings)
    consumer = Consumer(config)
    records = []

    def assigned(consumer, parts):
        say({"assigned": sorted(part.partition for part in parts)})

    def revoked(consumer, parts):
        del records[:]
        say({"assigned": []})

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    committed = {}
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
            say({"failed": failures})
            continue
        # After a rebalance within consume() there may be records of revoked partitions. The commit
        # does not cover these; the next owner of the partition reads them again.
        for record in records:
            if record.offset() >= committed.get(record.partition(), 0):
                continue
            say({"read": [record.partition(), record.offset(), record.value().decode()]})
        del records[:]
    consumer.close()
    say({"closed": True})


main(*sys.argv[1:])
