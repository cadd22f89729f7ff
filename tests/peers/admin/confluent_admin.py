"""Topic operations of confluent-kafka's AdminClient; prints one line per step."""

import sys
import time
import warnings

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

SECONDS = 120

# Old applications use deprecated calls.
warnings.simplefilter("ignore")
admin = AdminClient({"bootstrap.servers": sys.argv[1], "socket.timeout.ms": 1000 * SECONDS})
topic = ConfigResource(ConfigResource.Type.TOPIC, "librd")
first = TopicPartition("librd", 0)


def step(name, futures, show=lambda result: result):
    for future in futures.values():
        try:
            print(name, show(future.result(SECONDS)))
        except KafkaException as failed:
            print(name, failed.args[0].name(), failed.args[0].str())


def config(*names, expected):
    """Retry for at most a minute: Kafka's brokers see a change a moment after its controller."""
    deadline = time.monotonic() + 60
    while True:
        (future,) = admin.describe_configs([topic]).values()
        try:
            configs = future.result(SECONDS)
            found = [(configs[name].value, configs[name].source) for name in names]
        except KafkaException as failed:
            found = failed.args[0].name()
        if expected in str(found) or time.monotonic() > deadline:
            print("config", found)
            return
        time.sleep(0.05)


step("create", admin.create_topics([NewTopic("librd", 3, 1, config={"retention.ms": "5000"})]))
step("again", admin.create_topics([NewTopic("librd", 3, 1)]))
config("retention.ms", expected="5000")
print("list", sorted(name for name in admin.list_topics(timeout=SECONDS).topics if name == "librd"))
append = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
step(
    "append",
    admin.incremental_alter_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, "librd", incremental_configs=[append])]
    ),
)
step(
    "replace",
    admin.alter_configs(
        [
            ConfigResource(
                ConfigResource.Type.TOPIC, "librd", set_config={"max.message.bytes": "2000"}
            )
        ]
    ),
)
config("retention.ms", "max.message.bytes", expected="2000")
step("more", admin.create_partitions([NewPartitions("librd", 5)]))
step("offsets", admin.list_offsets({first: OffsetSpec.latest()}), lambda found: found.offset)
step(
    "delete records",
    admin.delete_records([TopicPartition("librd", 0, -1)]),
    lambda deleted: deleted.low_watermark,
)
step("delete", admin.delete_topics(["librd"]))
step("gone", admin.delete_topics(["librd"]))
