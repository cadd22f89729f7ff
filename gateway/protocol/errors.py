"""How a request fails: an error code in the reply, or a closed connection.

The codes are those of Kafka's `Errors` class; only those that the gateway returns are listed.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from enum import IntEnum
from traceback import walk_tb

from gateway.protocol.wire.api_keys import ApiKey
from storage.log import (
    EntryTooLarge,
    Fenced,
    LogClosed,
    NotAllowed,
    OffsetOutOfRange,
    ShardNotOpen,
    StorageError,
    StorageFailed,
    UnknownTopic,
)


class ErrorCode(IntEnum):
    """Kafka's error codes (int16 on the wire)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    INVALID_REGULAR_EXPRESSION = 128


#: Messages of Kafka's `Errors` for the codes that its clients print most often.
_MESSAGES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.UNKNOWN_TOPIC_ID: "This server does not host this topic ID.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "The requested offset is not within the range of offsets maintained by the server."
    ),
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "No partition reassignment is in progress.",
}


#: Characters of an error message. A message may quote names that the client sent, and a Kafka
#: string has at most 32,767 bytes.
MAX_MESSAGE_CHARS = 4_000


class KafkaError(Exception):
    """A failure that is reported to the client.

    The message is sent in the versions that have a field for it.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[: MAX_MESSAGE_CHARS - 3] + "..."
        super().__init__(message or code.name)
        self.code = code
        self.message = message or _MESSAGES.get(code) or code.name.replace("_", " ").capitalize()


#: First versions whose clients know KAFKA_STORAGE_ERROR (KIP-112). Older clients fail on codes that
#: they do not know.
_FIRST_VERSION_WITH_STORAGE_ERROR = {ApiKey.PRODUCE: 4, ApiKey.FETCH: 6, ApiKey.LIST_OFFSETS: 3}


def code_for_version(code: ErrorCode, api_key: ApiKey, version: int) -> ErrorCode:
    """`code`, or NOT_LEADER_OR_FOLLOWER, which clients retry, if the version lacks it."""
    if (
        code is ErrorCode.KAFKA_STORAGE_ERROR
        and version < _FIRST_VERSION_WITH_STORAGE_ERROR[api_key]
    ):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code


def storage_error(failure: StorageError) -> KafkaError:
    """Map a store's failure to the error that makes clients react correctly.

    Clients look for another leader, retry or give up, depending on the code.
    """
    if isinstance(failure, OffsetOutOfRange):
        return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, str(failure))
    if isinstance(failure, EntryTooLarge):
        return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, str(failure))
    if isinstance(failure, NotAllowed):
        return KafkaError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "the gateway is not authorized to use this topic; its log names the missing permission",
        )
    if isinstance(failure, UnknownTopic):
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if isinstance(failure, Fenced | LogClosed | ShardNotOpen):
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "this gateway does not lead the partition"
        )
    if isinstance(failure, StorageFailed):
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, "the store failed; the request can be retried"
        )
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, type(failure).__name__)


class Refused(Exception):
    """The request is malformed or cannot be answered: log one line and close the connection.

    The reason must not contain secrets.
    """


_MAY_WAIT = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def clear_frames(failure: BaseException) -> None:
    """Free the local variables of the functions that `failure` passed through.

    A traceback keeps them alive, for example decompressed records, until the garbage collector
    runs, which may be much later.

    Coroutine frames are skipped: a failure with several waiters passes through all of them, and one
    may have caught it and now wait for something else. Clearing its frame would end it (before
    Python 3.13, which raises).
    """
    link: BaseException | None = failure
    while link is not None:
        for frame, _ in walk_tb(link.__traceback__):
            if not frame.f_code.co_flags & _MAY_WAIT:
                # A running function still needs its variables.
                with suppress(RuntimeError):
                    frame.clear()
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
