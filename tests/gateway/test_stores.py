"""Creation of the configured store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from twisted.internet import reactor

from gateway.settings.model import Settings
from gateway.stores import make_store, pulsar_settings, shard_of_row
from storage.lmdb import LmdbStore


def in_pulsar(**others):
    return Settings(store="pulsar+ssl://a:6651,b:6651", pulsar_admin="https://a:8443", **others)


def test_embedded_store_is_created_in_its_directory(tmp_path):
    assert isinstance(make_store(Settings(store=f"lmdb:{tmp_path / 'data'}"), reactor), LmdbStore)


@pytest.mark.parametrize(("log_flush", "syncs"), [("fsync", True), ("os", False)])
def test_log_flush_decides_whether_appends_are_synced(tmp_path, log_flush, syncs, caplog):
    store = make_store(Settings(store=f"lmdb:{tmp_path / 'data'}", log_flush=log_flush), reactor)
    assert store.settings.sync_appends is syncs
    assert ("a power failure can lose acknowledged records" in caplog.text) is not syncs
    # Documented: at most about a second of records can be lost.
    assert syncs or store.settings.index_seconds == 1


@pytest.mark.parametrize(
    ("table", "key", "shard"),
    [
        # The check value of CRC-32 is 0xCBF43926 for these digits; modulo 32 that is 6.
        ("groups", b"123456789", 6),
        ("groups", b"\xff\x00\x00\x00\x02123456789", 6),
        ("offsets", bytes(16) + b"\x00\x00\x00\x05123456789", 6),
        # crc32 of 16 zero bytes is 0xECBB4B55; modulo 32 that is 21.
        ("producers", bytes(16) + b"\x00\x00\x00\x02", 23),
        ("compaction", bytes(16) + b"\x00\x00\x00\x0b", 0),
    ],
)
def test_row_from_before_shards_belongs_to_shard_of_its_group_or_partition(table, key, shard):
    assert shard_of_row(table, key, 32) == shard


@pytest.mark.parametrize("table", ["groups", "offsets", "producers", "compaction", "acls"])
def test_row_with_malformed_key_has_no_shard(table):
    with pytest.raises(ValueError):
        shard_of_row(table, b"\xfe\xff", 32)


def test_pulsar_settings_are_passed_to_store():
    made = pulsar_settings(
        in_pulsar(
            node_id=7,
            pulsar_token_file="t",
            pulsar_tls_trust_file="ca",
            pulsar_tls_certificate_file="c",
            pulsar_tls_key_file="k",
            pulsar_tenant="acme",
            pulsar_namespace="orders",
            pulsar_metadata_tenant="own",
            pulsar_metadata_namespace="meta",
            entry_format="kafka",
            pulsar_setup=True,
            pulsar_takeover=True,
            pulsar_send_timeout_ms=1500,
            pulsar_operation_timeout_ms=2500,
            pulsar_admin_timeout_ms=3500,
            pulsar_refresh_ms=4500,
            pulsar_resident_bytes=5,
            pulsar_threads=6,
            pulsar_readers=9,
            pulsar_mirror_cursors=True,
            log_retention_ms=10,
            log_retention_bytes=11,
            log_cleanup_policy=["compact", "delete"],
            message_max_bytes=12,
        )
    )
    assert (made.service_url, made.admin_url, made.node) == (
        "pulsar+ssl://a:6651,b:6651",
        "https://a:8443",
        "node 7",
    )
    assert (made.token_file, made.tls_trust_file) == (Path("t"), Path("ca"))
    assert (made.tls_certificate_file, made.tls_key_file) == (Path("c"), Path("k"))
    assert (made.tenant, made.namespace, made.metadata_tenant, made.metadata_namespace) == (
        "acme",
        "orders",
        "own",
        "meta",
    )
    assert (made.entry_format, made.setup, made.takeover) == ("kafka", True, True)
    assert (made.send_timeout_seconds, made.operation_timeout_seconds) == (1.5, 2.5)
    assert (made.admin_timeout_seconds, made.refresh_seconds) == (3.5, 4.5)
    assert (made.tail_bytes, made.threads, made.readers, made.mirror_cursors) == (5, 6, 9, True)
    assert (
        made.retention_ms,
        made.retention_bytes,
        made.cleanup_policy,
        made.message_max_bytes,
    ) == (10, 11, "compact,delete", 12)


def test_default_and_duplicate_namespaces_are_served_once():
    """KoP's `kopAllowedNamespaces` includes the default namespace."""
    made = pulsar_settings(
        in_pulsar(pulsar_allowed_namespaces=["public/default", "acme/a", "acme/b", "acme/a"])
    )
    assert made.allowed_namespaces == ("acme/a", "acme/b")


def test_pulsar_queue_fits_in_flight_bytes():
    assert pulsar_settings(in_pulsar(max_in_flight_bytes=1 << 30)).queue_bytes > 1 << 30


@pytest.mark.long
def test_embedded_store_does_not_import_pulsar_client():
    code = (
        "import sys; from gateway.settings.model import Settings; from gateway.stores "
        "import make_store\nimport gateway.server; from twisted.internet import "
        "reactor\nmake_store(Settings(), reactor); sys.exit('pulsar' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
