"""The parts that handlers use, assembled at start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.cluster.cluster_start import ClusterMembership
from gateway.cluster.forwarding import LOCAL_CONTROLLER, ControllerAccess
from gateway.cluster.shard_leadership import NotLeader, ShardLeadership
from gateway.cluster.view import ClusterView
from gateway.coarse_clock import CoarseClock
from gateway.configs.broker_configs import BrokerConfigs
from gateway.configs.group_configs import GroupConfigs
from gateway.coroutines import Clock, InterruptibleWaits, shield_with_timeout
from gateway.fetch.conversion import Converter
from gateway.fetch.fetch_sessions import FetchSessions
from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.offsets.committed_offsets import CommittedOffsets
from gateway.groups.offsets.remote_offsets import RemoteOffsets
from gateway.net.flow_control import OutgoingBytes
from gateway.partitions.producer_ids import ProducerIdBlocks, ProducerIds
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.security.audit import NO_AUDIT_LOG, AuditLog
from gateway.security.authorizer import Authorizer
from gateway.security.client_quotas import ClientQuotas
from gateway.security.quota_usage import QuotaUsage
from gateway.security.scram_credentials import ScramCredentials
from gateway.security.tenants import Tenants
from gateway.settings.model import Settings
from gateway.topics.registry import Topics
from gateway.topics.remote_appends import RemoteAppends
from gateway.topics.reply_cache import ReplyCache
from gateway.traffic.traffic_log import NO_TRAFFIC_LOG, RecorderFactory
from storage.log import StorageError, Store
from storage.shards import name_shard


@dataclass(frozen=True, slots=True)
class Broker:
    """The parts that handlers use.

    `now()` is the time in ms since 1970. `clock` is for waits, `deadlines` for timeouts that rarely
    expire. `run(function, *args)` calls a function on another thread; `run_for(owner, function,
    *args)` does so in turn with other clients. `membership` is this gateway's part in the
    cluster. `interruptible_waits` are the running long polls. `outgoing` limits the size of
    replies. `traffic` is the traffic log, `audit` the audit log. `authorizer` is None if everything
    is allowed. `quota_usage` counts what clients use of `client_quotas`. `tenants` binds principals
    to namespaces; None if none is bound. `controller` executes what changes the state of the whole
    cluster. `remote_offsets` asks other coordinators, and `remote_appends` passes records on to
    other leaders; both are None if there can be no other gateway.
    """

    configs: BrokerConfigs
    group_configs: GroupConfigs
    store: Store
    membership: ClusterMembership
    topics: Topics
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    producer_id_blocks: ProducerIdBlocks
    offsets: CommittedOffsets
    groups: GroupCoordinator
    converter: Converter
    clock: Clock
    deadlines: CoarseClock
    now: Callable[[], int]
    run: Callable[..., Awaitable[Any]]
    run_for: Callable[..., Awaitable[Any]]
    scram_credentials: ScramCredentials
    client_quotas: ClientQuotas
    quota_usage: QuotaUsage
    interruptible_waits: InterruptibleWaits = field(default_factory=InterruptibleWaits)
    metadata_replies: ReplyCache = field(default_factory=ReplyCache)
    outgoing: OutgoingBytes = field(default_factory=OutgoingBytes)
    traffic: RecorderFactory = NO_TRAFFIC_LOG
    authorizer: Authorizer | None = None
    audit: AuditLog = NO_AUDIT_LOG
    tenants: Tenants | None = None
    controller: ControllerAccess = LOCAL_CONTROLLER
    remote_offsets: RemoteOffsets | None = None
    remote_appends: RemoteAppends | None = None

    async def confirm_coordinator(self, group_id: str, deadline: float | None = None) -> int:
        """Confirm that this gateway coordinates a group, before reading `groups` or `offsets`.

        Waits while the group's shard opens. Returns the leader epoch; a caller that waits for
        anything else before it has read all it needs calls `check_coordinator` afterwards.

        Raises KafkaError(NOT_COORDINATOR) if another gateway is the coordinator, or if this is not
        confirmed until `deadline` (`confirm_deadline`, for requests with several groups).
        """
        shard = name_shard(group_id, self.store.shard_count)
        try:
            if not self.leadership.require(shard):
                deadline = deadline or self.confirm_deadline()
                await self.leadership.wait(shard, deadline - self.clock.seconds())
        except NotLeader as failure:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, str(failure)) from None
        if self.store.may_be_lost:
            await self._confirm_store(deadline or self.confirm_deadline())
        return self.leadership.epoch_of(shard)

    def check_coordinator(self, group_id: str, epoch: int) -> None:
        """Raise KafkaError(NOT_COORDINATOR) unless the shard has been open since `epoch`."""
        shard = name_shard(group_id, self.store.shard_count)
        if not self.leadership.is_open(shard) or self.leadership.epoch_of(shard) != epoch:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    async def confirm_all_groups(self) -> None:
        """As `confirm_coordinator`, for all groups that this gateway coordinates."""
        deadline = self.confirm_deadline()
        try:
            await self.leadership.wait_for_all(deadline)
        except NotLeader as failure:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, str(failure)) from None
        if self.store.may_be_lost:
            await self._confirm_store(deadline)

    def confirm_deadline(self) -> float:
        """Until when a request that arrives now waits for its coordinator, in seconds of `clock`.

        It is `offsets_commit_timeout_ms` from now.
        """
        return self.clock.seconds() + self.settings.offsets_commit_timeout_ms / 1000

    async def _confirm_store(self, deadline: float) -> None:
        """Confirm that the store is still owned.

        Groups and offsets are answered from memory, and another gateway may have taken over while
        this process was suspended.
        """
        seconds = deadline - self.clock.seconds()
        try:
            await shield_with_timeout(self.clock, seconds, self.store.confirm_held())
        except (StorageError, TimeoutError) as failure:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, str(failure)) from failure

    @property
    def cluster(self) -> ClusterView:
        """The cluster as clients see it."""
        return self.membership.view

    @property
    def leadership(self) -> ShardLeadership:
        """The shards led here."""
        return self.membership.leadership

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self.configs.settings
