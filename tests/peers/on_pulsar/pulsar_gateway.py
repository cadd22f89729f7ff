"""A gateway process in front of Pulsar, and current clients for it."""

from __future__ import annotations

import subprocess
import time
from contextlib import closing, contextmanager, suppress

from confluent_kafka import Consumer, Producer

from tests.testkit.forks.prepared_gateway import start_gateway
from tests.testkit.gateway import gateway
from tests.testkit.tenant import rest

END_SECONDS = 240.0


def gateway_arguments(settings, *more):
    """Arguments of a gateway on these namespaces, by their setting names in KoP."""
    names = {
        "kafkaTenant": settings.tenant,
        "kafkaNamespace": settings.namespace,
        "kafkaMetadataTenant": settings.metadata_tenant,
        "kafkaMetadataNamespace": settings.metadata_namespace,
    }
    words = [word for name, value in names.items() for word in ("--set", f"{name}={value}")]
    # A busy Pulsar can hang for seconds, and some clients of these tests do not retry.
    patience = ("partition_open_timeout_ms=20000", "offsets_commit_timeout_ms=20000")
    others = ("group_initial_rebalance_delay_ms=0", f"offsets_shards={settings.shards}")
    words += [word for setting in (*others, *patience) for word in ("--set", setting)]
    return ["--store", settings.service_url, "--pulsar-admin", settings.admin_url, *words, *more]


@contextmanager
def gateway_on(settings, folder, *more):
    with gateway(folder, *gateway_arguments(settings, *more)) as running:
        yield running
    wait_until_lock_released(settings)


def wait_until_lock_released(settings):
    """Wait until the broker has noticed that a killed gateway is gone; until then the store is
    locked.
    """
    namespace = f"{settings.metadata_tenant}/{settings.metadata_namespace}"
    lock = f"{settings.admin_url}/admin/v2/persistent/{namespace}/__kopgate.lock/stats"
    end = time.monotonic() + END_SECONDS
    # Brokers with authentication refuse this request. Gateways in those tests are stopped, not
    # killed.
    with suppress(OSError):
        while (answer := rest("GET", lock))[0] == 200 and answer[1]["publishers"]:
            assert time.monotonic() < end, answer
            time.sleep(0.1)


def bootstrap(running):
    host, port = running.address
    return f"{host}:{port}"


def produce(running, topic, *values):
    failed = []
    # One request in flight, so that a retry does not reorder values.
    ordered = {"max.in.flight.requests.per.connection": 1, "message.timeout.ms": 240_000}
    producer = Producer({"bootstrap.servers": bootstrap(running), **ordered, "log_level": 0})
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(END_SECONDS) == 0
    assert failed == []


def consume(running, topic, count, group="readers"):
    config = {
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    with closing(Consumer({"bootstrap.servers": bootstrap(running), **config})) as consumer:
        consumer.subscribe([topic])
        found = []
        while len(found) < count and (message := consumer.poll(END_SECONDS)) is not None:
            assert message.error() is None, message.error()
            found.append((message.offset(), message.value()))
        consumer.commit(asynchronous=False)
    return found


def run_to_exit(*arguments):
    """Exit code and log of a gateway that is expected not to start."""
    words = ["serve", "--listener", "PLAINTEXT://127.0.0.1:0", *arguments]
    with start_gateway(words, subprocess.PIPE) as process:
        try:
            output, log = process.communicate(timeout=END_SECONDS)
        finally:
            process.kill()
    assert output == ""
    return process.returncode, log
