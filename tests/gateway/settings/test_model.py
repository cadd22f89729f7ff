"""The settings model: Kafka's defaults where it has them, and what it refuses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.settings.addresses import SecurityProtocol, parse_endpoint, parse_store
from gateway.settings.model import Settings


def refusal(**values):
    with pytest.raises(ValidationError) as caught:
        Settings(**values)
    return str(caught.value)


# KafkaConfig's defaults of 3.9, by Kafka's own names with the dots replaced.
KAFKA_DEFAULTS = {
    "socket_request_max_bytes": 104857600,
    "connection_failed_authentication_delay_ms": 100,
    "connections_max_idle_ms": 600000,
    "auto_create_topics_enable": True,
    "num_partitions": 1,
    "log_retention_ms": 604800000,
    "log_retention_bytes": -1,
    "log_retention_check_interval_ms": 300000,
    "log_cleaner_backoff_ms": 15000,
    "message_max_bytes": 1048588,
    "log_message_timestamp_type": "CreateTime",
    "log_message_downconversion_enable": True,
    "fetch_max_bytes": 57671680,
    "max_incremental_fetch_session_cache_slots": 1000,
    "producer_id_expiration_ms": 86400000,
}


@pytest.mark.parametrize("name", KAFKA_DEFAULTS)
def test_a_default_that_kafka_has_is_kafkas(name):
    assert getattr(Settings(), name) == KAFKA_DEFAULTS[name]


def test_by_default_it_listens_on_loopback_and_keeps_its_data_under_data():
    settings = Settings()
    assert settings.listeners == (parse_endpoint("PLAINTEXT://127.0.0.1:9092"),)
    assert settings.store == parse_store("lmdb:./data")


def test_every_setting_says_what_it_is_for():
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_a_value_made_in_code_reads_no_environment(monkeypatch):
    monkeypatch.setenv("KOPGATE_NODE_ID", "7")
    assert Settings().node_id == 0


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError):
        Settings().node_id = 3


@pytest.mark.parametrize(
    "values",
    [
        {"node_id": "1"},
        {"node_id": True},
        {"node_id": 1.0},
        {"node_id": -1},
        {"auto_create_topics_enable": 1},
        {"listeners": []},
        {"listeners": 9092},
        {"log_levels": {"gateway": "loud"}},
        {"log_levels": "gateway"},
        {"log_cleanup_policy": ["shred"]},
        {"sasl_enabled_mechanisms": ["LOGIN"]},
        {"users_file": 3},
        {"store": "redis:x"},
        {"no_such_setting": 1},
    ],
    ids=str,
)
def test_an_ill_typed_value_is_refused_by_name(values):
    assert next(iter(values)) in refusal(**values)


def test_a_listener_on_every_interface_must_say_what_to_advertise():
    assert "an advertised address is required" in refusal(listeners=["PLAINTEXT://0.0.0.0:9092"])
    settings = Settings(
        listeners=["PLAINTEXT://0.0.0.0:9092"], advertised=["PLAINTEXT://kafka.example.com:19092"]
    )
    assert settings.advertised_for("PLAINTEXT") == parse_endpoint(
        "PLAINTEXT://kafka.example.com:19092"
    )


def test_a_listener_that_advertises_nothing_advertises_what_it_is_bound_to():
    assert Settings().advertised_for("PLAINTEXT") is None


def test_every_interface_cannot_be_advertised():
    assert "clients cannot connect" in refusal(advertised=["PLAINTEXT://0.0.0.0:9092"])


def test_a_listener_name_is_there_once():
    assert "duplicate name PLAINTEXT" in refusal(
        listeners=["PLAINTEXT://127.0.0.1:1", "PLAINTEXT://127.0.0.1:2"]
    )


def test_a_port_is_listened_on_once():
    assert "duplicate address 127.0.0.1:1" in refusal(
        listeners=["PLAINTEXT://127.0.0.1:1", "SSL://127.0.0.1:1"]
    )


def test_two_listeners_may_both_take_any_free_port():
    values = {"A": "PLAINTEXT", "B": "PLAINTEXT"}
    assert (
        len(
            Settings(
                listeners=["A://127.0.0.1:0", "B://127.0.0.1:0"],
                listener_security_protocol_map=values,
            ).listeners
        )
        == 2
    )


def test_what_is_advertised_belongs_to_a_listener():
    assert "no listener is named SSL" in refusal(advertised=["SSL://h:1"])


def test_the_four_protocols_mean_themselves_and_other_names_need_the_map():
    assert Settings().security_protocol("PLAINTEXT") is SecurityProtocol.PLAINTEXT
    assert "no entry for INSIDE" in refusal(listeners=["INSIDE://127.0.0.1:0"])
    settings = Settings(
        listeners=["INSIDE://127.0.0.1:0"], listener_security_protocol_map="INSIDE:PLAINTEXT"
    )
    assert settings.security_protocol("INSIDE") is SecurityProtocol.PLAINTEXT


def test_a_map_names_listeners_that_exist():
    assert "no listener is named OUTSIDE" in refusal(
        listener_security_protocol_map={"OUTSIDE": "SSL"}
    )


def test_a_map_names_each_listener_once():
    assert "unique names" in refusal(
        listener_security_protocol_map="PLAINTEXT:SSL,PLAINTEXT:PLAINTEXT"
    )


def test_a_tls_listener_needs_its_certificate_and_key():
    text = refusal(listeners=["SSL://127.0.0.1:0"])
    assert "ssl_certificate_file: required by TLS listener SSL" in text
    assert "ssl_key_file: required by TLS listener SSL" in text


def test_client_certificates_need_an_authority():
    text = refusal(
        listeners=["SSL://127.0.0.1:0"],
        ssl_certificate_file="c",
        ssl_key_file="k",
        ssl_client_auth="required",
    )
    assert "ssl_ca_file" in text


def test_a_sasl_listener_needs_users():
    assert "kopgate users add" in refusal(listeners=["SASL_PLAINTEXT://127.0.0.1:0"])


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"max_in_flight_bytes": 1 << 20}, "largest request cannot be read"),
        ({"traffic_log_retention_bytes": (64 << 20) - 1}, "no finished file could be kept"),
        ({"message_max_bytes": 200 << 20}, "largest batch cannot be sent"),
        (
            {"num_partitions": 20, "max_partitions_per_topic": 10},
            "more than max_partitions_per_topic",
        ),
    ],
    ids=["in flight", "traffic log", "message", "partitions"],
)
def test_limits_agree_with_each_other(values, complaint):
    assert complaint in refusal(**values)


def test_every_problem_between_settings_is_told_at_once():
    text = refusal(listeners=["SSL://0.0.0.0:9092", "SASL_PLAINTEXT://0.0.0.0:9093"])
    assert all(
        field in text
        for field in (
            "ssl_certificate_file",
            "ssl_key_file",
            "users_file",
            "SSL://0.0.0.0:9092",
            "SASL_PLAINTEXT://0.0.0.0:9093",
        )
    )


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            {"store": "pulsar://h:6650"},
            "pulsar_admin: required by store pulsar://h:6650",
        ),
        ({"pulsar_admin": "http://h:8080"}, "pulsar_admin: store is lmdb:./data"),
        ({"pulsar_tls_certificate_file": "c"}, "pulsar_tls_certificate_file: pulsar_tls_key_file"),
        ({"pulsar_tls_key_file": "k"}, "pulsar_tls_key_file: pulsar_tls_certificate_file"),
        (
            {
                "pulsar_multi_tenant_metadata": True,
                "listeners": ["SASL_PLAINTEXT://127.0.0.1:9093"],
            },
            "pulsar_multi_tenant_metadata: listener SASL_PLAINTEXT requires authentication, and no mechanism provides a tenant yet",
        ),
        ({"pulsar_allowed_namespaces": ["public/a", "b"]}, "'b' is not TENANT/NAMESPACE"),
        ({"pulsar_tenant": "a/b"}, "'a/b' is not a valid name in Pulsar"),
        ({"entry_format": "avro"}, "entry_format"),
    ],
)
def test_what_is_missing_for_a_store_in_pulsar_is_said(values, complaint):
    assert complaint in refusal(**values)


def test_a_store_in_pulsar_needs_nothing_but_its_two_addresses():
    settings = Settings(store="pulsar://a:6650,b:6650", pulsar_admin="http://a:8080/")
    assert (str(settings.store), settings.pulsar_admin) == (
        "pulsar://a:6650,b:6650",
        "http://a:8080",
    )
    assert (settings.pulsar_tenant, settings.pulsar_namespace) == ("public", "default")
    assert (settings.pulsar_metadata_tenant, settings.pulsar_metadata_namespace) == (
        "public",
        "__kafka",
    )
