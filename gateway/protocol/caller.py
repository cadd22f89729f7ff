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
from gateway.topics.tenant_scope import MARK, plain_id, printable_id, printable_topic
from gateway.traffic.recorder import NULL_RECORDER, Recorder

#: Error of a refusal, by resource type.
_REFUSALS = {
    AclResource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

#: Resources whose names belong to a tenant or to none.
_WITH_IDS = frozenset({AclResource.GROUP, AclResource.TRANSACTIONAL_ID})

#: What a principal that is bound to a namespace may do on the cluster. Super users may do more.
_CLUSTER_OPERATIONS_OF_TENANTS = frozenset({AclOperation.IDEMPOTENT_WRITE})

#: Never granted on the cluster to a bound principal, because they would include all topics. It
#: needs them on each topic.
_ASKED_FOR_EACH_TOPIC = frozenset({AclOperation.CREATE, AclOperation.DELETE})

_ALL_OPERATIONS = {
    resource: set(map(int, operations)) for resource, operations in SUPPORTED_OPERATIONS.items()
}


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The context of one request.

    `peer` is "host:port" and `listener` the listener's name. `client_id` is None if the client sent
    null. `long_poll` belongs to the connection, `traffic` records the request in the traffic log.
    `may` and the methods beside it ask the authorizer; `gateway.protocol.policy` lists what each
    API asks. `may...` only tell; `require...` raise, and record the refusal in the audit log. What
    is outside of the namespace that the client is bound to is refused before, by `is_visible`.
    `usage` counts towards the client's quotas, and is None if it has none; `stopwatch` is None if
    no quota limits the time of any client. `asked_node` is the gateway that forwarded the request,
    None if the client is connected to this one.
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
    asked_node: int | None = None

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def node_id(self) -> int:
        """The gateway that the client is connected to."""
        return self.broker.cluster.node_id if self.asked_node is None else self.asked_node

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

    @property
    def is_unrestricted(self) -> bool:
        """Whether nothing is hidden from or refused to the caller, so that no check is needed."""
        return self.broker.authorizer is None and self.session.scope is None

    def is_visible(self, resource: AclResource, name: str) -> bool:
        """Whether a topic, by its canonical name, or a group or transactional id exists for the
        caller.

        Groups of a tenant are visible to its own clients only.
        """
        scope = self.session.scope
        if resource in _WITH_IDS:
            return not name.startswith(MARK) if scope is None else scope.owns_id(name)
        return scope is None or resource is not AclResource.TOPIC or scope.owns_topic(name)

    def may(self, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Whether the caller may do `operation`. Use `may_use_topic` for topics."""
        if not self.is_visible(resource, name):
            return False
        if resource is AclResource.CLUSTER and not self._may_on_cluster_as_tenant(operation):
            return False
        authorizer = self.broker.authorizer
        return authorizer is None or authorizer.authorize(
            self.principal,
            self.session.host,
            operation,
            resource,
            printable_id(name) if resource in _WITH_IDS else name,
        )

    def _may_on_cluster_as_tenant(self, operation: AclOperation) -> bool:
        if self.session.scope is None or operation in _CLUSTER_OPERATIONS_OF_TENANTS:
            return True
        return (
            operation not in _ASKED_FOR_EACH_TOPIC
            and str(self.principal) in self.broker.settings.super_users
        )

    def may_use_topic(self, operation: AclOperation, topic: str | bytes) -> bool:
        """Whether the caller may do `operation` on a topic, given by any of its names or its id.

        ACLs apply to the canonical name. An id without a topic is allowed: the answer is that it
        does not exist.
        """
        authorizer, session = self.broker.authorizer, self.session
        if authorizer is None and session.scope is None:
            return True
        if isinstance(topic, bytes):
            topics = self.broker.topics
            found = topics.find_internal(topic) or topics.get(topic)
            return found is None or self.may(operation, AclResource.TOPIC, found.name)
        decisions = session.topic_decisions
        version = 0 if authorizer is None else authorizer.version
        decision = decisions.get(operation, topic, version)
        if decision is None:
            decision = self.may(operation, AclResource.TOPIC, self._canonical(topic))
            decisions.put(operation, topic, decision)
        return decision

    def may_auto_create(self, topic: str) -> bool:
        """Whether the caller's Metadata request may create this missing topic."""
        authorizer, name = self.broker.authorizer, self._canonical(topic)
        return self.is_visible(AclResource.TOPIC, name) and (
            authorizer is None
            or authorizer.may_auto_create(self.principal, self.session.host, name)
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
        """Raises KafkaError with the resource type's authorization error.

        A group id that clients may not use is INVALID_GROUP_ID.
        """
        if (
            self.broker.authorizer is None
            and self.session.scope is None
            and not name.startswith(MARK)
        ):
            # The common case, in each request of a group.
            return
        if resource is AclResource.GROUP and self._is_reserved_id(name):
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        if not self.may(operation, resource, name):
            self._record_refusal(operation, resource, name)
            raise KafkaError(_REFUSALS[resource])

    def _is_reserved_id(self, name: str) -> bool:
        return (name if self.session.scope is None else plain_id(name)).startswith(MARK)

    def require_topic(self, operation: AclOperation, topic: str | bytes) -> None:
        """Raises KafkaError(TOPIC_AUTHORIZATION_FAILED), or as `topic_refusal`."""
        if not self.may_use_topic(operation, topic):
            name = topic if isinstance(topic, str) else topic.hex()
            self._record_refusal(operation, AclResource.TOPIC, name)
            raise KafkaError(self.topic_refusal(topic))

    def topic_refusal(self, topic: str | bytes) -> ErrorCode:
        """The error for a topic that the caller may not use.

        An id is UNKNOWN_TOPIC_ID, as if there were no such topic, if its topic is not visible.
        """
        if isinstance(topic, bytes):
            found = self.broker.topics.find_listed(topic)
            if found is not None and not self.is_visible(AclResource.TOPIC, found.name):
                return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def require_cluster(self, operation: AclOperation) -> None:
        """Raises KafkaError(CLUSTER_AUTHORIZATION_FAILED)."""
        self.require(operation, AclResource.CLUSTER, CLUSTER_NAME)

    def _record_refusal(self, operation: AclOperation, resource: AclResource, name: str) -> None:
        self.broker.audit.refused(
            self.peer,
            self.listener,
            self.principal,
            ApiKey(self.api_key).name if self.api_key >= 0 else "",
            operation.name,
            f"{resource.name}:{(printable_id if resource in _WITH_IDS else printable_topic)(name)}",
        )
        if self.broker.authorizer is not None:
            self.broker.authorizer.note_refusal(self.principal)

    def operations_on(self, resource: AclResource, name: str) -> set[int]:
        """Codes of the operations that the caller may do, for `include_*_authorized_operations`."""
        if self.is_unrestricted:
            return _ALL_OPERATIONS[resource]
        return {
            int(operation)
            for operation in SUPPORTED_OPERATIONS[resource]
            if self.may(operation, resource, name)
        }
