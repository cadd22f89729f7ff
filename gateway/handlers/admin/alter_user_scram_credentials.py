"""AlterUserScramCredentials and DescribeUserScramCredentials (KIP-554).

AlterUserScramCredentials
v0: add, replace and delete SCRAM credentials of users.

DescribeUserScramCredentials
v0: mechanism and iterations of each credential, never its keys.

Errors are those of Kafka's ScramControlManager and ScramImage. Credentials can be changed only if a
SCRAM mechanism is enabled, so that they do not fill the store of a gateway that cannot use them.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

from kafka.protocol.admin.users import (
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsResponse,
)

from gateway.coroutines import TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import check_changes, encode_if_large, reply_with_rows
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation
from gateway.security.scram_credentials import Deletion, Upsertion

_Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


@serves(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0)
async def describe_user_scram_credentials(request: Any, caller: Caller) -> Any:
    """Describe the credentials of the named users, or of all users."""
    try:
        caller.require_cluster(AclOperation.DESCRIBE)
    except KafkaError as refusal:
        return DescribeUserScramCredentialsResponse(
            error_code=refusal.code, error_message=refusal.message, results=[]
        )
    slices = TimeSlices(caller.broker.clock)
    credentials = caller.broker.scram_credentials
    counts = Counter(user.name for user in request.users or ()) or dict.fromkeys(
        credentials.users(), 1
    )
    rows = []
    for name, count in counts.items():
        code, message, infos = ErrorCode.NONE, None, credentials.describe(name)
        if count > 1:
            code, infos = ErrorCode.DUPLICATE_RESOURCE, []
            message = (
                "Cannot describe SCRAM credentials for the same user twice "
                f"in a single request: {name}"
            )
        elif not infos:
            code = ErrorCode.RESOURCE_NOT_FOUND
            message = f"Attempt to describe a user credential that does not exist: {name}"
        rows.append(
            _Described(
                user=name,
                error_code=code,
                error_message=message,
                credential_infos=[
                    _Described.CredentialInfo(mechanism=mechanism, iterations=iterations)
                    for mechanism, iterations in infos
                ],
            )
        )
        await slices.take()
    reply = DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.NONE, error_message=None, results=rows
    )
    return await encode_if_large(reply, slices, caller)


async def _refuse_alterations(request: Any, error: KafkaError, caller: Caller) -> Any:
    return await reply_with_rows(
        dict.fromkeys(one.name for one in chain(request.deletions, request.upsertions)),
        lambda name: _Altered(user=name, error_code=error.code, error_message=error.message),
        lambda rows: AlterUserScramCredentialsResponse(results=rows),
        caller,
    )


@serves(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, at_controller=_refuse_alterations)
async def alter_user_scram_credentials(request: Any, caller: Caller) -> Any:
    """Add, replace and delete credentials. Valid changes are stored together."""
    slices = TimeSlices(caller.broker.clock)
    if caller.broker.scram_credentials.is_enabled or not caller.may_on_cluster(AclOperation.ALTER):
        errors = await _alter(request, caller, slices)
    else:
        errors = await _disabled(request, slices)
    rows = []
    added = {one.name for one in request.upsertions}
    for name, error in errors.items():
        caller.broker.audit.changed(
            caller.peer,
            caller.listener,
            caller.principal,
            "scram-credential",
            "set" if name in added else "delete",
            f"User:{name}",
            ErrorCode.NONE if error is None else error.code,
        )
        rows.append(
            _Altered(
                user=name,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
            )
        )
        await slices.take()
    return await encode_if_large(AlterUserScramCredentialsResponse(results=rows), slices, caller)


async def _alter(request: Any, caller: Caller, slices: TimeSlices) -> dict[str, KafkaError | None]:
    """Return the error of each user. An error of the whole request is that of all users."""
    try:
        caller.require_cluster(AclOperation.ALTER)
        check_changes(len(request.deletions) + len(request.upsertions))
        return await caller.broker.scram_credentials.alter(
            [Deletion(one.name, one.mechanism) for one in request.deletions],
            [
                Upsertion(
                    one.name,
                    one.mechanism,
                    one.iterations,
                    bytes(one.salt),
                    bytes(one.salted_password),
                )
                for one in request.upsertions
            ],
        )
    except KafkaError as failure:
        return dict.fromkeys(await _count_by_user(request, slices), failure)


async def _disabled(request: Any, slices: TimeSlices) -> dict[str, KafkaError | None]:
    """Return the error of each user on a gateway without SCRAM mechanisms."""
    added = {one.name for one in request.upsertions}
    errors: dict[str, KafkaError | None] = {}
    for name, count in (await _count_by_user(request, slices)).items():
        if count > 1:
            errors[name] = KafkaError(
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
        elif name in added:
            errors[name] = KafkaError(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                "SCRAM is not enabled: add SCRAM-SHA-256 or SCRAM-SHA-512 to "
                "sasl_enabled_mechanisms",
            )
        else:
            errors[name] = KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        await slices.take()
    return errors


async def _count_by_user(request: Any, slices: TimeSlices) -> Counter[str]:
    """Count the changes of each user."""
    counts: Counter[str] = Counter()
    for one in chain(request.deletions, request.upsertions):
        counts[one.name] += 1
        await slices.take()
    return counts
