"""The file with the gateway's token for Pulsar."""

from __future__ import annotations

import logging
from pathlib import Path

from storage.log import StorageFailed

log = logging.getLogger(__name__)


class TokenFile:
    """A token in a file, read again when the file changes: whoever renews it need not restart anything. To be used from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[tuple[int, int, int], str] | None = None
        self._last = ""

    def read(self) -> str:
        """The token as it is now. Raises StorageFailed, which never tells what the file holds."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            known = self._known
            if known is None or known[0] != stamp:
                known = self._known = stamp, self._path.read_text("ascii").strip()
        except OSError as error:
            raise StorageFailed(
                f"the token for Pulsar cannot be read from {self._path}: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            known = None
        if known is None or not known[1] or not known[1].isprintable() or " " in known[1]:
            raise StorageFailed(
                f"{self._path} holds no token: it must be one line, as `pulsar tokens create` prints it"
            )
        self._last = known[1]
        return self._last

    def __call__(self) -> str:
        """For the client library, which asks whenever it connects, and into whose thread nothing may be raised: where there is none now, the one before."""
        try:
            return self.read()
        except StorageFailed as failure:
            log.error("%s; going on with the one before", failure)
            return self._last

    def __repr__(self) -> str:
        """Without the token."""
        return f"Token({str(self._path)!r})"
