"""The settings model: defaults and validation."""

from __future__ import annotations

import base64
from ipaddress import ip_network

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
    "log_cleaner_delete_retention_ms": 86400000,
    "log_cleaner_max_compaction_lag_ms": 9223372036854775807,
    "log_cleaner_min_cleanable_ratio": 0.5,
    "log_cleaner_min_compaction_lag_ms": 0,
    "log_segment_bytes": 1073741824,
    "message_max_bytes": 1048588,
    "log_message_timestamp_type": "CreateTime",
    "log_message_downconversion_enable": True,
    "fetch_max_bytes": 57671680,
    "max_incremental_fetch_session_cache_slots": 1000,
    "producer_id_expiration_ms": 86400000,
}


@pytest.mark.parametrize("name", KAFKA_DEFAULTS)
def test_defaults_are_those_of_kafka(name):
    assert getattr(Settings(), name) == KAFKA_DEFAULTS[name]


def test_defaults_are_loopback_and_local_data():
    settings = Settings()
    assert settings.listeners == (parse_endpoint("PLAINTEXT://127.0.0.1:9092"),)
    assert settings.store == parse_store("lmdb:./data")


def test_every_setting_has_a_description():
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_constructor_ignores_environment(monkeypatch):
    monkeypatch.setenv("KOPGATE_NODE_ID", "7")
    assert Settings().node_id is None


def test_settings_are_immutable():
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
def test_mistyped_value_is_refused_by_name(values):
    assert next(iter(values)) in refusal(**values)


def test_wildcard_listener_requires_advertised_address():
    assert "an advertised address is required" in refusal(listeners=["PLAINTEXT://0.0.0.0:9092"])
    settings = Settings(
        listeners=["PLAINTEXT://0.0.0.0:9092"], advertised=["PLAINTEXT://kafka.example.com:19092"]
    )
    assert settings.advertised_for("PLAINTEXT") == parse_endpoint(
        "PLAINTEXT://kafka.example.com:19092"
    )


def test_bound_address_is_advertised_by_default():
    assert Settings().advertised_for("PLAINTEXT") is None


def test_wildcard_address_cannot_be_advertised():
    assert "clients cannot connect" in refusal(advertised=["PLAINTEXT://0.0.0.0:9092"])


def test_duplicate_listener_name_is_refused():
    assert "duplicate name PLAINTEXT" in refusal(
        listeners=["PLAINTEXT://127.0.0.1:1", "PLAINTEXT://127.0.0.1:2"]
    )


def test_duplicate_listener_address_is_refused():
    assert "duplicate address 127.0.0.1:1" in refusal(
        listeners=["PLAINTEXT://127.0.0.1:1", "SSL://127.0.0.1:1"]
    )


def test_two_listeners_may_use_port_zero():
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


def test_advertised_address_requires_listener():
    assert "no listener is named SSL" in refusal(advertised=["SSL://h:1"])


def test_custom_listener_name_requires_protocol_map():
    assert Settings().security_protocol("PLAINTEXT") is SecurityProtocol.PLAINTEXT
    assert "no entry for INSIDE" in refusal(listeners=["INSIDE://127.0.0.1:0"])
    settings = Settings(
        listeners=["INSIDE://127.0.0.1:0"], listener_security_protocol_map="INSIDE:PLAINTEXT"
    )
    assert settings.security_protocol("INSIDE") is SecurityProtocol.PLAINTEXT


def test_protocol_map_of_unknown_listener_is_refused():
    assert "no listener is named OUTSIDE" in refusal(
        listener_security_protocol_map={"OUTSIDE": "SSL"}
    )


def test_duplicate_protocol_map_entry_is_refused():
    assert "unique names" in refusal(
        listener_security_protocol_map="PLAINTEXT:SSL,PLAINTEXT:PLAINTEXT"
    )


def test_tls_listener_requires_certificate_and_key():
    text = refusal(listeners=["SSL://127.0.0.1:0"])
    assert "ssl_certificate_file: required by TLS listener SSL" in text
    assert "ssl_key_file: required by TLS listener SSL" in text


def test_client_certificates_require_ca_file():
    text = refusal(
        listeners=["SSL://127.0.0.1:0"],
        ssl_certificate_file="c",
        ssl_key_file="k",
        ssl_client_auth="required",
    )
    assert "ssl_ca_file" in text


def test_sasl_listener_requires_users_file():
    assert "kopgate users add" in refusal(listeners=["SASL_PLAINTEXT://127.0.0.1:0"])


def test_gssapi_requires_a_keytab_and_no_users_file():
    values = {
        "listeners": ["SASL_PLAINTEXT://127.0.0.1:0"],
        "sasl_enabled_mechanisms": ["GSSAPI"],
    }
    text = refusal(**values, sasl_kerberos_service_name="broker")
    assert "sasl_kerberos_keytab_file: required by GSSAPI on SASL listener SASL_PLAINTEXT" in text
    assert "ktadd -k FILE broker/HOST" in text
    assert "users_file" not in text
    assert Settings(**values, sasl_kerberos_keytab_file="k").enabled_mechanisms() == ("GSSAPI",)


