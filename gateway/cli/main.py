"""The command `kopgate`. Settings are read and the log is opened here; this is the only module that names the reactor.

Exit codes: 0 done, 1 it did not work, 2 the command or a setting is wrong; `kopgate report` has 3 for not ready, and 130 where Ctrl-C stopped it.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, cast

import click

from gateway import logs
from gateway.cli.groups import groups
from gateway.cli.report import report
from gateway.cli.settings_command import settings as settings_command
from gateway.cli.topics import topics
from gateway.cli.users import users
from gateway.settings import layers
from gateway.settings.layers import SettingsError
from gateway.settings.model import Settings

_log = logs.get_logger(__name__)


def _version() -> str:
    try:
        return metadata.version("kopgate")
    except metadata.PackageNotFoundError:  # run from a source tree that nobody installed
        return "unknown"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(_version(), "--version", prog_name="kopgate")
def main() -> None:
    """A Kafka broker to clients of every age.

    \b
    kopgate serve                     start a broker on 127.0.0.1:9092
    kopgate topics list               what topics there are
    kopgate groups describe           how far consumer groups are behind
    kopgate users add alice --file F  who may log in
    kopgate report --logs L --out O   who still speaks old Kafka
    """


@main.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="KOPGATE_CONFIG",
    metavar="FILE",
    help="A TOML file of settings.",
)
@click.option(
    "--listener",
    "listeners",
    multiple=True,
    metavar="NAME://HOST:PORT",
    help="Where to listen; may be given again. Port 0 takes a free one.",
)
@click.option(
    "--advertised",
    multiple=True,
    metavar="NAME://HOST:PORT",
    help="What clients of that listener are told to connect to.",
)
@click.option(
    "--store",
    metavar="STORE",
    help="Where topics are kept: lmdb:DIR, pulsar://HOST:PORT or pulsar+ssl://HOST:PORT.",
)
@click.option(
    "--pulsar-admin",
    metavar="URL",
    help="The admin API of that Pulsar: http://HOST:PORT or https://HOST:PORT.",
)
@click.option(
    "--pulsar-setup",
    is_flag=True,
    help="Make the namespaces and policies that are missing in Pulsar.",
)
@click.option(
    "--pulsar-token-file", metavar="FILE", help="The token (JWT) that is shown to Pulsar."
)
@click.option(
    "--pulsar-tls-trust-file",
    metavar="FILE",
    help="The authorities, in PEM, that sign the brokers' certificates.",
)
@click.option(
    "--pulsar-takeover", is_flag=True, help="Take the topics away from the gateway that has them."
)
@click.option(
    "--entry-format",
    metavar="FORMAT",
    help="mixed_kafka, kafka or pulsar: how records lie in Pulsar.",
)
@click.option(
    "--traffic-log",
    metavar="DIR",
    help="Write down who speaks which versions, for reports: JSON lines below this folder.",
)
@click.option(
    "--traffic-topic", is_flag=True, help="Write the same into the topic __kopgate_traffic."
)
@click.option("--node-id", metavar="N", help="Kafka's broker id.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="text or json.")
@click.option(
    "--set",
    "others",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any setting; `kopgate settings` lists them.",
)
def serve(config: Path | None, others: tuple[str, ...], **named: Any) -> NoReturn:
    """Start the gateway; it runs until SIGTERM or SIGINT.

    A flag wins over the environment (KOPGATE_NODE_ID=1), that over the file. When connections are accepted, one line on stdout says so:

    \b
    ready listeners=PLAINTEXT://127.0.0.1:9092 store=lmdb:./data node=0

    \b
    kopgate serve --listener PLAINTEXT://0.0.0.0:9092 --advertised PLAINTEXT://kafka.example.com:9092
    kopgate serve --store pulsar://pulsar.example.com:6650 --pulsar-admin http://pulsar.example.com:8080
    """
    flags = {**_assignments(others), **{field: value for field, value in named.items() if value}}
    names = {
        field: f"--{field.replace('_', '-').removesuffix('s')}" for field in named if named[field]
    }
    try:
        settings = layers.load(flags, config, names)
    except SettingsError as error:
        for problem in error.problems:
            click.echo(f"kopgate: {problem}", err=True)
        sys.exit(2)
    with logs.ProcessLog(
        sys.stderr,
        settings.log_format,
        settings.log_level,
        settings.log_levels,
        settings.log_queue_events,
    ):
        try:
            code = _run(settings)
        except Exception as error:  # noqa: BLE001 - the rim: what nobody foresaw belongs into the log, in one line like all else
            _log.bug("stopped by a fault of its own", error)
            code = 1
    sys.exit(code)


RESERVED_FILES = 256
"""Open files beside connections: the store, the log, listeners, threads' pipes; a few dozen, with room."""


def _raise_file_limit(connections: int) -> None:
    """Raise this process's limit on open files to what the connections need. By default a login shell gives 1,024 and allows far more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        _log.warning(
            "too few open files",
            allowed=allowed,
            wanted=wanted,
            remedy="raise the limit (ulimit -Hn) or lower max_connections",
        )


def _run(settings: Settings) -> int:
    from twisted.internet import reactor
    from twisted.logger import STDLibLogObserver, globalLogBeginner

    from gateway.server import run

    _raise_file_limit(settings.max_connections)
    # Twisted's timers go by the wall clock. If that is set forward, all of them would fire at once, and
    # members of groups be expelled; if it is set back, none would for as long.
    cast(Any, reactor).seconds = time.monotonic
    # What Twisted itself has to say goes the way of every other library.
    globalLogBeginner.beginLoggingTo(
        [cast(Any, STDLibLogObserver())], discardBuffer=True, redirectStandardIO=False
    )
    code: int = run(settings, reactor)
    return code


def _assignments(pairs: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
        if name in found:
            raise click.BadParameter(f"{name} is given twice", param_hint="--set")
        found[name] = value
    return found


main.add_command(topics)
main.add_command(groups)
main.add_command(users)
main.add_command(report)
main.add_command(settings_command)
