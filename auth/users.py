"""Password file: one `name:$scrypt$ln=14,r=8,p=1$SALT$HASH` per line, reloaded when it changes.

The file is written by `kopgate users`. Hashes are in PHC string format; salt and hash are base64
without padding. Lines that start with `#` are comments. A name is the SASL user name and, as
`User:name`, the Kafka principal.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from auth.watched_files import WatchedFiles

MAX_NAME_CHARS = 249
RECHECK_SECONDS = 1.0
"""Minimum interval between checks for a changed file; checked at authentication."""

CACHE_SECONDS = 60.0
"""How long a verified password is accepted without hashing, if the user's entry is unchanged."""

MAX_CACHED_PASSWORDS = 10_000
"""Size of the cache of verified passwords, about 300 bytes each; the oldest is evicted first."""

_LINE = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{1,128})\$([A-Za-z0-9+/]{22,128})\Z",
    re.ASCII,
)
MAX_SCRYPT_MEMORY = 128 << 20


class UsersFileError(Exception):
    """The file cannot be used. The message names file, line and remedy, and contains no secret."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A stored password. `log_cost`, `block_size` and `parallelism` are scrypt's ln, r and p."""

    log_cost: int
    block_size: int
    parallelism: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, password: str, log_cost: int = 14) -> PasswordHash:
        """Hash a new password with a random salt.

        A cost of 14 takes 16 MiB and about 50 ms. Kafka clients authenticate on each connection,
        thousands of them after a restart, so a higher cost is not affordable.
        """
        salt = secrets.token_bytes(16)
        return cls(log_cost, 8, 1, salt, _scrypt(password, log_cost, 8, 1, salt, 32))

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Parse a hash as in the users file. Raises ValueError.

        It reads `$scrypt$ln=..,r=..,p=..$SALT$HASH` (PHC string format).
        """
        match = _LINE.match(text)
        if match is None:
            raise ValueError("the hash is not $scrypt$ln=..,r=..,p=..$SALT$HASH")
        log_cost, block_size, parallelism = int(match[1]), int(match[2]), int(match[3])
        is_a_cost = 1 <= log_cost < 16 * block_size and parallelism >= 1  # RFC 7914, section 2
        if not is_a_cost or 128 * block_size * parallelism << log_cost > MAX_SCRYPT_MEMORY:
            raise ValueError(
                f"ln={log_cost},r={block_size},p={parallelism} is not a valid scrypt cost, "
                f"or needs more than {MAX_SCRYPT_MEMORY >> 20} MiB"
            )
        return cls(log_cost, block_size, parallelism, _unbase64(match[4]), _unbase64(match[5]))

    def __str__(self) -> str:
        return (
            f"$scrypt$ln={self.log_cost},r={self.block_size},p={self.parallelism}"
            f"${_base64(self.salt)}${_base64(self.digest)}"
        )

    def matches(self, password: str) -> bool:
        """Whether `password` has this hash. The comparison takes constant time."""
        digest = _scrypt(
            password, self.log_cost, self.block_size, self.parallelism, self.salt, len(self.digest)
        )
        return hmac.compare_digest(digest, self.digest)


class UsersFile:
    """The users of a file, for authentication from any thread.

    `clock` returns seconds. `on_problem` is called with a message if a changed file cannot be
    loaded. The previous users then stay in effect, so that an editing mistake does not lock out
    every client.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float], on_problem: Callable[[str], None]
    ) -> None:
        self._path = path
        self._clock = clock
        self._on_problem = on_problem
        self._lock = threading.Lock()
        self._watched = WatchedFiles([path], clock, RECHECK_SECONDS)
        self._hashes = read_users(path)
        self._dummies = _DummyHashes(self._hashes)
        # Verified passwords: HMAC of name and password -> (the user's stored hash, expiry). The key
        # exists only in this process.
        self._key = secrets.token_bytes(32)
        self._cache: OrderedDict[bytes, tuple[PasswordHash, float]] = OrderedDict()
        if warning := permission_warning(path):
            on_problem(warning)

    def is_cached(self, name: str, password: str, /) -> bool:
        """Whether `check` accepted this password recently and the file and the user's entry are
        unchanged.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            found = self._cache.get(self._digest(name, password))
            if found is None or found[1] < self._clock() or self._hashes.get(name) != found[0]:
                return False
            return self._watched.is_current()
        finally:
            self._lock.release()

    def check(self, name: str, password: str, /) -> bool:
        """Whether `name` has this password. Blocks while hashing, as long for unknown names as for
        known ones.
        """
        with self._lock:
            self._reload_if_changed()
            known = self._hashes.get(name)
            # Both are computed for each name.
            dummy = self._dummies.of(name)
            stored = dummy if known is None else known
        if not stored.matches(password) or known is None:
            return False
        with self._lock:
            digest = self._digest(name, password)
            self._cache[digest] = known, self._clock() + CACHE_SECONDS
            self._cache.move_to_end(digest)
            if len(self._cache) > MAX_CACHED_PASSWORDS:
                self._cache.popitem(last=False)
        return True

    def _digest(self, name: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{name}\0{password}".encode(), "sha256")

    def _reload_if_changed(self) -> None:
        if not self._watched.changed():
            return
        try:
            self._hashes = read_users(self._path)
        except UsersFileError as error:
            self._on_problem(f"{error}; keeping the previous users")
            return
        self._dummies = _DummyHashes(self._hashes)
        if warning := permission_warning(self._path):
            self._on_problem(warning)


def read_users(path: Path) -> dict[str, PasswordHash]:
    """Read the users in file order. Raises UsersFileError."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsersFileError(
            f"{path}: {error.strerror}; create it with `kopgate users add NAME --file {path}`"
        ) from None
    except UnicodeDecodeError:
        raise UsersFileError(f"{path}: not UTF-8") from None
    users: dict[str, PasswordHash] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.rstrip("\r").partition(":")
        try:
            check_name(name)
            if name in users:
                raise ValueError("duplicate user name")
            users[name] = PasswordHash.parse(rest)
        except ValueError as error:
            raise UsersFileError(f"{path}, line {number}: {error}") from None
    return users


