"""The command `kopgate`.

It reads settings and opens the log. No other module imports the reactor. Exit codes: 0 success, 1
failure, 2 usage or settings error; for `kopgate report` also 3 not ready and 130 interrupted.
"""

from __future__ import annotations

import faulthandler
import gc
import inspect
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

import click

from gateway import HAS_COMPAT, logs, supervisor, version
from gateway.settings import layers
from gateway.settings.layers import SettingsError
from gateway.settings.model import Settings

_log = logs.get_logger(__name__)

STDERR_FILENO = 2

#: The module of each command but `serve`, which needs none of them: it starts faster without.
COMMANDS = {
    "acls": "gateway.cli.acls_command",
    "cluster": "gateway.cli.cluster.cluster_command",
    "groups": "gateway.cli.groups.groups_command",
    "settings": "gateway.cli.settings_command",
    "topics": "gateway.cli.topics",
    "users": "gateway.cli.users",
}
if HAS_COMPAT:
    # Reports identify client libraries with it.
    COMMANDS["report"] = "gateway.cli.report"


class _Commands(click.Group):
    """Imports the module of a command when the command is named or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(version(), "--version", prog_name="kopgate")
def main() -> None:
    """A Kafka broker for clients of every version.

    \b
    kopgate serve                     start a broker on 127.0.0.1:9092
    kopgate topics list               list topics
    kopgate groups describe           show the lag of consumer groups
    kopgate cluster describe          show nodes, shards and the controller
    kopgate users add alice --file F  allow a user to authenticate
    kopgate acls list                 list what users may do
    """


@main.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="KOPGATE_CONFIG",
    metavar="FILE",
    help="TOML file with settings.",
)
@click.option(
    "--listener",
    "listeners",
    multiple=True,
    metavar="NAME://HOST:PORT",
    help="Address to listen on; can be repeated. Port 0 selects a free port.",
)
@click.option(
    "--advertised",
    multiple=True,
    metavar="NAME://HOST:PORT",
    help="Address of a listener that is returned to clients.",
)
@click.option(
    "--store",
    metavar="STORE",
    help="Storage: lmdb:DIR, pulsar://HOST:PORT or pulsar+ssl://HOST:PORT.",
)
@click.option(
    "--pulsar-admin",
    metavar="URL",
    help="Admin API of Pulsar: http://HOST:PORT or https://HOST:PORT.",
)
@click.option(
    "--pulsar-setup",
    is_flag=True,
    help="Create missing namespaces and policies in Pulsar.",
)
@click.option("--pulsar-token-file", metavar="FILE", help="File with the token (JWT) for Pulsar.")
@click.option(
    "--pulsar-tls-trust-file",
    metavar="FILE",
    help="PEM file with the certificate authorities of the Pulsar brokers.",
)
@click.option(
    "--pulsar-takeover",
    is_flag=True,
    help="Take over the store from a running gateway of an older version.",
)
@click.option(
    "--entry-format",
    metavar="FORMAT",
    help="Format of records in Pulsar: mixed_kafka, kafka or pulsar.",
)
@click.option(
    "--traffic-log",
    metavar="DIR",
    help="Log which clients use which API versions, for reports: JSON lines in this folder.",
)
@click.option(
    "--traffic-topic", is_flag=True, help="Write the traffic log to the topic __kopgate_traffic."
)
@click.option("--node-id", metavar="N", help="Kafka broker id.")
@click.option(
    "--workers", metavar="N", help="Gateway processes on consecutive ports, with a Pulsar store."
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="text or json.")
@click.option(
    "--set",
    "others",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any setting; see `kopgate settings`. Can be repeated.",
)
def serve(config: Path | None, others: tuple[str, ...], **named: Any) -> NoReturn:
    """Start the gateway. It runs until SIGTERM or SIGINT.

    Flags take precedence over the environment (KOPGATE_NODE_ID=1), which takes precedence over the
    file. When connections are accepted, one line is printed to stdout:

    \b
    ready listeners=PLAINTEXT://127.0.0.1:9092 store=lmdb:./data node=0

    Exit codes: 0 stopped by a signal, also during the start; 1 could not start or continue; 2 a
    setting or the command line is wrong.

    \b
    kopgate serve --listener PLAINTEXT://0.0.0.0:9092 --advertised PLAINTEXT://kafka.example:9092
    kopgate serve --store pulsar://pulsar.example:6650 --pulsar-admin http://pulsar.example:8080

    Gateways with the same store in Pulsar form one cluster. --workers N runs N of them on this
    machine, with node ids and ports from the given ones on; they are restarted when they end.
    """
    flags = {**_assignments(others), **{field: value for field, value in named.items() if value}}
    options = {option.name: option.opts[0] for option in serve.params}
    names = {field: options[field] for field in named if named[field]}
    try:
        settings = layers.load(flags, config, names)
    except SettingsError as error:
        for problem in error.problems:
            click.echo(f"kopgate: {problem}", err=True)
        sys.exit(2)
    # A page of a mapped file that the disk cannot read ends the process by SIGBUS, and a crash in a
    # library by SIGSEGV: faulthandler then writes the stacks of all threads to stderr.
    faulthandler.enable(STDERR_FILENO)
    role = supervisor.take_worker_role(os.environ)
    if role is not None:
        settings = settings.for_worker(role.index)
    with (
        _stop_signals_deferred(),
        logs.ProcessLog(
            sys.stderr,
            settings.log_format,
            settings.log_level,
            settings.log_levels,
            settings.log_queue_events,
            None if role is None else _worker_context(settings, role.index),
        ),
    ):
        try:
            code = _supervise(settings) if settings.workers > 1 else _run(settings, role)
        except Exception as error:  # noqa: BLE001 - unforeseen errors are logged, too
            _log.bug("gateway stopped by a bug", error)
            code = 1
    _end_process(code)


def _worker_context(settings: Settings, index: int) -> dict[str, int]:
    """What tells the log lines of a worker from those of others."""
    return {"worker": index} if settings.node_id is None else {"node": settings.node_id}


def _end_process(code: int) -> NoReturn:
    """End the process without the interpreter's own shutdown.

    A thread of Pulsar's client that still waits for a broker would return into the interpreter
    while that shuts down, and crash the process: it would end by SIGSEGV instead of with `code`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _stop_signals_deferred() -> Iterator[None]:
    """Block the signals that stop the gateway, until `_run` unblocks them for the reactor.

    Threads started meanwhile block them too, so that only the main thread receives them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


RESERVED_FILES = 256
"""Open files other than connections, at most: store, log, listeners and pipes use a few dozen."""


def _raise_file_limit(connections: int) -> None:
    """Raise the process's limit on open files for the connections.

    A login shell usually allows 1,024 and permits raising it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        _log.warning(
            "open file limit too low",
            allowed=allowed,
            wanted=wanted,
            remedy="raise the limit (ulimit -Hn) or lower max_connections",
        )


