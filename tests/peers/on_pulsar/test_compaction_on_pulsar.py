"""Repeated writes to a compacted topic on a real Pulsar: space is reclaimed, and every consumer
finds the last value of each key.
"""

from __future__ import annotations

import time
from contextlib import closing

import pulsar as native
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.peers.on_pulsar.pulsar_gateway import bootstrap, gateway_on

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

#: A reader that opens a topic while its ledger is being closed waits for half a minute.
SECONDS = 240.0
TOPIC = "table"
KEYS = 5
VALUE_BYTES = 20_000
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "30000",
    "min.cleanable.dirty.ratio": "0.01",
}
FREQUENT_CLEANING = (
    "--set",
    "log_cleaner_backoff_ms=200",
    "--set",
    "log_retention_check_interval_ms=200",
)

#: Key, value and offset of each record.
Records = list[tuple[bytes, bytes, int]]


class Table:
    """A compacted topic and the records written to it."""

    def __init__(self, tenant, settings):
        self.tenant = tenant
        self.path = f"persistent/{settings.tenant}/{settings.namespace}/{TOPIC}-partition-0"
        self.written: Records = []

    def create(self, running, **configs):
        admin = AdminClient({"bootstrap.servers": bootstrap(running)})
        for made in admin.create_topics(
            [NewTopic(TOPIC, 1, 1, config={**CONFIGS, **configs})]
        ).values():
            made.result(SECONDS)

    def write(self, running, rounds=4):
        """Write each key several times, then close the ledger by unloading the topic."""
        producer = Producer(
            {
                "bootstrap.servers": bootstrap(running),
                "batch.num.messages": 1,
                "log_level": 0,
                "enable.idempotence": True,
            }
        )

        def stored(error, message):
            assert error is None, error
            offset = len(self.written)
            # Unknown to librdkafka if the request timed out and a later one succeeded.
            assert message.offset() in (None, offset)
            self.written.append((message.key(), message.value(), offset))

        for number in range(rounds):
            for key in range(KEYS):
                value = (b"%d %d " % (len(self.written), number)).ljust(VALUE_BYTES, b".")
                producer.produce(TOPIC, value, b"%d" % key, on_delivery=stored)
        assert producer.flush(SECONDS) == 0
        self.tenant.admin("PUT", f"{self.path}/unload")

    def size(self):
        return self.tenant.admin("GET", f"{self.path}/internalStats")["totalSize"]

    def wait_for_size(self, size):
        deadline = time.monotonic() + SECONDS
        while self.size() > size:
            assert time.monotonic() < deadline, f"{self.size()} bytes stay"
            time.sleep(0.1)

    def wait_for_fewer_records(self, count, running):
        """Wait for compaction of new records, which takes one of the next rounds."""
        deadline = time.monotonic() + SECONDS
        while (found := len(self.read(running))) >= count:
            assert time.monotonic() < deadline, f"{found} records stay"

    def read(self, running) -> Records:
        """Read from the beginning to the current end. Check that each record was written and that
        the last one of each key is present.
        """
        config = {
            "bootstrap.servers": bootstrap(running),
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        with closing(Consumer(config)) as consumer:
            begin, end = watermarks(consumer)
            assert (begin, end) == (0, len(self.written))
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            found: Records = []
            while end and (not found or found[-1][2] < end - 1):
                message = consumer.poll(SECONDS)
                assert message is not None
                assert message.error() is None, message.error()
                found.append((message.key(), message.value(), message.offset()))
        assert set(found) <= set(self.written)
        assert last_values(found) == last_values(self.written)
        return found


def watermarks(consumer):
    """Retries as clients do: a gateway on a busy machine may stop leading for a moment, and
    librdkafka does not retry this call.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), SECONDS)
        except KafkaException as failure:
            code = failure.args[0].code()
            if code != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def last_values(records):
    return {key: value for key, value, _ in records}


@pytest.mark.parametrize("starts", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_compacted_topic_stays_small_in_pulsar_and_keeps_last_values(pulsar, tmp_path, starts):
    settings = pulsar.settings()
    table = Table(pulsar, settings)
    for number in range(starts):
        folder = tmp_path / str(number)
        folder.mkdir()
        with gateway_on(settings, folder, *FREQUENT_CLEANING) as running:
            if not number:
                table.create(running)
            table.write(running)
            table.write(running)
            # One ledger of six: the newest entries are not compacted, and a ledger is deleted only
            # as a whole.
            table.wait_for_size(1.5 * 4 * KEYS * VALUE_BYTES)
            table.wait_for_fewer_records(5 * KEYS, running)
            assert running.stop() == 0
            assert not [line for line in running.lines() if "ERROR" in line or "Traceback" in line]


@pytest.mark.parametrize(
    "pauses", [(0.2, 1.0, 0.0), pytest.param((0.2, 1.0, 0.5, 1.7, 0.0), marks=pytest.mark.slow)]
)
def test_repeated_kills_during_compaction_lose_no_last_value(pulsar, tmp_path, pauses):
    settings = pulsar.settings()
    table = Table(pulsar, settings)
    for number, seconds in enumerate(pauses):
        folder = tmp_path / str(number)
        folder.mkdir()
        with gateway_on(settings, folder, *FREQUENT_CLEANING) as running:
            if not number:
                table.create(running)
            table.read(running)
            table.write(running)
            time.sleep(seconds)
    with gateway_on(settings, tmp_path, *FREQUENT_CLEANING) as running:
        table.read(running)
        table.wait_for_size(1.5 * 4 * KEYS * VALUE_BYTES)
        table.read(running)
        assert running.stop() == 0


def test_compacted_records_stay_after_switch_to_native_entry_format(pulsar, tmp_path):
    settings = pulsar.settings()
    table = Table(pulsar, settings)
    with gateway_on(settings, tmp_path, *FREQUENT_CLEANING) as running:
        table.create(running)
        table.write(running)
        table.write(running)
        table.wait_for_size(1.5 * 4 * KEYS * VALUE_BYTES)
        before = table.read(running)
        admin = AdminClient({"bootstrap.servers": bootstrap(running)})
        switched = ConfigEntry(
            "entry.format", "pulsar", incremental_operation=AlterConfigOpType.SET
        )
        for done in admin.incremental_alter_configs(
            [ConfigResource("topic", TOPIC, incremental_configs=[switched])]
        ).values():
            done.result(SECONDS)
        assert set(table.read(running)) <= set(before)
        # Until then, a round may compact records that were new when they were read.
        assert len(running.wait_for_lines(1, "topic not compacted", seconds=SECONDS)) == 1
        before = table.read(running)
        table.write(running)
        found = table.read(running)
        assert found[: len(before)] == before
        assert [offset for *_, offset in found[len(before) :]] == list(range(8 * KEYS, 12 * KEYS))
        assert len(running.wait_for_lines(1, "topic not compacted")) == 1
        assert running.stop() == 0


def test_pulsar_compacts_native_topics_for_compacted_readers(pulsar, tmp_path):
    settings = pulsar.settings()
    table = Table(pulsar, settings)
    with gateway_on(settings, tmp_path, *FREQUENT_CLEANING) as running:
        table.create(running, **{"entry.format": "pulsar"})
        table.write(running)
        assert (
            pulsar.admin("GET", f"{table.path.removesuffix('-partition-0')}/compactionThreshold")
            > 0
        )
        pulsar.admin("PUT", f"{table.path}/compaction")
        while (compaction := pulsar.admin("GET", f"{table.path}/compaction"))[
            "status"
        ] != "SUCCESS":
            assert compaction["status"] == "RUNNING", compaction
            time.sleep(0.1)
        with closing(
            native.Client(
                settings.service_url, logger=native.ConsoleLogger(native.LoggerLevel.Error)
            )
        ) as client:
            reader = client.create_reader(
                table.path.replace("/", "://", 1), native.MessageId.earliest, is_read_compacted=True
            )
            found = {}
            while reader.has_message_available():
                message = reader.read_next(60_000)
                found[message.partition_key().encode()] = message.data()
        assert found == last_values(table.written)
        assert len(table.read(running)) == len(table.written)
        assert running.stop() == 0
