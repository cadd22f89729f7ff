"""Building the broker from a store, and the traffic log from the settings."""

from __future__ import annotations

import msgspec
import pytest

from auth.mechanism import ANONYMOUS
from auth.tls import TlsError
from compat.message_sets import read_records
from gateway.app import _open_authorizer, make_tls, open_broker, open_traffic
from gateway.net.flow_control import OutgoingBytes
from gateway.settings.model import Settings
from gateway.topics.topic_names import CONSUMER_OFFSETS, TRAFFIC_TOPIC
from gateway.traffic.client_identity import PeerAddress
from gateway.traffic.file_appender import Rotation
from gateway.traffic.log_files import RetentionLimits
from gateway.traffic.traffic_log import NO_TRAFFIC_LOG
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.fakes.memory_store import Medium, MemoryStore
from tests.gateway.handlers.groups.test_offset_commit import commit
from tests.testkit.certificates import Authority


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def opened(env, **settings):
    broker = env.broker
    return open_traffic(
        Settings(**settings),
        0,
        "cluster",
        env.clock,
        broker.topics,
        env.threads.run,
        env.background,
    )


@pytest.mark.parametrize("has_committed", [False, True])
def test_offsets_topic_is_listed_at_start_if_offsets_or_groups_exist(
    has_committed,
):
    medium = Medium()
    env = open_environment(medium)
    env.topic("orders")
    if has_committed:
        assert commit(env, ("orders", 0, 1)) == [0]
    ended(env.store.close())
    store = MemoryStore(medium)
    ended(store.open())
    advertised = {"PLAINTEXT": ("127.0.0.1", 9092)}
    outgoing = OutgoingBytes(1 << 20)
    broker = ended(
        open_broker(
            Settings(),
            store,
            advertised,
            env.clock,
            env.threads.run,
            env.threads.run_for,
            env.background,
            outgoing,
        )
    )
    assert [live.name for live in broker.topics.listed()] == [
        "orders",
        *([CONSUMER_OFFSETS] if has_committed else []),
    ]


@pytest.mark.parametrize("super_users", ["", "User:admin"])
def test_acls_without_super_users_cause_warning(env, caplog, super_users):
    settings = Settings(authorizer="acls", super_users=super_users)
    ended(_open_authorizer(settings, env.store))
    assert ("no super users" in caplog.text) == (super_users == "")


def test_traffic_log_is_off_by_default(env):
    assert opened(env) is NO_TRAFFIC_LOG


def test_traffic_log_folder_is_created_empty(env, tmp_path):
    log = opened(env, traffic_log=tmp_path / "a" / "b")
    ended(log.close(5))
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_unusable_traffic_log_folder_is_named_in_error(env, tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=f"traffic_log: {tmp_path / place}: "):
        opened(env, traffic_log=tmp_path / place)


def test_unreadable_salt_file_is_named_in_error(env, tmp_path):
    with pytest.raises(ValueError, match=r"traffic_log_salt_file: .*No such file"):
        opened(env, traffic_log=tmp_path, traffic_log_salt_file=tmp_path / "none")


def test_traffic_topic_works_without_files(env):
    log = opened(env, traffic_topic=True)
    log.connection(PeerAddress("192.0.2.1", 5000, "PLAINTEXT", "PLAINTEXT"), ANONYMOUS).closed(
        "client"
    )
    ended(log.close(5))
    stored = [
        one.value
        for entry in ended(env.partition(TRAFFIC_TOPIC).read(0, 1 << 20))
        for one in read_records(entry.payload)
    ]
    assert [msgspec.json.decode(value)["event"] for value in stored] == ["opened", "closed"]


def test_each_traffic_log_limit_has_its_setting(env, tmp_path):
    settings = {
        "retention_ms": 1_000_001,
        "retention_bytes": 2_000_002,
        "rotate_ms": 1_000_003,
        "rotate_bytes": 1_000_004,
        "queue_lines": 1_000_005,
        "queue_bytes": 2_000_006,
        "max_rows_per_connection": 7,
        "compression_level": 2,
    }
    log = opened(
        env,
        traffic_log=tmp_path,
        traffic_topic=True,
        **{f"traffic_log_{name}": value for name, value in settings.items()},
    )
    ended(log.close(5))
    files, topic = log._sinks
    assert files._limits == RetentionLimits(keep_ms=1_000_001, keep_bytes=2_000_002, level=2)
    assert files._appender._rotation == Rotation(max_ms=1_000_003, max_bytes=1_000_004)
    assert (files._max_lines, files._max_bytes) == (1_000_005, 2_000_006)
    assert (topic._configs["retention.ms"], topic._max_bytes) == ("1000001", 2_000_006)
    assert (log.limits.per_connection, log.limits.in_total) == (7, 1_000_005)


@pytest.mark.parametrize(
    ("unlimited", "limits"), [("retention_ms", (None, 1 << 30)), ("retention_bytes", (5, None))]
)
def test_retention_of_minus_1_is_unlimited(env, tmp_path, unlimited, limits):
    settings = {
        "traffic_log_retention_ms": 5,
        "traffic_log_retention_bytes": 1 << 30,
        f"traffic_log_{unlimited}": -1,
    }
    log = opened(env, traffic_log=tmp_path, **settings)
    ended(log.close(5))
    assert (log._sinks[0]._limits.keep_ms, log._sinks[0]._limits.keep_bytes) == limits


def test_unusable_tls_file_is_reported_with_listener_and_setting(tmp_path):
    authority = Authority()
    certificate, key = authority.sign().write(tmp_path, "server")
    _, other = authority.sign().write(tmp_path, "other")
    general = {"ssl_certificate_file": certificate, "ssl_key_file": key}
    listeners = ["SSL://127.0.0.1:1", "SASL_SSL://127.0.0.1:2"]
    settings = Settings(
        listeners=listeners,
        users_file=tmp_path / "users",
        listener={"SASL_SSL": {"ssl_key_file": other}},
        **general,
    )
    make_tls(settings, "SSL")
    with pytest.raises(
        TlsError, match=f"^listener SASL_SSL: listener.SASL_SSL.ssl_key_file: {other}"
    ):
        make_tls(settings, "SASL_SSL")
    certificate.unlink()
    with pytest.raises(TlsError, match=f"^listener SSL: ssl_certificate_file: {certificate}: No"):
        make_tls(settings, "SSL")


def test_error_in_file_of_two_settings_names_both(tmp_path):
    certificate, key = Authority().sign().write(tmp_path, "server")
    settings = Settings(
        listeners="SSL://127.0.0.1:0",
        ssl_certificate_file=certificate,
        ssl_key_file=key,
        ssl_ca_file=key,
        ssl_client_auth="required",
    )
    with pytest.raises(TlsError, match=r"^listener SSL: ssl_key_file or ssl_ca_file: "):
        make_tls(settings, "SSL")
