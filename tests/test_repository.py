"""The repository's own files agree with each other and with the settings."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gateway.cli.main import main
from gateway.cli.settings_command import as_markdown
from gateway.settings import layers
from gateway.settings.kop_aliases import SETTING_BY_KOP_NAME
from gateway.settings.model import Settings
from tests.testkit.pulsar import SETTINGS as PULSAR_SETTINGS
from tests.testkit.pulsar import VERSION as PULSAR

ROOT = Path(__file__).parent.parent
COMMAND = r"kopgate ([a-z]+) ?((?:[a-z]+(?:-[a-z]+)*)?)"
"""A command and its subcommand, if any."""
PINNED = re.compile(r"([A-Za-z0-9_.-]+)==(\S+)")


def read(name):
    return (ROOT / name).read_text("utf-8")


@pytest.fixture
def compose():
    return yaml.safe_load(read("docker-compose.yml"))


@pytest.fixture
def image_environment():
    block = re.search(r"^ENV ((?:.*\\\n)*.*)", read("Dockerfile"), re.MULTILINE)[1]
    return dict(pair.split("=", 1) for pair in block.replace("\\\n", " ").split())


@pytest.fixture
def gateway(compose):
    return compose["services"]["gateway"]


@pytest.fixture
def gateways(compose):
    """All gateways, by the node id that their name states."""
    services = compose["services"]
    return {
        int(name.removeprefix("gateway").removeprefix("-") or 0): services[name]
        for name in services
        if name.startswith("gateway")
    }


@pytest.fixture
def load_settings(monkeypatch):
    """A function that loads the settings of a process with this environment only."""

    def load(environment):
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("KOPGATE_")]:
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            return layers.load({})

    return load


@pytest.fixture
def pulsar_service(compose):
    return compose["services"]["pulsar"]


def test_compose_starts_pulsar_and_the_gateway(compose, gateway, pulsar_service):
    assert {name for name, service in compose["services"].items() if "profiles" not in service} == {
        "gateway",
        "pulsar",
    }
    both = {"image", "environment", "restart", "stop_grace_period", "cap_drop", "security_opt"}
    assert set(gateway) <= both | {"build", "depends_on", "ports", "read_only", "tmpfs"}
    assert set(pulsar_service) <= both | {"command", "healthcheck", "volumes"}
    assert gateway["depends_on"] == {"pulsar": {"condition": "service_healthy"}}
    assert pulsar_service["volumes"] == ["pulsar:/pulsar/data"]
    assert pulsar_service["environment"]["PULSAR_PREFIX_advertisedAddress"] == "pulsar"


def test_pulsar_of_compose_has_version_and_settings_of_the_tests(pulsar_service):
    assert pulsar_service["image"] == f"apachepulsar/pulsar:{PULSAR}"
    prefix = "PULSAR_PREFIX_"
    settings = {
        name.removeprefix(prefix): value
        for name, value in pulsar_service["environment"].items()
        if name.startswith(prefix)
    }
    ours = {
        name: value
        for name, value in PULSAR_SETTINGS.items()
        if not name.startswith("defaultRetention")
    }
    assert settings == {**ours, "advertisedAddress": "pulsar"}


def test_environment_values_in_compose_are_strings(gateways, pulsar_service):
    assert all(
        isinstance(value, str)
        for service in (*gateways.values(), pulsar_service)
        for value in service["environment"].values()
    )


def test_volumes_and_dockerfiles_of_compose_exist(compose):
    assert set(compose) - {"x-legacy"} == {"services", "volumes"}
    services = compose["services"].values()
    assert {
        volume.split(":")[0] for service in services for volume in service.get("volumes", [])
    } == set(compose["volumes"])
    builds = [service["build"] for service in services if "build" in service]
    files = {build if build == "." else build["dockerfile"] for build in builds}
    assert [name for name in files if not (ROOT / name).exists()] == []


@pytest.mark.skipif(
    not shutil.which("docker")
    or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    != 0,
    reason="there is no `docker compose` on this machine; other tests check the file",
)
def test_docker_accepts_the_compose_file():
    done = subprocess.run(
        ["docker", "compose", "-f", str(ROOT / "docker-compose.yml"), "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_image_in_compose_has_valid_settings(image_environment, gateways, load_settings):
    for node_id, service in gateways.items():
        settings = load_settings({**image_environment, **service["environment"]})
        assert [str(endpoint) for endpoint in settings.listeners] == ["PLAINTEXT://0.0.0.0:9092"]
        assert (settings.node_id, str(settings.store), settings.pulsar_admin) == (
            node_id,
            "pulsar://pulsar:6650",
            "http://pulsar:8080",
        )


def test_image_uses_the_embedded_store_in_its_volume_by_default(image_environment, load_settings):
    assert str(load_settings(image_environment).store) == "lmdb:/data"
    assert "VOLUME /data" in read("Dockerfile").splitlines()


def test_published_port_is_the_advertised_one(gateways):
    for service in gateways.values():
        (port,) = service["ports"]
        assert service["environment"]["KOPGATE_ADVERTISED"].rsplit(":", 1)[1] == port.split(":")[1]


def test_profile_cluster_adds_nodes_that_differ_in_id_and_port_only(gateways):
    assert sorted(gateways) == [0, 1, 2, 3]
    alone = gateways.pop(0)
    for node_id, service in gateways.items():
        port = 9092 + node_id
        assert service == {
            **alone,
            "profiles": ["cluster"],
            "ports": [f"127.0.0.1:{port}:9092"],
            "environment": {
                **alone["environment"],
                "KOPGATE_NODE_ID": str(node_id),
                "KOPGATE_ADVERTISED": f"PLAINTEXT://localhost:{port}",
            },
        }


def test_stop_grace_period_exceeds_the_drain_timeout(gateway):
    assert (
        int(gateway["stop_grace_period"].removesuffix("s")) * 1000 > Settings().shutdown_timeout_ms
    )


@pytest.fixture
def kubernetes():
    """The objects of the example, by kind and name."""
    return {
        (one["kind"], one["metadata"]["name"]): one["spec"]
        for one in yaml.safe_load_all(read("docs/kubernetes.yaml"))
    }


@pytest.fixture
def pod(kubernetes):
    return kubernetes["StatefulSet", "kopgate"]["template"]["spec"]


def pod_environment(pod, ordinal):
    """The environment of the gateway in a pod, as Kubernetes makes it."""
    fields = {
        "metadata.name": f"kopgate-{ordinal}",
        "metadata.namespace": "kafka",
        "metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal),
    }
    environment = {}
    for row in pod["containers"][0]["env"]:
        value = (
            row["value"] if "value" in row else fields[row["valueFrom"]["fieldRef"]["fieldPath"]]
        )
        # Refers to earlier variables only.
        environment[row["name"]] = re.sub(r"\$\((\w+)\)", lambda it: environment[it[1]], value)
    return environment


def test_pods_are_nodes_with_their_number_and_stable_name(
    kubernetes, pod, image_environment, load_settings
):
    stateful_set = kubernetes["StatefulSet", "kopgate"]
    service = kubernetes["Service", stateful_set["serviceName"]]
    assert service["clusterIP"] == "None"
    for ordinal in range(stateful_set["replicas"]):
        settings = load_settings({**image_environment, **pod_environment(pod, ordinal)})
        assert (settings.node_id, settings.store.is_pulsar) == (ordinal, True)
        (advertised,) = settings.advertised
        assert str(advertised) == f"PLAINTEXT://kopgate-{ordinal}.kopgate.kafka.svc:9092"
        (listener,) = settings.listeners
        assert (listener.host, listener.port) == ("0.0.0.0", advertised.port)


def test_objects_of_kubernetes_select_the_pods_and_their_port(kubernetes, pod):
    stateful_set = kubernetes["StatefulSet", "kopgate"]
    labels = stateful_set["template"]["metadata"]["labels"]
    assert {
        ("StatefulSet", "kopgate"): stateful_set["selector"]["matchLabels"],
        ("Service", "kopgate"): kubernetes["Service", "kopgate"]["selector"],
        ("Service", "kopgate-bootstrap"): kubernetes["Service", "kopgate-bootstrap"]["selector"],
        ("PodDisruptionBudget", "kopgate"): kubernetes["PodDisruptionBudget", "kopgate"][
            "selector"
        ]["matchLabels"],
    } == dict.fromkeys(kubernetes, labels)
    (container,) = pod["containers"]
    (port,) = container["ports"]
    assert port == {"name": "kafka", "containerPort": 9092}
    assert container["readinessProbe"]["tcpSocket"] == {"port": port["name"]}
    for name in ("kopgate", "kopgate-bootstrap"):
        assert [one["port"] for one in kubernetes["Service", name]["ports"]] == [9092]


def test_pods_stop_one_at_a_time_with_time_for_the_drain(kubernetes, pod):
    assert kubernetes["PodDisruptionBudget", "kopgate"]["maxUnavailable"] == 1
    assert pod["terminationGracePeriodSeconds"] * 1000 > 2 * Settings().shutdown_timeout_ms


def test_variables_that_kubernetes_makes_of_services_are_excluded(
    pod, image_environment, load_settings
):
    """They begin with the name of the service, and so would be settings."""
    assert pod["enableServiceLinks"] is False
    environment = {**image_environment, **pod_environment(pod, 0)}
    with pytest.raises(layers.SettingsError, match="KOPGATE_BOOTSTRAP_PORT"):
        load_settings({**environment, "KOPGATE_BOOTSTRAP_PORT": "tcp://10.0.0.1:9092"})


def test_pods_are_restricted_like_the_containers_of_compose(pod, gateway):
    (container,) = pod["containers"]
    user = next(line for line in read("Dockerfile").splitlines() if line.startswith("USER "))
    assert user == f"USER {pod['securityContext']['runAsUser']}:10001"
    assert pod["securityContext"]["runAsNonRoot"] is True
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": gateway["cap_drop"]}
    assert security["readOnlyRootFilesystem"] is gateway["read_only"]
    assert security["allowPrivilegeEscalation"] is False
    assert [one["mountPath"] for one in container["volumeMounts"]] == gateway["tmpfs"]


def test_envoy_connects_to_the_listener_for_the_first_connection(tmp_path):
    (example,) = re.findall(
        r"^```toml\n(.*?)^```", read("docs/cluster.md"), re.MULTILINE | re.DOTALL
    )
    file = tmp_path / "kopgate.toml"
    file.write_text(example)
    settings = layers.load({}, file)
    direct, bootstrap = settings.advertised
    assert (direct.host, direct.port) == (bootstrap.host, bootstrap.port)
    assert settings.for_listener("BOOTSTRAP").proxy_protocol_from
    assert not settings.for_listener("PLAINTEXT").proxy_protocol_from
    (cluster,) = yaml.safe_load(read("docs/envoy.yaml"))["static_resources"]["clusters"]
    (locality,) = cluster["load_assignment"]["endpoints"]
    addresses = [one["endpoint"]["address"]["socket_address"] for one in locality["lb_endpoints"]]
    assert addresses[0]["address"] == direct.host
    (port,) = {address["port_value"] for address in addresses}
    assert port == next(one.port for one in settings.listeners if one.name == "BOOTSTRAP")
    transport = cluster["transport_socket"]["typed_config"]
    assert transport["@type"].endswith(".ProxyProtocolUpstreamTransport")
    assert " " not in transport["@type"] + transport["transport_socket"]["typed_config"]["@type"]


def test_image_runs_as_unprivileged_user():
    lines = read("Dockerfile").splitlines()
    assert "--uid 10001" in read("Dockerfile")
    assert "--gid 10001" in read("Dockerfile")
    assert lines.index("USER 10001:10001") < lines.index('ENTRYPOINT ["kopgate"]')


def test_health_check_succeeds_while_the_first_listener_is_open():
    on_one_line = read("Dockerfile").replace("\\\n", "")
    command = json.loads(re.search(r"^HEALTHCHECK .*CMD (.*)$", on_one_line, re.MULTILINE)[1])
    assert command[0] == "python"
    # Bound before it listens, so that no other process takes the port.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listeners = f"PLAINTEXT://0.0.0.0:{listener.getsockname()[1]},SSL://0.0.0.0:9093"
        check = [sys.executable, *command[1:]]
        closed = subprocess.run(
            check, env={"KOPGATE_LISTENERS": listeners}, capture_output=True, check=False
        )
        listener.listen()
        open_ = subprocess.run(check, env={"KOPGATE_LISTENERS": listeners}, check=False)
    assert (open_.returncode, closed.returncode) == (0, 1)


def test_compiled_files_are_excluded_from_the_image():
    excluded = set(read(".dockerignore").splitlines())
    sources = {
        str(path.relative_to(ROOT).with_suffix(".c"))
        for folder in ("gateway", "records")
        for path in (ROOT / folder).rglob("*.pyx")
    }
    assert {"**/*.so", *sources} <= excluded


def test_image_context_includes_the_files_of_an_installation():
    included = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    packages = {path.parent.name for path in ROOT.glob("*/py.typed")}
    assert {
        "pyproject.toml",
        "setup.py",
        "constraints.txt",
        "README.md",
        "LICENSE",
    } | packages <= included


def requirement_names(text):
    return {
        re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0].lower().replace("_", "-") for line in text
    }


def test_every_dependency_is_pinned():
    project = tomllib.loads(read("pyproject.toml"))
    wanted = requirement_names(
        [
            *project["project"]["dependencies"],
            *project["project"]["optional-dependencies"]["gssapi"],
            *project["project"]["optional-dependencies"]["test"],
            *project["project"]["optional-dependencies"]["dev"],
        ]
    )
    pinned = {
        match[1].lower().replace("_", "-")
        for line in read("constraints.txt").splitlines()
        if (match := PINNED.fullmatch(line))
    }
    assert wanted - pinned == set()


def test_every_constraint_is_an_exact_version():
    assert [
        line for line in read("constraints.txt").splitlines() if not PINNED.fullmatch(line)
    ] == []


def test_tox_constrains_its_packages_and_not_those_of_the_tests():
    """PIP_CONSTRAINT would also apply to the libraries of old clients, which have their own
    versions.
    """
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini", "utf-8")
    assert "--constraint {tox_root}/constraints.txt" in tox["testenv"]["install_command"]
    assert "set_env" not in tox["testenv"]


def test_settings_page_is_generated_from_the_model():
    assert read("docs/settings.md") == as_markdown() + "\n", (
        "run `kopgate settings --markdown > docs/settings.md`"
    )


def test_manual_lists_every_kop_alias_once():
    (listed,) = re.findall(
        r"^KoP's setting names(?:.+\n)+", read("docs/operations.md"), re.MULTILINE
    )
    named = re.findall(r"`(\w+)`", listed)
    assert sorted(set(named) - {"KOPGATE_KAFKALISTENERS"}) == sorted(SETTING_BY_KOP_NAME)
    assert len(named) == len(set(named))


def documents():
    return [
        path
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        if path.name != "benchmarks.md"
    ]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_linked_file_exists(path):
    targets = [
        target.split("#")[0]
        for target in re.findall(r"\]\(([^)]+)\)", path.read_text("utf-8"))
        if "://" not in target
    ]
    assert [target for target in targets if target and not (path.parent / target).exists()] == []


def anchors(path):
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*documents(), ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_linked_section_exists(path):
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text("utf-8"))
    missing = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in anchors(path.parent / target if target else path)
    ]
    assert missing == []


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_module_in_a_document_exists(path):
    """Except the new modules in the examples of "How to add"."""
    text = path.read_text("utf-8").partition("\n## How to add\n")[0]
    folders = "gateway|auth|compat|records|storage|reports|tests|bench"
    named = re.findall(rf"`((?:{folders})/[\w/.-]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_setting_in_a_document_exists(path):
    text = path.read_text("utf-8")
    named = set(re.findall(r"\bKOPGATE_([A-Z_]+)\b", text)) | {
        name.upper() for name in re.findall(r"--set ([a-z_]+)=", text)
    }
    elsewhere = {"CONFIG", "CACHE", "REFERENCE", "REQUIRE_PEERS", "LISTENER__NAME__SETTING"}
    known = set(Settings.model_fields) | {name.lower() for name in SETTING_BY_KOP_NAME}
    assert {name.lower() for name in named - elsewhere} - known == set()


def shell_lines(path):
    return "\n".join(
        re.findall(r"^```sh\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_kopgate_command_in_a_document_exists(path):
    for command, sub in re.findall(rf"\b{COMMAND}", shell_lines(path)):
        words = [command, sub] if command in ("topics", "groups", "users", "acls") else [command]
        assert CliRunner().invoke(main, [*words, "--help"]).exit_code == 0, words


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_kopgate_option_in_a_document_exists(path):
    for command, sub, rest in re.findall(rf"\b{COMMAND}(.*)", shell_lines(path)):
        words = [command, sub] if command in ("topics", "groups", "users", "acls") else [command]
        options = set(re.findall(r"--[a-z-]+", CliRunner().invoke(main, [*words, "--help"]).stdout))
        assert set(re.findall(r"--[a-z-]+", rest)) - options == set(), words


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_make_target_in_a_document_exists(path):
    assert (
        set(re.findall(r"\bmake ([a-z]+)", shell_lines(path)))
        - set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
        == set()
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda path: path.name
)
def test_decision_has_at_most_50_lines(path):
    assert len(path.read_text("utf-8").splitlines()) <= 50
    assert re.fullmatch(r"\d{3}-[a-z0-9-]+\.md", path.name)


def test_make_refuses_an_old_python(tmp_path):
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && { echo Python 3.9.2; exit 0; }\nexit 1\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "-C", str(ROOT), f"VENV={tmp_path / 'venv'}", f"PYTHON={old}", "serve"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"{old} is Python 3.9.2, and 3.11 or newer is needed" in done.stderr