@pytest.mark.parametrize("name", ["", "kafka/a", "kafka@R", "ka fka", "a\\b"])
def test_kerberos_service_is_a_name_without_host_and_realm(name):
    assert "sasl_kerberos_service_name" in refusal(sasl_kerberos_service_name=name)


def test_kerberos_rules_may_contain_commas_in_a_list():
    name = "sasl_kerberos_principal_to_local_rules"
    assert getattr(Settings(**{name: "RULE:[1:$1]/L, DEFAULT"}), name) == (
        "RULE:[1:$1]/L",
        "DEFAULT",
    )
    assert getattr(Settings(**{name: ["RULE:[1:$1]s/,/-/"]}), name) == ("RULE:[1:$1]s/,/-/",)
    assert "at least one value" in refusal(**{name: []})


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
def test_inconsistent_limits_are_refused(values, complaint):
    assert complaint in refusal(**values)


def test_all_problems_between_settings_are_reported():
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
            {"pulsar_multi_tenant_metadata": True},
            "pulsar_multi_tenant_metadata: store is lmdb:./data, which has no namespaces",
        ),
        ({"pulsar_allowed_namespaces": ["public/a", "b"]}, "'b' is not TENANT/NAMESPACE"),
        ({"pulsar_tenant": "a/b"}, "'a/b' is not a valid name in Pulsar"),
        ({"entry_format": "avro"}, "entry_format"),
    ],
)
def test_incomplete_pulsar_settings_are_refused(values, complaint):
    assert complaint in refusal(**values)


@pytest.mark.parametrize(
    ("values", "is_refused"),
    [
        ({}, True),
        ({"authorizer": "acls", "allow_everyone_if_no_acl_found": True}, True),
        ({"authorizer": "acls"}, False),
        ({"authorizer": "pulsar"}, False),
        ({"token_tenant_claim": "tenant"}, False),
        ({"sasl_enabled_mechanisms": ["OAUTHBEARER"]}, False),
    ],
)
def test_tenants_of_tokens_must_be_verified_or_authorized(values, is_refused):
    def make():
        return Settings(
            listeners=["SASL_PLAINTEXT://127.0.0.1:0"],
            store="pulsar://h:6650",
            pulsar_admin="http://h:8080",
            pulsar_multi_tenant_metadata=True,
            token_secret_key=base64.b64encode(bytes(32)).decode(),
            **values,
        )

    if is_refused:
        with pytest.raises(ValidationError, match="token_tenant_claim: required with"):
            make()
    else:
        make()


def test_pulsar_store_requires_only_its_addresses():
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


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"SSL": {}}, "listener.SSL: no listener has this name"),
        (
            {"PLAINTEXT": {"ssl_min_version": "TLSv1"}},
            "listener.PLAINTEXT.ssl_min_version: has no effect, since the listener has no TLS",
        ),
        (
            {"PLAINTEXT": {"sasl_enabled_mechanisms": ["PLAIN"]}},
            "listener.PLAINTEXT.sasl_enabled_mechanisms: has no effect",
        ),
        (
            {"PLAINTEXT": {"sasl_enabled_mechanisms": []}},
            "listener.PLAINTEXT.sasl_enabled_mechanisms: at least one value is required",
        ),
    ],
)
def test_useless_settings_of_a_listener_are_refused(overrides, complaint):
    assert complaint in refusal(listener=overrides)


def test_listener_without_overrides_has_general_settings():
    settings = Settings(ssl_min_version="TLSv1.3")
    assert settings.for_listener("PLAINTEXT").ssl_min_version == "TLSv1.3"
    assert settings.for_listener("PLAINTEXT").sasl_enabled_mechanisms == ("PLAIN",)


def test_permissions_of_pulsar_need_a_store_in_pulsar():
    assert "authorizer: store is lmdb:" in refusal(authorizer="pulsar")
    on_pulsar = {"store": "pulsar://h:6650", "pulsar_admin": "http://h:8080"}
    assert Settings(authorizer="pulsar", **on_pulsar).authorizer == "pulsar"


def test_permissions_must_outlive_the_refresh_interval():
    assert "pulsar_permissions_max_age_ms" in refusal(
        pulsar_permissions_refresh_ms=600_000, pulsar_permissions_max_age_ms=600_000
    )