@contextmanager
def edit_users(path: Path) -> Iterator[dict[str, PasswordHash]]:
    """Yield the users of the file (none if it does not exist) and write them back atomically on
    exit.

    The file is readable by its owner only. A second editor waits for the first. Comments are not
    kept. Raises UsersFileError.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsersFileError(f"{path.parent}: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        users = read_users(path) if path.exists() else {}
        yield users
        try:
            _replace(path, users)
            os.fsync(folder)
        except OSError as error:
            raise UsersFileError(f"{path}: {error.strerror}") from None
    finally:
        os.close(folder)


def check_name(name: str) -> None:
    """Raise ValueError if `name` is not a valid user name."""
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise ValueError(f"a user name must have 1 to {MAX_NAME_CHARS} characters")
    if ":" in name or name.startswith("#") or name != name.strip() or not name.isprintable():
        raise ValueError(
            "a user name must not contain ':' or control characters, "
            "start or end with a space, or start with '#'"
        )


def permission_warning(path: Path) -> str | None:
    """Return a warning if other users of this machine can read or change the file."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        return None
    return (
        f"{path} is accessible to other users (mode {mode:04o}); run chmod 600 {path}"
        if mode & 0o077
        else None
    )


def _replace(path: Path, users: Mapping[str, PasswordHash]) -> None:
    # Replace the target of a symbolic link, not the link.
    path = path.resolve()
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        if path.exists():
            # Keep the owner when root edits the gateway's file.
            with suppress(PermissionError):
                os.chown(temporary, path.stat().st_uid, path.stat().st_gid)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{name}:{stored}\n" for name, stored in users.items())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class _DummyHashes:
    """Hashes to check unknown names against.

    Their costs are those of the users, in the same proportions, and a name always has the same
    cost. So the duration of a check does not tell whether the user exists, even if users have
    different costs.
    """

    def __init__(self, hashes: Mapping[str, PasswordHash]) -> None:
        stored = list(hashes.values())
        # The first user's hash is secret, and rarely changes. With a random key, unknown names
        # would be those whose cost changes with a restart.
        self._key = stored[0].digest if stored else secrets.token_bytes(32)
        self._by_cost = sorted(
            stored or [PasswordHash(14, 8, 1, b"", bytes(32))],
            key=lambda one: (one.log_cost, one.block_size, one.parallelism),
        )

    def of(self, name: str) -> PasswordHash:
        drawn = hmac.digest(self._key, name.encode(), "sha512")
        like = self._by_cost[int.from_bytes(drawn[:8], "big") * len(self._by_cost) >> 64]
        return PasswordHash(
            like.log_cost, like.block_size, like.parallelism, drawn[8:24], drawn[24:56]
        )


def _scrypt(
    password: str, log_cost: int, block_size: int, parallelism: int, salt: bytes, size: int
) -> bytes:
    # OpenSSL counts slightly more memory than the algorithm's 128 * r * N.
    return hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=1 << log_cost,
        r=block_size,
        p=parallelism,
        maxmem=2 * MAX_SCRYPT_MEMORY,
        dklen=size,
    )


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode().rstrip("=")


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ValueError("salt or hash is not base64") from None
