# A member of a group, confluent-kafka 1.0 on Python 3.6: host:port, topic, group and settings NAME=VALUE; a line of JSON an event, until its
# standard input ends. As `tests/peers/members/confluent.py`, in the words of that age.
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
    while not select.select([sys.stdin], [], [], 0)[0]:
        records += [record for record in consumer.consume(500, 0.1) if not record.error()]
        if not records:
            continue
        # What is refused of one partition, while another has nothing to commit, is in the answer and raises nothing.
        try:
            failures = [
                str(part.error) for part in consumer.commit(asynchronous=False) if part.error
            ]
        except KafkaException as failure:
            failures = [str(failure)]
        if failures:
            # The next commit is good for them too, unless another member gets their partition and reads them again.
            say({"failed": failures})
            continue
        for record in records:
            say({"read": [record.partition(), record.offset(), record.value().decode()]})
        del records[:]
    consumer.close()
    say({"closed": True})


main(*sys.argv[1:])
