"""Flags override the environment, which overrides the file; errors name the layer's entry."""

from __future__ import annotations

import os

import pytest

from gateway.settings.addresses import parse_endpoint
from gateway.settings.kop_aliases import SETTING_BY_KOP_NAME
from gateway.settings.layers import SETTING_BY_KAFKA_NAME, SettingsError, load
from gateway.settings.model import Settings


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch):
    for name in [name for name in os.environ if name.startswith("KOPGATE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "kopgate.toml"
        path.write_text(text)
        return path

    return write


def problems(*args, **kwargs):
    with pytest.raises(SettingsError) as caught:
        load(*args, **kwargs)
    return caught.value.problems


def test_flag_overrides_environment_overrides_file(toml, monkeypatch):
    path = toml("node_id = 1\nnum_partitions = 1\nfetch_max_bytes = 1024")
    monkeypatch.setenv("KOPGATE_NODE_ID", "2")
    monkeypatch.setenv("KOPGATE_NUM_PARTITIONS", "2")
    settings = load({"node_id": 3}, path)
    assert (settings.node_id, settings.num_partitions, settings.fetch_max_bytes) == (3, 2, 1024)


def test_settings_without_input_are_defaults():
    assert load({}) == Settings()


def test_toml_lists_and_tables_are_read(toml):
    path = toml(
        'listeners = ["A://127.0.0.1:0", "B://[::1]:0"]\n[listener_security_protocol_map]\n'
        'A = "PLAINTEXT"\nB = "PLAINTEXT"\n[log_levels]\n"gateway.protocol.session" = "debug"'
    )
    settings = load({}, path)
    assert settings.listeners == (parse_endpoint("A://127.0.0.1:0"), parse_endpoint("B://[::1]:0"))
    assert settings.log_levels == {"gateway.protocol.session": "debug"}


def test_environment_lists_and_tables_use_commas(monkeypatch):
    monkeypatch.setenv("KOPGATE_LISTENERS", "A://127.0.0.1:0, B://[::1]:0")
    monkeypatch.setenv("KOPGATE_LISTENER_SECURITY_PROTOCOL_MAP", "A:PLAINTEXT,B:PLAINTEXT")
    monkeypatch.setenv("KOPGATE_LOG_LEVELS", "gateway.protocol.session:debug,storage:warning")
    monkeypatch.setenv("KOPGATE_AUTO_CREATE_TOPICS_ENABLE", "False")
    monkeypatch.setenv("KOPGATE_USERS_FILE", "")
    settings = load({})
    assert [str(endpoint) for endpoint in settings.listeners] == ["A://127.0.0.1:0", "B://[::1]:0"]
    assert settings.log_levels == {"gateway.protocol.session": "debug", "storage": "warning"}
    assert settings.auto_create_topics_enable is False
    assert settings.users_file is None


def as_text(value):
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(str(item) for item in value)
        case dict():
            return ",".join(f"{name}:{item}" for name, item in value.items())
    return "" if value is None else str(value)


@pytest.mark.parametrize("field", list(Settings.model_fields))
def test_every_setting_can_be_given_as_text(monkeypatch, field):
    text = as_text(getattr(Settings(), field))
    monkeypatch.setenv(f"KOPGATE_{field.upper()}", text)
    assert load({}) == Settings()
    monkeypatch.delenv(f"KOPGATE_{field.upper()}")
    assert load({field: text}) == Settings()


@pytest.mark.parametrize("text", ["nod_id = 1", "[server]\nnode_id = 1"])
def test_unknown_file_key_is_reported(toml, text):
    path = toml(text)
    key = text.strip("[").split("]")[0].split(" ")[0]
    (line,) = problems({}, path)
    assert line.startswith(f"{path}: {key}: unknown setting; ")


def test_unknown_variable_is_reported(monkeypatch):
    monkeypatch.setenv("KOPGATE_NOD_ID", "1")
    assert problems({}) == ["KOPGATE_NOD_ID: unknown setting; did you mean node_id?"]


@pytest.mark.parametrize(
    ("variable", "value"), [("KOPGATE_CONFIG", "/etc/kopgate.toml"), ("KOPGATE_PURE_PYTHON", "1")]
)
def test_variables_of_other_purposes_are_ignored(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    assert load({}) == Settings()


# KoP's aliases


def test_kop_alias_is_accepted_in_every_layer(toml, monkeypatch):
    path = toml(
        "kafkaBrokerId = 1\ndefaultNumPartitions = 2\n"
        'kafkaListeners = "PLAINTEXT://127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:2"'
    )
    monkeypatch.setenv("KOPGATE_CONNECTIONMAXIDLEMS", "5000")
    monkeypatch.setenv("KOPGATE_kafkaAdvertisedListeners", "PLAINTEXT://kafka.example.com:9092")
    settings = load(
        {"saslAllowedMechanisms": "PLAIN", "allowAutoTopicCreation": "false", "users_file": "u"},
        path,
    )
    assert [str(endpoint) for endpoint in settings.listeners] == [
        "PLAINTEXT://127.0.0.1:1",
        "SASL_PLAINTEXT://127.0.0.1:2",
    ]
    assert [str(endpoint) for endpoint in settings.advertised] == [
        "PLAINTEXT://kafka.example.com:9092"
    ]
    assert (settings.node_id, settings.num_partitions, settings.connections_max_idle_ms) == (
        1,
        2,
        5000,
    )
    assert (settings.sasl_enabled_mechanisms, settings.auto_create_topics_enable) == (
        ("PLAIN",),
        False,
    )


def test_kop_tenant_and_namespace_settings_are_accepted(toml, monkeypatch):
    path = toml(
        'kafkaTenant = "acme"\nkafkaNamespace = "orders"\n'
        'kafkaEnableMultiTenantMetadata = false\nentryFormat = "kafka"'
    )
    monkeypatch.setenv("KOPGATE_KOPALLOWEDNAMESPACES", "acme/bills,public/default")
    settings = load({"kafkaMetadataTenant": "acme", "kafkaMetadataNamespace": "__meta"}, path)
    assert (settings.pulsar_tenant, settings.pulsar_namespace, settings.entry_format) == (
        "acme",
        "orders",
        "kafka",
    )
    assert (settings.pulsar_metadata_tenant, settings.pulsar_metadata_namespace) == (
        "acme",
        "__meta",
    )
    assert settings.pulsar_allowed_namespaces == ("acme/bills", "public/default")
    assert load(
        {
            "kafkaEnableMultiTenantMetadata": "true",
            "store": "pulsar://h:6650",
            "pulsar_admin": "http://h:8080",
        }
    ).pulsar_multi_tenant_metadata
    assert problems({"kafkaEnableMultiTenantMetadata": "true"}) == [
        "--set kafkaEnableMultiTenantMetadata: store is lmdb:./data, which has no namespaces; "
        "set it to false"
    ]


def test_alias_does_not_change_layer_precedence(toml, monkeypatch):
    path = toml("node_id = 1\nkafkaListeners = 'PLAINTEXT://127.0.0.1:1'\ndefaultNumPartitions = 2")
    monkeypatch.setenv("KOPGATE_KAFKABROKERID", "2")
    monkeypatch.setenv("KOPGATE_NUM_PARTITIONS", "3")
    settings = load({"listeners": ["PLAINTEXT://127.0.0.1:4"]}, path)
    assert (settings.node_id, settings.num_partitions, str(settings.listeners[0])) == (
        2,
        3,
        "PLAINTEXT://127.0.0.1:4",
    )


def test_error_uses_alias_that_was_given(toml, monkeypatch):
    path = toml("kafkaBrokerId = true")
    monkeypatch.setenv("KOPGATE_MAXQUEUEDREQUESTS", "many")
    lines = problems({"failedAuthenticationDelayMs": "soon"}, path)
    assert sorted(line.split(": ")[0:2] for line in lines) == sorted(
        [
            [str(path), "kafkaBrokerId"],
            ["KOPGATE_MAXQUEUEDREQUESTS", "input should be a valid integer, not 'many'"],
            ["--set failedAuthenticationDelayMs", "input should be a valid integer, not 'soon'"],
        ]
    )


def test_setting_and_its_alias_in_one_layer_are_refused(toml):
    path = toml("node_id = 1\nkafkaBrokerId = 2")
    assert problems({}, path) == [f"{path}: kafkaBrokerId: alias of node_id, which is also set"]


def test_two_aliases_of_one_setting_in_one_layer_are_refused(toml):
    path = toml('allowedNamespaces = "a/b"\nkopAllowedNamespaces = "a/b"')
    assert problems({}, path) == [
        f"{path}: kopAllowedNamespaces: alias of pulsar_allowed_namespaces, which is also set"
    ]


def test_unsupported_kop_setting_is_reported(toml):
    path = toml("maxReadEntriesNum = 5")
    assert problems({}, path) == [
        f"{path}: maxReadEntriesNum: unknown setting; `kopgate settings` lists all settings"
    ]


def test_every_alias_refers_to_a_setting():
    assert set(SETTING_BY_KOP_NAME.values()) <= set(Settings.model_fields)


def test_unknown_flag_is_reported():
    assert problems({"nod_id": "1"}) == ["--set nod_id: unknown setting; did you mean node_id?"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("sasl.enabled.mechanisms", "sasl_enabled_mechanisms"),
        ("super.users", "super_users"),
        ("allow.everyone.if.no.acl.found", "allow_everyone_if_no_acl_found"),
        ("listener.security.protocol.map", "listener_security_protocol_map"),
        ("advertised.listeners", "advertised"),
        ("authorizer.class.name", "authorizer"),
        ("ssl.keystore.location", "ssl_certificate_file"),
        ("saslAllowedMechanism", "saslAllowedMechanisms"),
    ],
)
def test_unknown_setting_is_compared_with_names_of_kafka_and_kop(name, meant):
    assert problems({name: "1"}) == [f"--set {name}: unknown setting; did you mean {meant}?"]


def test_settings_for_kafka_names_exist():
    assert set(SETTING_BY_KAFKA_NAME.values()) <= set(Settings.model_fields)


@pytest.mark.parametrize("value", ["true", '"5"', "1.5", "[1]"])
def test_file_values_are_strictly_typed(toml, value):
    path = toml(f"node_id = {value}")
    assert problems({}, path)[0].startswith(f"{path}: node_id: input should be a valid integer")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KOPGATE_NODE_ID", "one"),
        ("KOPGATE_NODE_ID", "1.5"),
        ("KOPGATE_AUTO_CREATE_TOPICS_ENABLE", "maybe"),
        ("KOPGATE_LOG_FORMAT", "xml"),
    ],
)
def test_mistyped_variable_is_reported_with_its_value(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    (line,) = problems({})
    assert line.startswith(f"{variable}: input should be")
    assert line.endswith(f", not {value!r}")


def test_every_problem_has_one_line(toml, monkeypatch):
    path = toml('num_partitions = "three"\nlisteners = ["X"]')
    monkeypatch.setenv("KOPGATE_BOGUS", "1")
    lines = problems({"node_id": "x"}, path, {"node_id": "--node-id"})
    assert [line.split(": ")[0] for line in lines] == [
        "KOPGATE_BOGUS",
        "--node-id",
        str(path),
        str(path),
    ]
    assert not any("\n" in line for line in lines)


def test_problem_between_settings_names_origin_of_first(monkeypatch):
    monkeypatch.setenv("KOPGATE_LISTENERS", "PLAINTEXT://0.0.0.0:9092")
    assert problems({})[0].startswith(
        "KOPGATE_LISTENERS: PLAINTEXT://0.0.0.0:9092 listens on all interfaces"
    )


def test_missing_file_is_reported(tmp_path):
    assert problems({}, tmp_path / "none.toml") == [
        f"{tmp_path / 'none.toml'}: No such file or directory"
    ]


@pytest.mark.parametrize("text", [b"node_id = ", b"node_id = 1\nnode_id = 2", b"\xff\xfe"])
def test_invalid_toml_is_reported(tmp_path, text):
    path = tmp_path / "kopgate.toml"
    path.write_bytes(text)
    (line,) = problems({}, path)
    assert line.startswith(f"{path}: not TOML: ")


def test_unreadable_file_does_not_hide_other_problems(tmp_path, monkeypatch):
    monkeypatch.setenv("KOPGATE_NODE_ID", "x")
    assert len(problems({}, tmp_path / "none.toml")) == 2


# Settings of one listener


def test_settings_of_one_listener_are_accepted_in_every_layer(toml, monkeypatch):
    path = toml(
        'listeners = ["IN_SIDE://127.0.0.1:1", "SSL://127.0.0.1:2"]\n'
        'listener_security_protocol_map = {IN_SIDE = "SSL"}\n'
        'ssl_certificate_file = "c"\nssl_key_file = "k"\nssl_key_password_file = "p"\n'
        '[listener.IN_SIDE]\nssl_min_version = "TLSv1"\nssl_certificate_file = "file"\n'
        'kopSslClientAuth = "required"\nssl_key_password_file = ""'
    )
    monkeypatch.setenv("KOPGATE_LISTENER__IN_SIDE__SSL_CERTIFICATE_FILE", "variable")
    monkeypatch.setenv("KOPGATE_LISTENER__IN_SIDE__SSL_CA_FILE", "ca")
    settings = load({"listener.IN_SIDE.ssl_certificate_file": "flag"}, path)
    mine, others = settings.for_listener("IN_SIDE"), settings.for_listener("SSL")
    assert (mine.ssl_min_version, mine.ssl_client_auth) == ("TLSv1", "required")
    assert (str(mine.ssl_certificate_file), str(mine.ssl_ca_file)) == ("flag", "ca")
    assert (str(mine.ssl_key_file), mine.ssl_key_password_file) == ("k", None)
    assert (others.ssl_min_version, others.ssl_client_auth) == ("TLSv1.2", "none")
    assert (str(others.ssl_certificate_file), str(others.ssl_key_password_file)) == ("c", "p")


def test_error_in_setting_of_a_listener_names_listener_and_setting(toml, monkeypatch):
    path = toml('[listener.PLAINTEXT]\nssl_client_auth = "maybe"\nnum_partitions = 3\nbogus = 1')
    monkeypatch.setenv("KOPGATE_LISTENER__PLAINTEXT__SSL_MIN_VERSION", "SSLv3")
    lines = problems({"listener.PLAINTEXT.sasl_enabled_mechanisms": "LOGIN"}, path)
    assert sorted(line.split(": ")[:2] for line in lines if str(path) in line) == [
        [str(path), "listener.PLAINTEXT.bogus"],
        [str(path), "listener.PLAINTEXT.num_partitions"],
        [str(path), "listener.PLAINTEXT.ssl_client_auth"],
    ]
    unknown = "unknown setting; `kopgate settings` lists all settings"
    assert f"{path}: listener.PLAINTEXT.bogus: {unknown}" in lines
    assert f"{path}: listener.PLAINTEXT.num_partitions: cannot be set for one listener" in lines
    others = [line for line in lines if str(path) not in line]
    assert any(line.startswith("KOPGATE_LISTENER__PLAINTEXT__SSL_MIN_VERSION: ") for line in others)
    assert any(
        line.startswith("--set listener.PLAINTEXT.sasl_enabled_mechanisms") for line in others
    )


def test_missing_setting_of_a_listener_is_reported_where_it_was_set(toml):
    path = toml(
        'listeners = ["SSL://127.0.0.1:1"]\nssl_certificate_file = "c"\nssl_key_file = "k"\n'
        '[listener.SSL]\nssl_key_file = ""\nssl_client_auth = "required"'
    )
    assert problems({}, path) == [
        f"{path}: listener.SSL.ssl_key_file: required by TLS listener SSL",
        "ssl_ca_file: required to verify client certificates, since listener.SSL.ssl_client_auth "
        "is required (listener SSL)",
    ]


@pytest.mark.parametrize("text", ['listener = "X"', "listener = {X = 1}", "listener = [1]"])
def test_listener_tables_of_another_type_are_reported(toml, text):
    path = toml(text)
    assert problems({}, path)[0].startswith(f"{path}: listener")