def test_one_listener_may_be_reached_without_the_proxy_of_the_others():
    settings = Settings(
        listeners=["PLAINTEXT://127.0.0.1:1", "DIRECT://127.0.0.1:2"],
        listener_security_protocol_map={"DIRECT": "PLAINTEXT"},
        proxy_protocol_from="192.0.2.1,10.0.0.0/8",
        listener={"DIRECT": {"proxy_protocol_from": ""}},
    )
    assert settings.for_listener("PLAINTEXT").proxy_protocol_from == (
        ip_network("192.0.2.1"),
        ip_network("10.0.0.0/8"),
    )
    assert settings.for_listener("DIRECT").proxy_protocol_from == ()


SASL = {"listeners": ["SASL_PLAINTEXT://127.0.0.1:0"]}
KEY = "data:;base64,FLFyW0oLJ2Fi22KKCm21J18mbAdztfSHN/lAT5ucEKU="


def test_plain_needs_users_or_a_token_key():
    assert "users_file: required" in refusal(**SASL)
    assert Settings(**SASL, token_secret_key=KEY).users_file is None
    assert Settings(**SASL, token_public_key=KEY).users_file is None


def test_oauthbearer_needs_keys_or_the_setting_for_development():
    listener = {**SASL, "sasl_enabled_mechanisms": ["OAUTHBEARER"]}
    assert "sasl_oauthbearer_jwks_endpoint_url: required" in refusal(**listener)
    for given in (
        {"sasl_oauthbearer_jwks_endpoint_url": "https://id.example/keys"},
        {"sasl_oauthbearer_jwks_endpoint_url": "file:///etc/keys.json"},
        {"token_public_key": KEY},
        {"sasl_oauthbearer_allow_unsecured_tokens": True},
    ):
        assert Settings(**listener, **given).enabled_mechanisms() == ("OAUTHBEARER",)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"token_secret_key": KEY, "token_public_key": KEY}, "token_public_key: has no effect"),
        ({"token_audience": "kafka"}, "token_audience: required with token_audience_claim"),
        ({"token_audience_claim": "aud"}, "token_audience: required with token_audience_claim"),
        ({"sasl_oauthbearer_expected_issuer": "x"}, "expected_issuer: has no effect"),
        ({"sasl_oauthbearer_expected_audience": ["x"]}, "expected_audience: has no effect"),
        ({"sasl_oauthbearer_tenant_claim_name": "x"}, "tenant_claim_name: has no effect"),
        ({"sasl_oauthbearer_jwks_endpoint_url": "ftp://x/keys"}, "expected https"),
        ({"sasl_oauthbearer_jwks_endpoint_url": "https://user@x/keys"}, "expected https"),
    ],
)
def test_check_of_tokens_without_effect_is_refused(values, complaint):
    assert complaint in refusal(**values)


PULSAR_WORKERS = {
    "workers": 2,
    "store": "pulsar://127.0.0.1:6650",
    "pulsar_admin": "http://127.0.0.1:8080",
}


def ports(settings, index):
    mine = settings.for_worker(index)
    return mine.node_id, [str(one) for one in (*mine.listeners, *mine.advertised)]


def test_workers_have_consecutive_node_ids_and_ports():
    settings = Settings(
        **PULSAR_WORKERS,
        node_id=4,
        listeners=["PLAINTEXT://0.0.0.0:9092"],
        advertised=["PLAINTEXT://kafka.example:19092"],
    )
    assert ports(settings, 0) == (
        4,
        ["PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://kafka.example:19092"],
    )
    assert ports(settings, 1) == (
        5,
        ["PLAINTEXT://0.0.0.0:9093", "PLAINTEXT://kafka.example:19093"],
    )


def test_port_0_is_free_for_each_worker():
    settings = Settings(**PULSAR_WORKERS, listeners=["PLAINTEXT://127.0.0.1:0"])
    assert ports(settings, 1)[1] == ["PLAINTEXT://127.0.0.1:0"]


def test_listener_given_for_each_worker_has_these_ports():
    listeners = ["PLAINTEXT://127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9500"]
    settings = Settings(**PULSAR_WORKERS, listeners=listeners)
    assert ports(settings, 0)[1] == listeners[:1]
    assert ports(settings, 1)[1] == listeners[1:]


def test_listener_given_for_some_workers_is_refused():
    listeners = [f"PLAINTEXT://127.0.0.1:{port}" for port in (9092, 9500)]
    assert "give it once, or once for each of the 3 workers" in refusal(
        **{**PULSAR_WORKERS, "workers": 3}, listeners=listeners
    )


def test_workers_on_an_embedded_store_are_refused():
    assert "workers: lmdb:./data can be used by one process only" in refusal(
        workers=2, store="lmdb:./data"
    )


def test_worker_without_a_port_is_refused():
    assert "needs ports greater than 65535" in refusal(
        **PULSAR_WORKERS, listeners=["PLAINTEXT://127.0.0.1:65535"]
    )


def test_each_worker_takes_a_node_id_if_none_is_configured():
    assert [ports(Settings(**PULSAR_WORKERS), index)[0] for index in (0, 1)] == [None, None]
