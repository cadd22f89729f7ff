"""SCRAM credentials of users, in a state table.

The rules of changes are those of Kafka's ScramControlManager: one change per user and request, and
all valid changes of a request are stored together.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import msgspec

from auth.scram import (
    HASHES,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramCredential,
    readable_salt,
)
from gateway.cluster.replicated_rows import load_and_follow
from gateway.coroutines import SerialChanges
from gateway.protocol.errors import ErrorCode, KafkaError, storage_error
from storage.log import StateTable, StorageError

#: Mechanism by its code in the admin API (KIP-554) and in row keys.
MECHANISMS = dict(enumerate(HASHES, 1))
_CODES = {name: code for code, name in MECHANISMS.items()}
_KEY_BYTES = {name: hashlib.new(hash_name).digest_size for name, hash_name in HASHES.items()}

#: Maximum number of credentials, some 500 bytes each.
MAX_CREDENTIALS = 100_000

#: Limits in bytes. Keys of the store have at most 480 bytes; Kafka's tools send 26 bytes of salt.
MAX_NAME_BYTES, MAX_SALT_BYTES, MAX_SALTED_PASSWORD_BYTES = 400, 256, 256

#: Iterations of a decoy while no user has a credential: the default of Kafka's tools.
DEFAULT_ITERATIONS = 4096

#: A salt in the form of Kafka's tools (`auth.scram.readable_salt`).
_READABLE_SALT = re.compile(rb"[0-9a-z]{23,26}")

#: What a client sees of a credential: iterations, and bytes of the salt or 0 for a readable one.
_Shape = tuple[int, int]

#: Row with the key of the decoys, which stays the same over restarts like the salts of users.
_DECOY_ROW = b"\0decoy"


class _Row(msgspec.Struct, frozen=True, array_like=True):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


@dataclass(frozen=True, slots=True)
class Deletion:
    """Deletes a user's credential. `mechanism` is a code of `MECHANISMS`, or an unknown one."""

    name: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class Upsertion:
    """Adds or replaces a user's credential. `mechanism` is as in `Deletion`."""

    name: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


