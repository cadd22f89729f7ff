"""The command line: flags of `serve` and errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner
from twisted.internet import reactor
from twisted.logger import globalLogBeginner

from gateway import server
from gateway.cli import main
from gateway.settings.addresses import parse_endpoint, parse_store
from gateway.settings.model import Settings
from storage.bridge import clock_seconds
from tests.testkit.gateway import STOP_SECONDS


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch):
    for name in [name for name in os.environ if name.startswith("KOPGATE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def process_goes_on(monkeypatch):
    """Commands run in this process end by SystemExit."""
    monkeypatch.setattr(main, "_end_process", sys.exit)


@pytest.fixture
def served(monkeypatch):
    """Record the settings of each start without starting anything."""
    found = []
    monkeypatch.setattr(main, "_run", lambda settings, _: found.append(settings) or 0)
    return found


def kopgate(*arguments):
    return CliRunner().invoke(main.main, arguments)


def test_serve_maps_flags_to_settings(served):
    arguments = [
        "--listener",
        "A://0.0.0.0:1",
        "--listener",
        "B://[::1]:0",
        "--advertised",
        "A://kafka.example.com:1",
        "--store",
        "lmdb:/var/k",
    ]
    more = [
        "--node-id",
        "7",
        "--log-level",
        "debug",
        "--log-format",
        "json",
        "--set",
        "listener_security_protocol_map=A:PLAINTEXT,B:PLAINTEXT",
    ]
    assert kopgate("serve", *arguments, *more).exit_code == 0
    (settings,) = served
    assert settings.listeners == (parse_endpoint("A://0.0.0.0:1"), parse_endpoint("B://[::1]:0"))
    assert settings.advertised_for("A") == parse_endpoint("A://kafka.example.com:1")
    assert settings.store == parse_store("lmdb:/var/k")
    assert (settings.node_id, settings.log_level, settings.log_format) == (7, "debug", "json")


def test_serve_maps_pulsar_flags_to_settings(served):
    flags = {
        "store": "pulsar://a:1,b:2",
        "pulsar-admin": "http://a:8080",
        "pulsar-token-file": "t",
        "pulsar-tls-trust-file": "ca",
        "entry-format": "kafka",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    assert kopgate("serve", *words, "--pulsar-setup", "--pulsar-takeover").exit_code == 0
    (settings,) = served
    assert (str(settings.store), settings.pulsar_admin, settings.entry_format) == (
        "pulsar://a:1,b:2",
        "http://a:8080",
        "kafka",
    )
    assert (settings.pulsar_token_file, settings.pulsar_tls_trust_file) == (Path("t"), Path("ca"))
    assert (settings.pulsar_setup, settings.pulsar_takeover) == (True, True)


@pytest.mark.parametrize(("flag", "value"), [("--workers", "0"), ("--listener", "x")])
def test_error_names_the_flag_as_it_was_given(served, flag, value):
    done = kopgate("serve", flag, value)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"kopgate: {flag}: ")


def test_error_for_invalid_pulsar_address_names_flag(served):
    done = kopgate("serve", "--store", "pulsar://a:1", "--pulsar-admin", "a:8080")
    assert done.exit_code == 2
    assert done.stderr.startswith(
        "kopgate: --pulsar-admin: the admin API of Pulsar has an address like http://HOST:8080"
    )


def test_serve_without_flags_uses_defaults(served):
    kopgate("serve")
    assert [str(endpoint) for endpoint in served[0].listeners] == ["PLAINTEXT://127.0.0.1:9092"]


def test_flags_override_environment_overrides_file(served, tmp_path, monkeypatch):
    file = tmp_path / "kopgate.toml"
    file.write_text("node_id = 1\nnum_partitions = 1\nfetch_max_bytes = 2048")
    monkeypatch.setenv("KOPGATE_NODE_ID", "2")
    monkeypatch.setenv("KOPGATE_NUM_PARTITIONS", "2")
    monkeypatch.setenv("KOPGATE_CONFIG", str(file))
    kopgate("serve", "--node-id", "3")
    assert (served[0].node_id, served[0].num_partitions, served[0].fetch_max_bytes) == (3, 2, 2048)


def test_each_invalid_setting_is_one_line_and_exit_code_is_2(served, tmp_path):
    file = tmp_path / "kopgate.toml"
    file.write_text("nod_id = 1")
    result = kopgate(
        "serve",
        "--config",
        str(file),
        "--node-id",
        "x",
        "--listener",
        "here",
        "--set",
        "log_format=xml",
    )
    assert result.exit_code == 2
    assert [line.split(": ")[:2] for line in result.stderr.splitlines()] == [
        ["kopgate", "--node-id"],
        ["kopgate", "--listener"],
        ["kopgate", "--set log_format"],
        ["kopgate", str(file)],
    ]
    assert served == []


@pytest.mark.parametrize("pairs", [["node_id"], ["node_id=1", "node_id=2"]])
def test_set_accepts_each_name_once_with_value(served, pairs):
    result = kopgate("serve", *(word for pair in pairs for word in ("--set", pair)))
    assert result.exit_code == 2
    assert "--set" in result.stderr


def test_exit_code_is_that_of_the_server(monkeypatch):
    monkeypatch.setattr(main, "_run", lambda settings, _: 1)
    assert kopgate("serve").exit_code == 1


def test_unexpected_exception_is_one_log_line(monkeypatch):
    def fail(settings, _):
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(main, "_run", fail)
    result = kopgate("serve")
    assert result.exit_code == 1
    assert "error gateway.cli.main" in result.stderr
    assert "ZeroDivisionError: by nought" in result.stderr
    assert result.stderr.count("\n") == 1


def test_reactor_timers_do_not_follow_wall_clock(monkeypatch):
    clocks = []
    monkeypatch.setattr(reactor, "seconds", reactor.seconds)
    monkeypatch.setattr(
        server, "run", lambda settings, its_reactor, _: clocks.append(its_reactor.seconds) or 0
    )
    monkeypatch.setattr(globalLogBeginner, "beginLoggingTo", lambda *_, **__: None)
    # The tests have a reactor already.
    monkeypatch.setattr(main, "_install_reactor", lambda: None)
    main._run(Settings())
    assert clocks == [clock_seconds]


def test_version_is_that_of_the_package():
    try:
        version = metadata.version("kopgate")
    except metadata.PackageNotFoundError:
        version = "unknown"
    assert kopgate("--version").stdout == f"kopgate, version {version}\n"


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["topics"],
        ["topics", "create"],
        ["groups"],
        ["groups", "reset-offsets"],
        ["users"],
        ["users", "add"],
        ["settings"],
    ],
    ids=" ".join,
)
def test_every_command_has_help(command):
    result = kopgate(*command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_help_has_examples():
    described = re.findall(r"^  kopgate (\w+)", kopgate("--help").stdout, re.MULTILINE)
    assert described == ["serve", "topics", "groups", "cluster", "users", "acls", "report"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_before_reactor_runs_stops_gateway_with_its_line(tmp_path, number):
    # A shell starts background processes with SIGINT ignored.
    script = (
        "import os, signal, sys\n"
        "from gateway.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"main._raise_file_limit = lambda connections: os.kill(os.getpid(), {int(number)})\n"
        "main.main(sys.argv[1:])"
    )
    flags = ["--listener", "PLAINTEXT://127.0.0.1:0", "--store", f"lmdb:{tmp_path / 'data'}"]
    result = subprocess.run(
        [sys.executable, "-c", script, "serve", *flags],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert " stopped seconds=" in result.stderr.splitlines()[-1]


@pytest.mark.long
def test_signal_during_a_start_that_fails_leaves_the_reason_in_the_last_line(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from gateway.cli import main\n"
        "main._raise_file_limit = lambda connections: os.kill(os.getpid(), signal.SIGTERM)\n"
        "main.main(sys.argv[1:])"
    )
    file = tmp_path / "none"
    flags = ["--listener", "SASL_PLAINTEXT://127.0.0.1:0", "--set", f"users_file={file}"]
    result = subprocess.run(
        [sys.executable, "-c", script, "serve", "--store", f"lmdb:{tmp_path / 'data'}", *flags],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    assert " cannot start reason=" in result.stderr.splitlines()[-1]


def test_threads_of_libraries_do_not_change_the_exit_code():
    """The interpreter's shutdown, which such threads can crash, does not run."""
    script = (
        "import atexit, os, sys\n"
        "from gateway.cli import main\n"
        "atexit.register(os._exit, 99)\n"
        "main._run = lambda settings, _: 1\n"
        "main.main(sys.argv[1:])"
    )
    argv = [sys.executable, "-c", script, "serve"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 1, result.stderr


def test_gateway_prints_ready_and_exits_0_on_sigterm(tmp_path):
    command = [
        sys.executable,
        "-m",
        "gateway",
        "serve",
        "--listener",
        "PLAINTEXT://127.0.0.1:0",
        "--store",
        f"lmdb:{tmp_path / 'data'}",
        "--node-id",
        "3",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    try:
        line = process.stdout.readline()
        assert re.fullmatch(
            r"ready listeners=PLAINTEXT://127\.0\.0\.1:\d+ "
            rf"store=lmdb:{re.escape(str(tmp_path / 'data'))} node=3\n",
            line,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize(("hard", "warns"), [(2000, False), (600, True)])
def test_gateway_raises_open_file_limit_for_its_connections(tmp_path, hard, warns):
    serve = (
        f"{sys.executable} -m gateway serve --listener PLAINTEXT://127.0.0.1:0 "
        f"--store lmdb:{tmp_path / 'data'} --set max_connections=700"
    )
    limited = ["bash", "-c", f"ulimit -Sn 128 && ulimit -Hn {hard} && exec {serve}"]
    process = subprocess.Popen(
        limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout.readline().startswith("ready ")
        limits = (Path("/proc") / str(process.pid) / "limits").read_text()
        soft = int(re.search(r"Max open files\s+(\d+)", limits)[1])
    finally:
        process.terminate()
        _, log = process.communicate()
    assert soft == min(hard, 700 + main.RESERVED_FILES)
    assert ("open file limit too low" in log) is warns


def test_invalid_setting_exits_2_without_traceback():
    result = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--node-id", "x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "kopgate: --node-id: input should be a valid integer, not 'x'\n"


def test_serve_imports_no_other_command():
    loaded = "import gateway.cli.main, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert not {*main.COMMANDS.values(), "kafka"} & {*done.stdout.split()}
