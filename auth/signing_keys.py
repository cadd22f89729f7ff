"""Keys that verify the signatures of JWTs: Pulsar's key files, and JSON Web Key Sets (RFC 7517).

A key knows which algorithms it can verify. The algorithms of secrets and of public keys are
disjoint, so a token that names the wrong one finds no key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey, Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from auth.watched_files import WatchedFiles

#: Minimum bits of an RSA key (RFC 7518, section 3.3), and the largest that is accepted: the time of
#: a verification grows with it.
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 16384

#: Minimum bytes of a secret by algorithm (RFC 7518, section 3.2), as Pulsar requires.
MIN_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}

#: Largest file or answer with a key or a set of keys, and the largest number of keys in a set.
MAX_DOCUMENT_BYTES = 256 << 10
MAX_KEYS = 100

#: Minimum interval in seconds between checks for a changed file; checked at authentication.
RECHECK_SECONDS = 1.0

_RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_BY_CURVE = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


class KeysError(ValueError):
    """A key or a set of keys cannot be used. The message contains no part of a key."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A secret or a public key, the algorithms that it verifies, and its `kid`."""

    material: bytes | PublicKey = field(repr=False)
    algorithms: frozenset[str]
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys by `kid`. A key without one fits tokens with any."""

    keys: tuple[VerificationKey, ...] = ()

    def find(self, key_id: str | None, algorithm: str) -> list[VerificationKey]:
        """Return the keys that may verify a token; `key_id` is None if it names none."""
        return [
            key
            for key in self.keys
            if algorithm in key.algorithms and (key_id is None or key.key_id in (None, key_id))
        ]


class KeySource(Protocol):
    """Where the current keys come from."""

    def current(self) -> KeySet:
        """Return the keys. Raises AuthenticationBusy if there are none yet."""
        ...

    async def renew(self) -> None:
        """Fetch the keys again, because a token names an unknown one. May do nothing.

        Raises nothing: keys that cannot be fetched stay as they are.
        """
        ...


def read_secret_key(content: bytes) -> KeySet:
    """Return the HMAC secret of Pulsar's `tokenSecretKey`: the content itself, in any form.

    Pulsar does not decode a file written with `create-secret-key --base64` either. Raises
    KeysError.
    """
    algorithms = {name for name, least in MIN_SECRET_BYTES.items() if len(content) >= least}
    if not algorithms:
        raise KeysError(
            f"the secret key has {len(content)} bytes, HS256 requires {MIN_SECRET_BYTES['HS256']}; "
            "create one with `pulsar tokens create-secret-key`"
        )
    try:
        jwt.get_algorithm_by_name("HS256").prepare_key(content)
    except jwt.InvalidKeyError:
        raise KeysError("the secret key is a public key or certificate") from None
    return KeySet((VerificationKey(content, frozenset(algorithms)),))


def read_public_key(content: bytes) -> KeySet:
    """Return the public key of Pulsar's `tokenPublicKey`, in DER; PEM is accepted, too.

    Raises KeysError.
    """
    load = load_pem_public_key if content.lstrip().startswith(b"-----") else load_der_public_key
    try:
        key = load(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeysError("the public key is not a SubjectPublicKeyInfo in DER or PEM") from None
    return KeySet((_checked(key),))


def read_key_set(content: bytes) -> KeySet:
    """Return the usable keys of a JSON Web Key Set.

    Keys of other types, for other uses and of insufficient length are left out, as are secrets,
    which have no place in a public document. Raises KeysError if no key is left.
    """
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise KeysError("the key set is not a JSON object") from None
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise KeysError("the key set has no list named `keys`")
    if len(listed) > MAX_KEYS:
        raise KeysError(f"the key set has {len(listed)} keys, more than {MAX_KEYS}")
    keys = tuple(key for key in map(_read_jwk, listed) if key is not None)
    if not keys:
        raise KeysError(f"none of the {len(listed)} keys of the key set can verify a signature")
    return KeySet(keys)


def _read_jwk(entry: Any) -> VerificationKey | None:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("kty"), str):
        return None
    operations = entry.get("key_ops")
    if (
        entry["kty"] == "oct"
        or entry.get("use", "sig") != "sig"
        or (isinstance(operations, list) and "verify" not in operations)
    ):
        return None
    key_id, algorithm = entry.get("kid"), entry.get("alg")
    try:
        # Without `alg`, which need not be one of this library.
        material = jwt.PyJWK({name: entry[name] for name in entry if name != "alg"}).key
        if isinstance(
            material,
            RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey | Ed448PrivateKey,
        ):
            material = material.public_key()
        key = _checked(material)
    except (jwt.PyJWTError, KeysError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return None
    algorithms = key.algorithms if algorithm is None else key.algorithms & {str(algorithm)}
    if not algorithms:
        return None
    return VerificationKey(
        key.material, algorithms, key_id if isinstance(key_id, str) and key_id else None
    )


def _checked(material: object) -> VerificationKey:
    """Return the key with its algorithms. Raises KeysError for one that cannot be used."""
    match material:
        case RSAPublicKey():
            if not MIN_RSA_BITS <= material.key_size <= MAX_RSA_BITS:
                raise KeysError(
                    f"the RSA key has {material.key_size} bits, not {MIN_RSA_BITS} to "
                    f"{MAX_RSA_BITS}"
                )
            return VerificationKey(material, _RSA_ALGORITHMS)
        case EllipticCurvePublicKey() if material.curve.name in _BY_CURVE:
            return VerificationKey(material, frozenset({_BY_CURVE[material.curve.name]}))
        case Ed25519PublicKey() | Ed448PublicKey():
            return VerificationKey(material, frozenset({"EdDSA"}))
    raise KeysError("the public key is neither RSA nor EdDSA nor on the curve P-256, 384 or 521")


class FixedKeys:
    """Keys that do not change."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys

    def current(self) -> KeySet:
        return self._keys

    async def renew(self) -> None:
        return


class KeyFile:
    """A file with a key or a key set, reloaded when it changes.

    `clock` returns seconds. `on_problem` is called with a message if a changed file cannot be used;
    the previous keys then stay valid. The constructor raises KeysError.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[bytes], KeySet],
        clock: Callable[[], float],
        on_problem: Callable[[str], None],
    ) -> None:
        self._path = path
        self._read = read
        self._on_problem = on_problem
        self._watched = WatchedFiles([path], clock, RECHECK_SECONDS)
        self._keys = self._load()

    def current(self) -> KeySet:
        if self._watched.changed():
            try:
                self._keys = self._load()
            except KeysError as error:
                self._on_problem(f"{error}; keeping the previous keys")
        return self._keys

    async def renew(self) -> None:
        return

    def _load(self) -> KeySet:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_DOCUMENT_BYTES + 1)
        except OSError as error:
            raise KeysError(f"{self._path}: {error.strerror}") from None
        if len(content) > MAX_DOCUMENT_BYTES:
            raise KeysError(f"{self._path}: larger than {MAX_DOCUMENT_BYTES} bytes")
        try:
            return self._read(content)
        except KeysError as error:
            raise KeysError(f"{self._path}: {error}") from None
