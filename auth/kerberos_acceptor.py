"""The server's side of Kerberos security contexts, with the system's MIT library by python-gssapi.

The keys of the service are read from the keytab at each log-in, so that a changed file is used at
once. A log-in also reads and writes the replay cache, a file without syncs: `accept` takes 0.1 to
1 ms. The replay cache is needed: Java's clients do not request mutual authentication, so both of
their tokens could be recorded and sent again as a whole.

`KRB5_CONFIG` and `KRB5RCACHENAME` apply as to every program that uses the library.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from auth.mechanism import AuthenticationBusy, AuthenticationFailed

INSTALLATION = (
    "install the library: pip install 'kopgate[gssapi]' (on Debian first apt-get install gcc "
    "libkrb5-dev, and libgssapi-krb5-2 where it only runs)"
)

MAX_REASON_CHARACTERS = 300
"""Messages of the library contain names of the client's ticket."""

#: Kerberos errors after which the client shall retry: a ticket that is not valid yet, as in Kafka
#: (KerberosError), and a keytab that cannot be read. As minor codes of the library
#: (ERROR_TABLE_BASE_krb5 and RFC 4120, 7.5.9).
_RETRIABLE = {(code - 1765328384) & 0xFFFFFFFF for code in (33, 45)}

#: The replay cache or the keytab cannot be used. The library's own codes are larger.
_FILE_ERRORS = {
    errno.EPERM,
    errno.ENOENT,
    errno.EIO,
    errno.EACCES,
    errno.ENFILE,
    errno.EMFILE,
    errno.ENOSPC,
    errno.EROFS,
    errno.EDQUOT,
}


#: GSS_S_NO_CRED, for tokens of other mechanisms: there are credentials for Kerberos only.
_NO_CREDENTIALS = 7 << 16


class KerberosError(Exception):
    """Kerberos cannot be used. The message says what to do, and contains no secret."""


def _library() -> Any:
    """Return python-gssapi, an optional dependency. Raises KerberosError."""
    try:
        import gssapi
    except (ImportError, OSError) as error:
        raise KerberosError(f"GSSAPI: {error}; {INSTALLATION}") from None
    return gssapi


def default_realm() -> str:
    """Return the default realm of krb5.conf, empty if there is none. Raises KerberosError."""
    gssapi = _library()
    try:
        # There is no function for it, but a name without a realm is in that realm.
        name = gssapi.Name("x", gssapi.NameType.user).canonicalize(gssapi.MechType.kerberos)
    except gssapi.exceptions.GSSError:
        return ""
    return str(name).rpartition("@")[2]


class KerberosAcceptor:
    """Accepts security contexts for any host of a service, with the keys of a keytab.

    Raises KerberosError if the keytab has no key of the service, or cannot be read.
    """

    def __init__(self, service: str, keytab: Path) -> None:
        self._gssapi = gssapi = _library()
        try:
            # Without a host, a name stands for the service on each host, and for any realm.
            self._credentials = gssapi.Credentials(
                name=gssapi.Name(service, gssapi.NameType.hostbased_service),
                usage="accept",
                mechs=[gssapi.MechType.kerberos],
                store={"keytab": f"FILE:{keytab}"},
            )
        except gssapi.exceptions.GSSError as error:
            raise KerberosError(
                f"no key of service {service!r} in {keytab}: {_describe(error)}; "
                f"export it with kadmin: ktadd -k {keytab} {service}/HOST"
            ) from None

    def make_context(self) -> KerberosContext:
        return KerberosContext(self._gssapi, self._credentials)


class KerberosContext:
    """A security context (`auth.gssapi_mechanism.SecurityContext`)."""

    __slots__ = ("_context", "_credentials", "_gssapi", "is_established", "peer")

    def __init__(self, gssapi: Any, credentials: Any) -> None:
        self._gssapi = gssapi
        self._credentials = credentials
        self._context: Any = None
        self.is_established = False
        self.peer = ""

    def accept(self, token: bytes, /) -> bytes | None:
        """Return the token for the client. It may block on files."""
        raw = self._gssapi.raw
        try:
            result = raw.accept_sec_context(token, self._credentials, self._context)
            self._context = result.context
            if not result.more_steps:
                if raw.RequirementFlag.anonymity in result.flags:
                    raise AuthenticationFailed("anonymous tickets are not accepted")
                self.peer = raw.display_name(result.initiator_name, False).name.decode("utf-8")
                self.is_established = True
        except self._gssapi.exceptions.GSSError as error:
            raise _failure(error) from None
        except UnicodeDecodeError:
            raise AuthenticationFailed("the Kerberos name is not UTF-8") from None
        answer: bytes | None = result.token
        return answer

    def wrap(self, message: bytes, /) -> bytes:
        try:
            wrapped: bytes = self._gssapi.raw.wrap(self._context, message, False).message
        except self._gssapi.exceptions.GSSError as error:
            raise _failure(error) from None
        return wrapped

    def unwrap(self, token: bytes, /) -> bytes:
        try:
            message: bytes = self._gssapi.raw.unwrap(self._context, token).message
        except self._gssapi.exceptions.GSSError as error:
            raise _failure(error) from None
        return message


def _failure(error: Any) -> AuthenticationFailed | AuthenticationBusy:
    if error.maj_code == _NO_CREDENTIALS and not error.min_code:
        return AuthenticationFailed("the token is not a Kerberos token")
    reason = f"Kerberos: {_describe(error)}"
    if error.min_code in _RETRIABLE or error.min_code in _FILE_ERRORS:
        return AuthenticationBusy(reason)
    return AuthenticationFailed(reason)


def _describe(error: Any) -> str:
    """Return the text of the minor status, or else of the major status."""
    texts: list[str] = []
    for code, is_major in ((error.min_code, False), (error.maj_code, True)):
        try:
            texts += error.get_all_statuses(code, is_major) if code else []
        except (UnicodeError, ValueError):
            continue
    text = next((text for text in texts if text not in ("Success", "Unknown error")), "failed")
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown[:MAX_REASON_CHARACTERS]
