"""A gateway of an older version that has the store's lock, and does not join clusters.

`python -m tests.storage.pulsar.lock_holder NODE SERVICE_URL ADMIN_URL TENANT NAMESPACE`. Prints
`taken`; when the lock is lost or cannot be taken, names the holder and exits.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from http import HTTPStatus
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pulsar

from storage.pulsar.client.client_log import client_logger
from storage.pulsar.lock import LockHolder, describe
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import path_of

BEAT_SECONDS = 0.2
TOKEN = "older gateway"


def lock_topic(settings: PulsarSettings) -> str:
    """Full name of the topic of the store's lock."""
    return f"persistent://{settings.metadata_tenant}/{settings.metadata_namespace}/__kopgate.lock"


class OlderLock:
    """The lock as an older gateway holds it, once its topic exists. Raises ProducerFenced."""

    def __init__(self, node: str, settings: PulsarSettings) -> None:
        self._client = pulsar.Client(settings.service_url, logger=client_logger())
        now = time.time()
        self._holder = LockHolder(TOKEN, node, socket.gethostname(), os.getpid(), now, now)
        try:
            self._producer = self._client.create_producer(
                lock_topic(settings), access_mode=pulsar.ProducerAccessMode.Exclusive
            )
            self.repeat()
        except BaseException:
            self.close()
            raise

    def repeat(self) -> None:
        """Send the holder's message. Raises PulsarException."""
        said = msgspec.structs.replace(self._holder, said=time.time())
        self._producer.send(msgspec.json.encode(said))

    def close(self) -> None:
        self._client.close()


def next_holder(settings: PulsarSettings) -> LockHolder:
    """The process that has the lock; it may not have announced itself yet."""
    client = pulsar.Client(settings.service_url, logger=client_logger())
    try:
        while True:
            reader = client.create_reader(
                lock_topic(settings), pulsar.MessageId.latest, start_message_id_inclusive=True
            )
            if reader.has_message_available():
                message = reader.read_next(10_000)
                holder = msgspec.json.decode(message.data(), type=LockHolder)
                if holder.token != TOKEN:
                    return holder
            reader.close()
            time.sleep(BEAT_SECONDS)
    finally:
        client.close()


def create_topic(settings: PulsarSettings) -> None:
    url = f"{settings.admin_url}/admin/v2{path_of(lock_topic(settings))}"
    try:
        urlopen(Request(url, method="PUT"), timeout=60).close()
    except HTTPError as error:
        if error.code != HTTPStatus.CONFLICT:
            raise


def hold(node: str, settings: PulsarSettings) -> None:
    create_topic(settings)
    lock = OlderLock(node, settings)
    print("taken", flush=True)
    while True:
        time.sleep(BEAT_SECONDS)
        lock.repeat()


if __name__ == "__main__":
    service_url, admin_url, tenant, namespace = sys.argv[2:]
    chosen = PulsarSettings(
        service_url, admin_url, metadata_tenant=tenant, metadata_namespace=namespace
    )
    try:
        hold(sys.argv[1], chosen)
    except pulsar.PulsarException:
        print(describe(next_holder(chosen)), flush=True)
