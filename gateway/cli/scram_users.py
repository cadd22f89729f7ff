"""SCRAM credentials of any Kafka server from 2.7 on (KIP-554).

Only the salted password is sent. A mechanism is known by its name in SASL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import click
from kafka import errors
from kafka.protocol.admin import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)

from auth.scram import new_salt, salt_password
from gateway.cli.kafka_client import AdminClient
from gateway.cli.output import error_reason

#: Kafka's codes (ScramMechanism).
CODES = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}

_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Name = DescribeUserScramCredentialsRequest.UserName


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user's credential for one mechanism."""

    name: str
    mechanism: str
    iterations: int


def scram_users(client: AdminClient, name: str | None = None) -> list[ScramUser]:
    """Return the credentials of all users or of one, sorted. Raises ClickException."""
    users = None if name is None else [_Name(name=name)]
    response = client.send(DescribeUserScramCredentialsRequest(users=users))
    _raise_if_error(response.error_code, response.error_message)
    mechanisms = {code: mechanism for mechanism, code in CODES.items()}
    found = []
    for row in response.results:
        if row.error_code == errors.ResourceNotFoundError.errno:
            continue
        _raise_if_error(row.error_code, row.error_message)
        found += [
            ScramUser(row.user, mechanisms.get(one.mechanism, str(one.mechanism)), one.iterations)
            for one in row.credential_infos
        ]
    return sorted(found, key=lambda one: (one.name, one.mechanism))


def add_scram_user(
    client: AdminClient, name: str, mechanism: str, iterations: int, password: str
) -> None:
    """Add or replace a credential. Raises ClickException."""
    salt = new_salt()
    upsertion = _Upsertion(
        name=name,
        mechanism=CODES[mechanism],
        iterations=iterations,
        salt=salt,
        salted_password=salt_password(mechanism, password, salt, iterations),
    )
    _alter(client, AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]))


def remove_scram_user(client: AdminClient, name: str, mechanisms: Iterable[str]) -> None:
    """Remove a user's credentials for these mechanisms. Raises ClickException."""
    # One request for each: a user may occur only once in a request.
    for mechanism in mechanisms:
        deletion = _Deletion(name=name, mechanism=CODES[mechanism])
        _alter(client, AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))


def _alter(client: AdminClient, request: Any) -> None:
    response = client.send_to_controller(
        request, lambda response: [row.error_code for row in response.results]
    )
    for row in response.results:
        _raise_if_error(row.error_code, row.error_message)


def _raise_if_error(code: int, message: str | None) -> None:
    if code:
        raise click.ClickException(error_reason(code, message))