class ScramCredentials:
    """Credentials by mechanism and user. `is_enabled` says whether they may be changed."""

    def __init__(self, table: StateTable, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._table = table
        self._by_mechanism: dict[str, dict[str, ScramCredential]] = {name: {} for name in HASHES}
        self._decoys = {name: _DecoyShapes() for name in HASHES}
        self._decoy_key = secrets.token_bytes(32)
        self._is_decoy_key_stored = False
        self._changes = SerialChanges()

    async def open(self) -> None:
        """Load the table. Raises StorageError."""
        await load_and_follow(self._table, "scram-credentials", self._apply_row)

    def _apply_row(self, key: bytes, value: bytes | None) -> None:
        if key == _DECOY_ROW:
            if value is not None:
                self._decoy_key, self._is_decoy_key_stored = value, True
        elif key[0] in MECHANISMS:
            credential = None
            if value is not None:
                row = msgspec.msgpack.decode(value, type=_Row)
                credential = ScramCredential(
                    row.salt, row.stored_key, row.server_key, row.iterations
                )
            self._put(MECHANISMS[key[0]], key[1:].decode(), credential)

    def __len__(self) -> int:
        return sum(map(len, self._by_mechanism.values()))

    def find(self, mechanism: str, name: str) -> ScramCredential | None:
        """Return the credential of a user."""
        return self._by_mechanism[mechanism].get(name)

    def decoy(self, mechanism: str, name: str) -> ScramCredential:
        """Return a credential that no password matches.

        The salt is derived from the name. Iterations and form of the salt are those of the users,
        in the same proportions: other clients than Kafka's tools choose other salts.
        """
        digest = hmac.digest(self._decoy_key, f"{mechanism}\0{name}".encode(), "sha512")
        iterations, salt_bytes = self._decoys[mechanism].pick(digest[:8])
        size = salt_bytes or 32
        entropy = hashlib.shake_256(digest[8:]).digest(size + _KEY_BYTES[mechanism])
        salt, key = entropy[:size], entropy[size:]
        return ScramCredential(salt if salt_bytes else readable_salt(salt), key, key, iterations)

    def users(self) -> Iterator[str]:
        """Iterate over the users that have a credential, sorted by name."""
        return iter(sorted(set().union(*self._by_mechanism.values())))

    def describe(self, name: str) -> list[tuple[int, int]]:
        """Return (mechanism code, iterations) of each credential of a user."""
        return [
            (_CODES[mechanism], credentials[name].iterations)
            for mechanism, credentials in self._by_mechanism.items()
            if name in credentials
        ]

    async def alter(
        self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
    ) -> dict[str, KafkaError | None]:
        """Apply the valid changes together. Returns the error of each user, None for success.

        Raises KafkaError if the changes cannot be stored.
        """
        return await self._changes.make(partial(self._alter, deletions, upsertions))

    async def _alter(
        self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
    ) -> dict[str, KafkaError | None]:
        changes: dict[str, Deletion | Upsertion] = {}
        errors: dict[str, KafkaError | None] = {}
        added = 0
        requested: list[Deletion | Upsertion] = [*deletions, *upsertions]
        for change in requested:
            if errors.get(change.name) is not None:
                continue
            if changes.pop(change.name, None) is not None:
                errors[change.name] = KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
                continue
            try:
                added += self._check(change, added)
            except KafkaError as error:
                errors[change.name] = error
            else:
                changes[change.name], errors[change.name] = change, None
        if changes:
            await self._apply(changes)
        return errors

    def _check(self, change: Deletion | Upsertion, added: int) -> int:
        """Return the number of credentials that the change adds. Raises KafkaError."""
        if not change.name:
            raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if change.mechanism not in MECHANISMS:
            raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        exists = self.find(MECHANISMS[change.mechanism], change.name) is not None
        if isinstance(change, Deletion):
            if not exists:
                raise KafkaError(
                    ErrorCode.RESOURCE_NOT_FOUND,
                    "Attempt to delete a user credential that does not exist",
                )
            return 0
        if change.iterations < MIN_ITERATIONS:
            raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        if change.iterations > MAX_ITERATIONS:
            raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        for what, size, most in (
            ("Username", len(change.name.encode()), MAX_NAME_BYTES),
            ("Salt", len(change.salt), MAX_SALT_BYTES),
            ("Salted password", len(change.salted_password), MAX_SALTED_PASSWORD_BYTES),
        ):
            if not 0 < size <= most:
                raise KafkaError(
                    ErrorCode.UNACCEPTABLE_CREDENTIAL, f"{what} must have 1 to {most} bytes"
                )
        if not exists and len(self) + added >= MAX_CREDENTIALS:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{MAX_CREDENTIALS} credentials exist, the maximum; delete some",
            )
        return 0 if exists else 1

    async def _apply(self, changes: Mapping[str, Deletion | Upsertion]) -> None:
        changed = {
            (MECHANISMS[change.mechanism], name): (
                ScramCredential.of_salted_password(
                    MECHANISMS[change.mechanism],
                    change.salted_password,
                    change.salt,
                    change.iterations,
                )
                if isinstance(change, Upsertion)
                else None
            )
            for name, change in changes.items()
        }
        rows: dict[bytes, bytes | None] = {
            bytes([_CODES[mechanism]]) + name.encode(): (
                None
                if credential is None
                else msgspec.msgpack.encode(
                    _Row(
                        credential.salt,
                        credential.stored_key,
                        credential.server_key,
                        credential.iterations,
                    )
                )
            )
            for (mechanism, name), credential in changed.items()
        }
        if not self._is_decoy_key_stored:
            rows[_DECOY_ROW] = self._decoy_key
        try:
            await self._table.put(rows)
        except StorageError as failure:
            raise storage_error(failure) from failure
        self._is_decoy_key_stored = True
        for (mechanism, name), credential in changed.items():
            self._put(mechanism, name, credential)

    def _put(self, mechanism: str, name: str, credential: ScramCredential | None) -> None:
        credentials, decoys = self._by_mechanism[mechanism], self._decoys[mechanism]
        before = credentials.pop(name, None)
        if before is not None:
            decoys.count(before, -1)
        if credential is not None:
            credentials[name] = credential
            decoys.count(credential, 1)


class _DecoyShapes:
    """The shapes of a mechanism's credentials, and the choice of one for a decoy."""

    __slots__ = ("_counts", "_shapes", "_totals")

    def __init__(self) -> None:
        self._counts: Counter[_Shape] = Counter()
        #: The shapes in order, and how many credentials have them or an earlier one. Empty after
        #: a change.
        self._shapes: list[_Shape] = []
        self._totals: list[int] = []

    def count(self, credential: ScramCredential, change: int) -> None:
        is_readable = _READABLE_SALT.fullmatch(credential.salt) is not None
        shape = credential.iterations, 0 if is_readable else len(credential.salt)
        self._counts[shape] += change
        if not self._counts[shape]:
            del self._counts[shape]
        self._shapes, self._totals = [], []

    def pick(self, entropy: bytes) -> _Shape:
        """Return a shape. The same 8 bytes give the same one, unless the proportions change."""
        if not self._counts:
            return DEFAULT_ITERATIONS, 0
        if not self._shapes:
            self._shapes = sorted(self._counts)
            self._totals = list(accumulate(self._counts[shape] for shape in self._shapes))
        place = int.from_bytes(entropy, "big") * self._totals[-1] >> 64
        return self._shapes[bisect_right(self._totals, place)]
