"""Creates the configured store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import Any

from gateway import logs
from gateway.groups.consumer import consumer_rows
from gateway.groups.offsets import offset_rows
from gateway.partitions.record_format import V2BatchFormat
from gateway.settings.model import Settings
from storage.lmdb import LmdbSettings, LmdbStore
from storage.log import Store
from storage.pulsar.settings import PulsarSettings
from storage.shards import name_shard, partition_shard

_log = logs.get_logger(__name__)

#: Bytes that the store may queue beyond the in-flight limit: overhead, and one frame accepted above
#: the limit.
_QUEUE_SLACK = 128 << 20

#: How long records that are acknowledged before they are on disk may wait for it (`log_flush`).
UNSYNCED_SECONDS = 1.0

#: Topic id and index: the key of a row of a partition.
_PARTITION_KEY = Struct(">16sI")


def make_store(settings: Settings, reactor: Any) -> Store:
    """Return the configured store, not yet open."""
    if settings.store.is_pulsar:
        # Imported on demand: Pulsar's client starts threads and uses about 14 MB.
        from storage.pulsar.store import PulsarStore

        return PulsarStore(
            pulsar_settings(settings),
            reactor=reactor,
            batch_format=V2BatchFormat(settings.max_decompressed_bytes),
            shard_of_row=shard_of_row,
        )
    limits = LmdbSettings(
        map_bytes=settings.lmdb_initial_map_bytes,
        tail_bytes=settings.lmdb_resident_bytes,
        queue_bytes=settings.max_in_flight_bytes + _QUEUE_SLACK,
    )
    if settings.log_flush == "os":
        _log.warning(
            "log_flush is os: a power failure can lose acknowledged records",
            up_to_seconds=UNSYNCED_SECONDS,
        )
        limits = replace(limits, sync_appends=False, index_seconds=UNSYNCED_SECONDS)
    return LmdbStore(Path(settings.store.location), reactor=reactor, settings=limits)


def shard_of_row(table: str, key: bytes, shard_count: int) -> int:
    """The shard of a row that was stored before stores had shards.

    Raises ValueError for a malformed key.
    """
    match table:
        case "groups":
            group = (
                consumer_rows.parse_key(key)[0]
                if consumer_rows.is_consumer_key(key)
                else key.decode()
            )
            return name_shard(group, shard_count)
        case "offsets":
            return name_shard(offset_rows.decode_key(key).group_id, shard_count)
        case "producers" | "compaction":
            if len(key) != _PARTITION_KEY.size:
                raise ValueError(f"key of {len(key)} bytes is not that of a partition")
            topic_id, index = _PARTITION_KEY.unpack(key)
            return partition_shard(topic_id, index, shard_count)
    raise ValueError(f"table {table} has no shards")


def pulsar_settings(settings: Settings) -> PulsarSettings:
    """Return the settings of the store in Pulsar; `store` must be a Pulsar address."""
    default = f"{settings.pulsar_tenant}/{settings.pulsar_namespace}"
    return PulsarSettings(
        service_url=str(settings.store),
        admin_url=settings.pulsar_admin or "",
        token_file=settings.pulsar_token_file,
        tls_trust_file=settings.pulsar_tls_trust_file,
        tls_certificate_file=settings.pulsar_tls_certificate_file,
        tls_key_file=settings.pulsar_tls_key_file,
        tenant=settings.pulsar_tenant,
        namespace=settings.pulsar_namespace,
        metadata_tenant=settings.pulsar_metadata_tenant,
        metadata_namespace=settings.pulsar_metadata_namespace,
        # KoP's setting includes the default namespace.
        allowed_namespaces=tuple(
            dict.fromkeys(one for one in settings.pulsar_allowed_namespaces if one != default)
        ),
        entry_format=settings.entry_format,
        retention_ms=settings.log_retention_ms,
        retention_bytes=settings.log_retention_bytes,
        cleanup_policy=",".join(settings.log_cleanup_policy),
        message_max_bytes=settings.message_max_bytes,
        mirror_cursors=settings.pulsar_mirror_cursors,
        shards=settings.offsets_shards,
        node="gateway" if settings.node_id is None else f"node {settings.node_id}",
        takeover=settings.pulsar_takeover,
        setup=settings.pulsar_setup,
        send_timeout_seconds=settings.pulsar_send_timeout_ms / 1000,
        operation_timeout_seconds=settings.pulsar_operation_timeout_ms / 1000,
        admin_timeout_seconds=settings.pulsar_admin_timeout_ms / 1000,
        refresh_seconds=settings.pulsar_refresh_ms / 1000,
        permissions_refresh_seconds=settings.pulsar_permissions_refresh_ms / 1000,
        permissions_max_age_seconds=settings.pulsar_permissions_max_age_ms / 1000,
        permissions_max=settings.pulsar_permissions_max,
        permissions_wildcards=settings.pulsar_permissions_wildcards,
        tail_bytes=settings.pulsar_resident_bytes,
        queue_bytes=settings.max_in_flight_bytes + _QUEUE_SLACK,
        threads=settings.pulsar_threads,
        readers=settings.pulsar_readers,
    )
