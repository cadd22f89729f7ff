"""Creates the SASL mechanisms that the settings enable."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from auth.mechanism import Mechanism
from auth.plain import PlainMechanism
from auth.scram import HASHES, ScramCredentialSource, ScramMechanism
from auth.users import UsersFile
from gateway import logs
from gateway.settings.model import Settings

_log = logs.get_logger(__name__)


def make_mechanisms(
    settings: Settings,
    run: Callable[..., Awaitable[bool]],
    credentials: Callable[[], ScramCredentialSource],
) -> dict[str, Mechanism]:
    """The SASL mechanisms that a listener has enabled, by name.

    `run` runs password checks on other threads. `credentials` is called when a client begins.

    Raises UsersFileError, or ValueError without a users file.
    """
    mechanisms: dict[str, Mechanism] = {}
    for name in settings.enabled_mechanisms():
        mechanisms[name] = (
            ScramMechanism(name, credentials) if name in HASHES else _make_plain(settings, run)
        )
    return mechanisms


def _make_plain(settings: Settings, run: Callable[..., Awaitable[bool]]) -> PlainMechanism:
    if settings.users_file is None:
        raise ValueError(
            "a SASL listener needs users_file: create the file with "
            "`kopgate users add NAME --file FILE`"
        )
    users = UsersFile(
        settings.users_file,
        time.monotonic,
        lambda problem: _log.warning("users file problem", problem=problem),
    )
    return PlainMechanism(users, run)
