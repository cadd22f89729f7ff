"""Putting the parts together: the store, what is read from it, and the broker on top."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from secrets import randbelow
from typing import Any

from auth.mechanism import Mechanism
from auth.plain import Plain
from auth.tls import Tls, TlsFiles
from auth.users import Users
from gateway import logs
from gateway.broker import Broker
from gateway.cluster import Cluster
from gateway.config import Settings
from gateway.conversion import Converter
from gateway.fetch_sessions import FetchSessions
from gateway.flow import Outgoing
from gateway.groups.coordinator import Coordinator
from gateway.groups.offsets import CommittedOffsets
from gateway.groups.topology import TopicView
from gateway.producer_ids import ProducerIds
from gateway.topics import Topics
from gateway.waiting import Clock
from storage.lmdb import LmdbSettings, LmdbStore
from storage.log import Store

_log = logs.part(__name__)

_INT32_MAX = (1 << 31) - 1
_CLUSTER_ID = b"cluster.id"

#: What the store may hold back beyond the bytes in flight: its own book-keeping and one frame that was let in above the limit.
_QUEUE_SLACK = 128 << 20


def now_ms() -> int:
    """Milliseconds since 1970, as Kafka counts."""
    return time.time_ns() // 1_000_000


def make_store(settings: Settings, reactor: Any) -> Store:
    """The store that the settings name, not yet open."""
    limits = LmdbSettings(
        map_bytes=settings.lmdb_initial_map_bytes,
        tail_bytes=settings.lmdb_resident_bytes,
        queue_bytes=settings.max_in_flight_bytes + _QUEUE_SLACK,
    )
    return LmdbStore(Path(settings.store.location), reactor=reactor, settings=limits)


async def open_broker(
    settings: Settings,
    store: Store,
    advertised: dict[str, tuple[str, int]],
    clock: Clock,
    run: Callable[..., Awaitable[Any]],
    start: Callable[[Coroutine[Any, Any, None]], None],
    outgoing: Outgoing,
) -> Broker:
    """Everything behind the sockets, on a store that is open. Raises StorageError."""
    topics = Topics(store, settings, now_ms, start)
    await topics.open()
    producer_ids = ProducerIds(await store.table("producer-ids"))
    await producer_ids.open()
    offsets = CommittedOffsets(await store.table("offsets"), topics, settings)
    await offsets.open()
    topology = TopicView(topics, settings.group_consumer_regex_max_bytes)
    groups = Coordinator(await store.table("groups"), topology, settings, clock, now_ms, lambda: str(uuid.uuid4()), start)
    await groups.open()
    cluster = Cluster(settings.node_id, await _cluster_id(store), advertised)
    sessions = FetchSessions(settings.max_incremental_fetch_session_cache_slots, lambda: randbelow(_INT32_MAX) + 1)
    converter = Converter(run, cache_bytes=settings.conversion_cache_bytes, max_decompressed_bytes=settings.max_decompressed_bytes)
    return Broker(
        settings, store, cluster, topics, sessions, producer_ids, offsets, groups, converter, clock, now_ms, run, outgoing=outgoing
    )


async def _cluster_id(store: Store) -> str:
    """The cluster's id, made at the very first start: 22 characters of base64, as Kafka's Uuid."""
    table = await store.table("cluster")
    known = dict(await table.items()).get(_CLUSTER_ID)
    if known is not None:
        return known.decode()
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=")
    await table.put({_CLUSTER_ID: made})
    return made.decode()


def make_mechanisms(settings: Settings, run: Callable[..., Awaitable[bool]]) -> dict[str, Mechanism]:
    """What SASL listeners offer. `run` takes password checks off the reactor thread. Raises UsersFileError, and ValueError without a users file."""
    if settings.users_file is None:
        raise ValueError("a SASL listener needs users: make a file with `kopgate users add NAME --file FILE` and set users_file to it")
    users = Users(settings.users_file, time.monotonic, lambda problem: _log.warning("users file", problem=problem))
    plain = Plain(users, run, settings.sasl_max_waiting_checks)
    return {plain.name: plain}


def make_tls(settings: Settings) -> Tls:
    """The context for TLS listeners. Raises TlsError, and ValueError where no certificate is set."""
    if settings.ssl_certificate_file is None or settings.ssl_key_file is None:
        raise ValueError("a TLS listener needs ssl_certificate_file and ssl_key_file")
    files = TlsFiles(
        settings.ssl_certificate_file,
        settings.ssl_key_file,
        settings.ssl_key_password_file,
        settings.ssl_ca_file,
        settings.ssl_client_auth,
        settings.ssl_min_version,
    )
    return Tls(files, time.monotonic, lambda problem: _log.warning("certificates", problem=problem))
