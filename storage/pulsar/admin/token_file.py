"""The file with the gateway's token for Pulsar."""

from __future__ import annotations

import logging
from pathlib import Path

from auth.watched_files import WatchedFiles
from storage.log import StorageFailed

log = logging.getLogger(__name__)


class TokenFile:
    """A token in a file, reloaded when the file changes, so that renewal needs no restart.
    Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._watched = WatchedFiles([path])
        self._text: str | None = None
        self._last = ""

    def read(self) -> str:
        """The current token. Raises StorageFailed, whose message never contains the file's
        contents.
        """
        if self._watched.changed():
            self._text = None
        try:
            token = self._text
            if token is None:
                token = self._text = self._path.read_text("ascii").strip()
        except OSError as error:
            raise StorageFailed(
                f"the token for Pulsar cannot be read from {self._path}: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            token = ""
        if not token or not token.isprintable() or " " in token:
            raise StorageFailed(
                f"{self._path} holds no token: it must be one line, "
                "as `pulsar tokens create` prints it"
            )
        self._last = token
        return token

    def __call__(self) -> str:
        """The current token, else the last one. Must not raise: the client library calls it when it
        connects.
        """
        try:
            return self.read()
        except StorageFailed as failure:
            log.error("%s; using the previous token", failure)
            return self._last

    def __repr__(self) -> str:
        """Omits the token."""
        return f"Token({str(self._path)!r})"
