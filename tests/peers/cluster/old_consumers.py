# Consumers of old confluent-kafka on Python 3.6 that start at committed offsets, again and again.
# Arguments: host:port, topic, and groups. Prints a line of JSON with the first record of each
# partition after each assignment, until its standard input is closed. Never commits.
#
# A group named `members...` has a member that stays, and another one that joins, leaves and joins
# again, so that the first one has to rejoin. In other groups a consumer assigns itself all
# partitions. It sends no heartbeats and does not notice that another broker is the coordinator.
import json
import os
import sys
import threading
import time

from confluent_kafka import Consumer, TopicPartition, version

PARTITIONS = [0, 1]
#: Seconds in which a member prepares its assignment. Meanwhile the coordinator can move. It is less
#: than the heartbeat interval, so that no heartbeat reveals that.
PREPARE_SECONDS = 1.2
HEARTBEAT_MS = 1500
#: Seconds between two assignments without a group.
PAUSE_SECONDS = 0.3
#: Seconds without an assignment after which a member is replaced: one that joins again and again,
#: and one that stays. The first is replaced sooner, because its joins make the other one rejoin.
#: Both usually take a few seconds, but some never look for the next coordinator (librdkafka #2266).
JOIN_SECONDS, REJOIN_SECONDS = 15.0, 30.0


def say(event):
    # Not print: lines of several threads could mix.
    os.write(1, (json.dumps(event) + "\n").encode())


class Starts:
    """Reports the first record of each assigned partition."""

    def __init__(self, group, how):
        self.group = group
        self.how = how
        self.awaited = set()
        self.are_assigned = False
        self.changed = time.time()

    def assigned(self, consumer, parts):
        time.sleep(PREPARE_SECONDS)
        self.assign(part.partition for part in parts)

    def revoked(self, consumer, parts):
        self.awaited = set()

    def assign(self, partitions):
        self.awaited = set(partitions)
        self.are_assigned = True
        self.changed = time.time()

    def poll(self, consumer):
        """Return whether the first records of all partitions have been reported."""
        record = consumer.poll(0.1)
        if record is not None and not record.error() and record.partition() in self.awaited:
            self.awaited.remove(record.partition())
            place = {"partition": record.partition(), "offset": record.offset()}
            say(dict(place, group=self.group, how=self.how))
        return self.are_assigned and not self.awaited


def stay(config, topic):
    while True:
        consumer, starts = Consumer(config), Starts(config["group.id"], "rejoin")
        consumer.subscribe([topic], on_assign=starts.assigned, on_revoke=starts.revoked)
        while time.time() - starts.changed < REJOIN_SECONDS:
            starts.poll(consumer)
        end(consumer, 0)


def join_again_and_again(config, topic):
    while True:
        consumer, starts = Consumer(config), Starts(config["group.id"], "start")
        consumer.subscribe([topic], on_assign=starts.assigned, on_revoke=starts.revoked)
        while not starts.poll(consumer) and time.time() - starts.changed < JOIN_SECONDS:
            pass
        end(consumer, JOIN_SECONDS if starts.are_assigned else 0)


def end(consumer, seconds):
    # The end of one that is stuck waits for the coordinator. Any other one leaves the group.
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(seconds)


def assign_again_and_again(config, topic):
    consumer, starts = Consumer(config), Starts(config["group.id"], "assign")
    while True:
        # Without offsets: they are those of the group.
        consumer.assign([TopicPartition(topic, partition) for partition in PARTITIONS])
        starts.assign(PARTITIONS)
        while not starts.poll(consumer):
            pass
        consumer.unassign()
        time.sleep(PAUSE_SECONDS)


def main(bootstrap, topic, *groups):
    for group in groups:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": 6000,
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
        if version()[0] == "1.0.0":
            # Otherwise it may never look for the next coordinator (librdkafka #2266).
            config["enable.sparse.connections"] = False
        are_members = group.startswith("members")
        for run in [stay, join_again_and_again] if are_members else [assign_again_and_again]:
            threading.Thread(target=run, args=(config, topic), daemon=True).start()
    sys.stdin.read()
    # Closing would wait for brokers.
    os._exit(0)


main(*sys.argv[1:])
