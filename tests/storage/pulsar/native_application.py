"""A native Pulsar application with its topic."""

from __future__ import annotations

import time

import pulsar as client

from storage.pulsar.topics.pulsar_names import path_of
from tests.testkit.tenant import Tenant


class NativeApplication:
    """Creates the topic; uses one client of pulsar-client."""

    def __init__(self, pulsar: Tenant) -> None:
        self.settings = pulsar.settings()
        self.topic = f"persistent://{self.settings.tenant}/{self.settings.namespace}/shared"
        pulsar.admin("PUT", path_of(self.topic).lstrip("/"))
        self._tenant = pulsar
        self.client = client.Client(self.settings.service_url)

    def batch(self, *values: bytes) -> None:
        """Send the values as one entry."""
        producer = self.client.create_producer(
            self.topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        for value in values:
            producer.send_async(value, lambda result, message_id: None)
        producer.flush()
        producer.close()

    def send(self, value: bytes, *, chunked: bool = False) -> client.MessageId:
        producer = self.client.create_producer(
            self.topic, batching_enabled=False, chunking_enabled=chunked
        )
        try:
            return producer.send(value)
        finally:
            producer.close()

    def unload(self) -> None:
        """Unload the topic, so that a new ledger begins."""
        self._tenant.admin("PUT", f"{path_of(self.topic).lstrip('/')}/unload")

    def trim(self) -> None:
        """Delete all messages by setting the retention to nothing."""
        path = path_of(self.topic).lstrip("/")
        self._tenant.admin(
            "POST", f"{path}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        )
        self.unload()
        deadline = time.monotonic() + 30
        while self._tenant.admin("GET", f"{path}/internalStats")["numberOfEntries"]:
            assert time.monotonic() < deadline, "the topic was not trimmed"
            self._tenant.admin("POST", f"{path}/trim")
