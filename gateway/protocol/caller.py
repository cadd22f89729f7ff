"""The context that a handler receives with each request: client, connection and broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from auth.mechanism import Principal
from gateway.broker import Broker
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.long_poll import LongPoll
from gateway.protocol.request_time import RequestStopwatch
from gateway.protocol.session import LoginSession
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclOperation,
    AclResource,
)
from gateway.security.quota_usage import RequestUsage
from gateway.traffic.recorder import NULL_RECORDER, Recorder

#: Error of a refusal, by resource type.
_REFUSALS = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

_ALL_OPERATIONS = {
    resource: set(map(int, operations)) for resource, operations in SUPPORTED_OPERATIONS.items()
}


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The context of one request.

    `peer` is "host:port" and `listener` the listener's name. `client_id` is None if the client sent
    null. `long_poll` belongs to the connection, `traffic` records the request in the traffic log.
    `may` and the methods beside it ask the authorizer; `gateway.protocol.policy` lists what each
    API asks. `may...` only tell; `require...` raise, and record the refusal in the audit log.
    `usage` counts towards the client's quotas, and is None if it has none; `stopwatch` is None if
    no quota limits the time of any client.
    """

    broker: Broker
    session: LoginSession
    peer: str
    listener: str
    api_version: int
    client_id: str | None
    long_poll: LongPoll
    traffic: Recorder = NULL_RECORDER
    api_key: int = -1
    usage: RequestUsage | None = None
    stopwatch: RequestStopwatch | None = None

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def owner(self) -> tuple[Principal, str]:
        """The client that work on other threads is queued for (`gateway.workers`).

        It is identified by its principal and address.
        """
        return self.session.principal, self.session.host

    def run(self, function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
        """Run a function on another thread, in turn with the calls of other clients."""
        if self.stopwatch is not None:
            return self.broker.run_for(self.owner, self.stopwatch.run, function, *arguments)
        return self.broker.run_for(self.owner, function, *arguments)

    def conversion_cpu_used(
        self, api_key: int, version: int, topic: str | bytes, microseconds: int
    ) -> None:
        """Record the CPU time of a conversion for this request on another thread."""
        self.traffic.conversion_cpu_used(api_key, version, topic, microseconds)
        if self.stopwatch is not None:
            self.stopwatch.add(microseconds * 1000)

    def may(self, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Whether the caller may do `operation`. Use `may_use_topic` for topics."""
        authorizer = self.broker.authorizer
        return authorizer is None or authorizer.authorize(
            self.principal, self.session.host, operation, resource, name
        )

    def may_use_topic(self, operation: AclOperation, topic: str | bytes) -> bool:
        """Whether the caller may do `operation` on a topic, given by any of its names or its id.

        ACLs apply to the canonical name. An id without a topic is allowed: the answer is that it
        does not exist.
        """
        authorizer = self.broker.authorizer
        if authorizer is None:
            return True
        if isinstance(topic, bytes):
            topics = self.broker.topics
            found = topics.find_internal(topic) or topics.get(topic)
            return found is None or self.may(operation, AclResource.TOPIC, found.name)
        decisions = self.session.topic_decisions
        decision = decisions.get(operation, topic, authorizer.version)
        if decision is None:
            decision = self.may(operation, AclResource.TOPIC, self._canonical(topic))
            decisions.put(operation, topic, decision)
        return decision

    def may_auto_create(self, topic: str) -> bool:
        """Whether the caller's Metadata request may create this missing topic."""
        authorizer = self.broker.authorizer
        return authorizer is None or authorizer.may_auto_create(
            self.principal, self.session.host, self._canonical(topic)
        )

    def _canonical(self, topic: str) -> str:
        try:
            return self.broker.topics.names.canonical(topic)
        except KafkaError:
            return topic

    def may_on_cluster(self, operation: AclOperation) -> bool:
        """Whether the caller may do `operation` on the cluster."""
        return self.may(operation, AclResource.CLUSTER, CLUSTER_NAME)

    def may_on_any(self, operation: AclOperation, resource: AclResource) -> bool:
        """Whether the caller may do `operation` on at least one resource of the type."""
        authorizer = self.broker.authorizer
        return authorizer is None or authorizer.authorize_any(
            self.principal, self.session.host, operation, resource
        )

    def require(self, operation: AclOperation, resource: AclResource, name: str) -> None:
        """Raises KafkaError with the resource type's authorization error."""
        if not self.may(operation, resource, name):
            raise self._refusal(operation, resource, name)

    def require_topic(self, operation: AclOperation, topic: str | bytes) -> None:
        """Raises KafkaError(TOPIC_AUTHORIZATION_FAILED)."""
        if not self.may_use_topic(operation, topic):
            name = topic if isinstance(topic, str) else topic.hex()
            raise self._refusal(operation, AclResource.TOPIC, name)

    def require_cluster(self, operation: AclOperation) -> None:
        """Raises KafkaError(CLUSTER_AUTHORIZATION_FAILED)."""
        self.require(operation, AclResource.CLUSTER, CLUSTER_NAME)

    def _refusal(self, operation: AclOperation, resource: AclResource, name: str) -> KafkaError:
        self.broker.audit.refused(
            self.peer,
            self.listener,
            self.principal,
            ApiKey(self.api_key).name if self.api_key >= 0 else "",
            operation.name,
            f"{resource.name}:{name}",
        )
        if self.broker.authorizer is not None:
            self.broker.authorizer.note_refusal(self.principal)
        return KafkaError(_REFUSALS[resource])

    def operations_on(self, resource: AclResource, name: str) -> set[int]:
        """Codes of the operations that the caller may do, for `include_*_authorized_operations`."""
        if self.broker.authorizer is None:
            return _ALL_OPERATIONS[resource]
        return {
            int(operation)
            for operation in SUPPORTED_OPERATIONS[resource]
            if self.may(operation, resource, name)
        }