def _supervise(settings: Settings) -> int:
    command = [sys.executable, "-m", "gateway", *sys.argv[1:]]
    stop_seconds = settings.shutdown_timeout_ms / 1000
    return supervisor.Supervisor(command, settings.workers, stop_seconds).run()


def _run(settings: Settings, role: supervisor.WorkerRole | None = None) -> int:
    # Imports create objects that stay. Collections would scan them again and again.
    gc.disable()
    _install_reactor()
    from twisted.internet import reactor
    from twisted.logger import STDLibLogObserver, globalLogBeginner

    from gateway.coroutines import clock_seconds
    from gateway.server import run

    gc.enable()
    _raise_file_limit(settings.max_connections)
    # Twisted's timers use the wall clock. If it jumped ahead, all timers would fire at once and
    # group members would time out; if it jumped back, none would fire until it caught up. The clock
    # must run while the machine is suspended, because leases end in that time.
    cast(Any, reactor).seconds = clock_seconds
    # Twisted's log goes through `logging`, like that of other libraries.
    globalLogBeginner.beginLoggingTo(
        [cast(Any, STDLibLogObserver())], discardBuffer=True, redirectStandardIO=False
    )
    cast(Any, reactor).callWhenRunning(
        signal.pthread_sigmask, signal.SIG_UNBLOCK, supervisor.STOP_SIGNALS
    )
    code: int = run(settings, reactor, role.report_ready if role else lambda: None)
    return code


def _install_reactor() -> None:
    """Install the gateway's reactor, on Linux; elsewhere Twisted installs one."""
    try:
        from gateway.reactor import install
    except ImportError:
        return
    install()


def _assignments(pairs: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
        if name in found:
            raise click.BadParameter(f"{name} is set more than once", param_hint="--set")
        found[name] = value
    return found


if HAS_COMPAT:
    # The docstring is not dedented yet in Python 3.11 and 3.12.
    main.help = (
        f"{inspect.cleandoc(main.help or '')}\nkopgate report --logs L --out O   "
        "report applications that use old Kafka versions"
    )
