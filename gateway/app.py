"""Builds the broker from the settings and an open store."""

from __future__ import annotations

import base64
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import randbelow
from typing import Any, Protocol, TypeVar, cast

from auth.certificate_principals import PrincipalRules
from auth.scram import HASHES
from auth.tls import OLD_VERSIONS, TlsContextFactory, TlsError, TlsFiles
from gateway import logs, version
from gateway.broker import Broker
from gateway.cluster.calls import Calls
from gateway.cluster.cluster_start import ClusterMembership, NodeIdentity, open_cluster
from gateway.cluster.forwarding import ControllerAccess
from gateway.cluster.session_timing import SessionTiming
from gateway.cluster.shard_leadership import ShardLeadership, ShardState
from gateway.coarse_clock import CoarseClock
from gateway.configs.broker_configs import BrokerConfigs
from gateway.configs.group_configs import GroupConfigs
from gateway.coroutines import Clock, TimeSlices
from gateway.fetch.conversion import Converter
from gateway.fetch.fetch_sessions import FetchSessions
from gateway.groups.consumer.topology import TopicView
from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.offsets.committed_offsets import CommittedOffsets
from gateway.groups.offsets.group_commits import GroupCommit, commit_group
from gateway.groups.offsets.remote_offsets import RemoteOffsets, serve_offsets
from gateway.net.flow_control import OutgoingBytes
from gateway.partitions.producer_ids import ProducerIdBlocks, ProducerIds
from gateway.protocol.errors import KafkaError
from gateway.protocol.forwarded import serve_calls
from gateway.security.audit import NO_AUDIT_LOG, AuditFiles, AuditLog
from gateway.security.authorizer import AclAuthorizer, Authorizer
from gateway.security.client_quotas import ClientQuotas
from gateway.security.pulsar_authorizer import PulsarAuthorizer
from gateway.security.quota_usage import QuotaUsage
from gateway.security.scram_credentials import ScramCredentials
from gateway.security.tenants import make_tenants
from gateway.settings.listener_settings import PerListenerSettings
from gateway.settings.model import Settings
from gateway.topics.append_server import AppendServer
from gateway.topics.partition_reopener import PartitionReopener
from gateway.topics.registry import Topics
from gateway.topics.remote_appends import RemoteAppends
from gateway.topics.tenant_scope import plain_id, printable_topic
from gateway.topics.topic_names import CONSUMER_OFFSETS
from gateway.traffic.dropped_lines import DroppedLines
from gateway.traffic.file_appender import Rotation
from gateway.traffic.line_writer import LineWriter
from gateway.traffic.log_files import RetentionLimits, TrafficFolder
from gateway.traffic.traffic_forwarding import TrafficForwarding, serve_traffic_rows
from gateway.traffic.traffic_log import (
    NO_TRAFFIC_LOG,
    LineSink,
    RecorderFactory,
    TrafficLog,
    read_salt,
)
from gateway.traffic.traffic_topic import TopicSink
from records import kernel
from storage.bridge import now_ms
from storage.cluster import SharedStore
from storage.log import Store

_log = logs.get_logger(__name__)

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class IdSource:
    """Makes new ids."""

    cluster: Callable[[], str]
    member: Callable[[], str]
    fetch_session: Callable[[], int]


def _random_cluster_id() -> str:
    """22 characters of base64, as Kafka's Uuid."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


RANDOM_IDS = IdSource(
    _random_cluster_id, lambda: str(uuid.uuid4()), lambda: randbelow(_INT32_MAX) + 1
)


async def open_broker(
    settings: Settings,
    store: Store,
    advertised: dict[str, tuple[str, int]],
    clock: Clock,
    run: Callable[..., Awaitable[Any]],
    run_for: Callable[..., Awaitable[Any]],
    start: Callable[[Coroutine[Any, Any, None]], None],
    outgoing: OutgoingBytes,
    now: Callable[[], int] = now_ms,
    ids: IdSource = RANDOM_IDS,
    controller: ControllerAccess | None = None,
    failed: Callable[[str], None] = lambda reason: None,
) -> Broker:
    """Build everything behind the sockets on an open store.

    `controller` replaces the cluster's. `failed` is called with the reason if this gateway cannot
    go on as a node of the cluster. Raises StorageError.
    """
    # Steps that can fail come before those that start timers; shards are opened last.
    membership = await _open_cluster(settings, store, advertised, clock, start, ids, failed)
    leadership = membership.leadership
    settings = settings.model_copy(update={"node_id": membership.view.node_id})
    controller = controller or membership.controller
    deadlines = CoarseClock(clock)
    configs = await _open(BrokerConfigs(await store.table("broker-configs"), settings))
    topics = await _open(Topics(store, leadership, configs.settings, clock, now, start, controller))
    configs.watch(topics.apply_settings)
    producer_id_blocks = await _open(ProducerIdBlocks(await store.table("producer-ids")))
    authorizer = await _open_authorizer(settings, store)
    offsets = _make_offsets(settings, store, topics, deadlines)
    topology = TopicView(topics, settings.group_consumer_regex_max_bytes)
    group_configs = await _open(GroupConfigs(await store.table("group-configs"), settings))
    of_group = group_configs.settings_of
    groups = GroupCoordinator(store, topology, settings, clock, now, ids.member, start, of_group)
    group_configs.watch(groups.update_settings)
    scram_credentials = await _open_scram_credentials(settings, store)
    client_quotas = await _open(
        ClientQuotas(await store.table("client-quotas"), max_entities=settings.max_client_quotas)
    )
    leadership.parts = (topics, offsets, groups)
    leadership.watch_serving(groups.set_serving)
    _list_offsets_topic(store, leadership, topics, offsets, groups)
    if store.is_shared:
        PartitionReopener(cast(SharedStore, store), leadership, topics.partition, start)
    broker = Broker(
        configs,
        group_configs,
        store,
        membership,
        topics,
        FetchSessions(settings.max_incremental_fetch_session_cache_slots, ids.fetch_session),
        ProducerIds(partial(_allocate_producer_ids, producer_id_blocks, controller)),
        producer_id_blocks,
        offsets,
        groups,
        Converter(
            run_for,
            cache_bytes=settings.conversion_cache_bytes,
            max_decompressed_bytes=settings.max_decompressed_bytes,
            converts_at_once=kernel.KERNEL == "cython",
        ),
        clock,
        deadlines,
        now,
        run,
        run_for,
        outgoing=outgoing,
        scram_credentials=scram_credentials,
        client_quotas=client_quotas,
        quota_usage=_make_quota_usage(settings, client_quotas, clock),
        traffic=_open_traffic(settings, membership, clock, topics, run, start),
        audit=open_audit(settings, membership.view.node_id),
        authorizer=authorizer,
        tenants=make_tenants(settings),
        controller=controller,
        remote_offsets=_remote_offsets(membership, clock),
        remote_appends=_remote_appends(
            membership, AppendServer(topics, partial(_max_decompressed, configs), run, now, clock)
        ),
    )
    if membership.node is not None:
        _serve_gateways(membership.node.calls, broker)
    await membership.start()
    return broker


def _serve_gateways(calls: Calls, broker: Broker) -> None:
    """Execute the calls of other gateways, besides those of `RemoteAppends`."""
    serve_calls(calls, broker, broker.membership.revision)
    commit = partial(commit_passed_on, broker)
    serve_offsets(calls, broker.confirm_coordinator, broker.offsets, commit)
    serve_traffic_rows(calls, broker.topics, broker.now)


def _remote_offsets(membership: ClusterMembership, clock: Clock) -> RemoteOffsets | None:
    node = membership.node
    return None if node is None else RemoteOffsets(node.calls, membership.view, clock)


async def commit_passed_on(broker: Broker, commit: GroupCommit) -> Sequence[int]:
    """Commit offsets that another gateway passes on. Raises KafkaError."""
    slices = TimeSlices(broker.clock)
    limit = broker.settings.offset_metadata_max_bytes
    return await commit_group(commit, broker.groups, broker.offsets, broker.topics, limit, slices)


def _remote_appends(membership: ClusterMembership, server: AppendServer) -> RemoteAppends | None:
    node = membership.node
    if node is None:
        return None
    return RemoteAppends(node.calls, membership.view, server.clock, server)


def _max_decompressed(configs: BrokerConfigs) -> int:
    return configs.settings.max_decompressed_bytes


async def _open_cluster(
    settings: Settings,
    store: Store,
    advertised: dict[str, tuple[str, int]],
    clock: Clock,
    start: Callable[[Coroutine[Any, Any, None]], None],
    ids: IdSource,
    failed: Callable[[str], None],
) -> ClusterMembership:
    return await open_cluster(
        store,
        NodeIdentity(settings.node_id, advertised, version()),
        SessionTiming.of(settings.node_session_timeout_ms / 1000),
        clock,
        lambda: ShardLeadership(store, clock, start),
        ids.cluster,
        failed,
    )


async def _allocate_producer_ids(blocks: ProducerIdBlocks, controller: ControllerAccess) -> range:
    if not controller.is_local:
        try:
            return await controller.allocate_producer_ids()
        except KafkaError:
            if not controller.is_local:
                raise
            # This gateway has become the controller while it waited for one.
    return await blocks.allocate()


def _list_offsets_topic(
    store: Store,
    leadership: ShardLeadership,
    topics: Topics,
    offsets: CommittedOffsets,
    groups: GroupCoordinator,
) -> None:
    """List the offsets topic, in a store that is not shared once groups or offsets are loaded.

    All gateways of a cluster list the same topics.
    """

    def changed(shard: int, state: ShardState) -> None:
        if (
            state is ShardState.OPEN
            and topics.find_internal(CONSUMER_OFFSETS) is None
            and (len(offsets) or any(True for _ in groups))
        ):
            topics.add_internal(CONSUMER_OFFSETS)

    if store.is_shared:
        topics.add_internal(CONSUMER_OFFSETS)
    else:
        leadership.watch(changed)


def _make_offsets(
    settings: Settings, store: Store, topics: Topics, deadlines: CoarseClock
) -> CommittedOffsets:
    return CommittedOffsets(
        store,
        topics,
        settings,
        deadlines,
        partial(_note_committed, store),
        topics_may_return=store.retains_by_itself,
    )


async def _open_scram_credentials(settings: Settings, store: Store) -> ScramCredentials:
    return await _open(
        ScramCredentials(
            await store.table("scram-credentials"),
            is_enabled=any(name in HASHES for name in settings.enabled_mechanisms()),
        )
    )


def _make_quota_usage(settings: Settings, quotas: ClientQuotas, clock: Clock) -> QuotaUsage:
    return QuotaUsage(
        quotas,
        samples=settings.quota_window_num,
        sample_seconds=settings.quota_window_size_seconds,
        now=lambda: int(clock.seconds() * 1000),
    )


def _note_committed(store: Store, group_id: str, topic: str, partition: int, offset: int) -> None:
    """Report a commit to the store. A tenant's group has its plain name there."""
    store.note_committed(plain_id(group_id), topic, partition, offset)


async def _open_authorizer(settings: Settings, store: Store) -> Authorizer | None:
    """Load the ACLs or the store's permissions, as the settings request.

    Raises StorageError, and ValueError if the store has no permissions.
    """
    if settings.authorizer == "none":
        return None
    if settings.authorizer == "pulsar":
        permissions = await store.permissions()
        if permissions is None:
            raise ValueError("authorizer=pulsar: this store has no permissions; use acls")
        return PulsarAuthorizer(permissions, settings.super_users)
    if not settings.super_users:
        _log.warning(
            "authorizer=acls has no super users, so no client can add the first ACLs",
            remedy="set super_users, for example User:admin",
        )
    return await _open(
        AclAuthorizer(
            await store.table("acls"),
            settings.super_users,
            allows_unlisted=settings.allow_everyone_if_no_acl_found,
            max_acls=settings.max_acls,
        )
    )


class _Openable(Protocol):
    async def open(self) -> None: ...


_T = TypeVar("_T", bound=_Openable)


async def _open(part: _T) -> _T:
    await part.open()
    return part


def open_traffic(
    settings: Settings,
    node_id: int,
    cluster: str,
    clock: Clock,
    topics: Topics,
    run: Callable[..., Awaitable[Any]],
    start: Callable[[Coroutine[Any, Any, None]], None],
    forwarding: TrafficForwarding | None = None,
) -> RecorderFactory:
    """Start the traffic log if the settings request one.

    Raises ValueError for settings that cannot be applied.
    """
    salt = (
        None
        if settings.traffic_log_salt_file is None
        else read_salt(settings.traffic_log_salt_file)
    )
    began = now_ms()
    sinks: list[LineSink] = []
    if settings.traffic_log is not None:
        sinks.append(_line_files(settings, node_id, "traffic_log", settings.traffic_log, began))
    if settings.traffic_topic:
        losses = DroppedLines(time.monotonic)
        configs = {
            "retention.ms": str(settings.traffic_log_retention_ms),
            "cleanup.policy": "delete",
        }
        most = settings.traffic_log_queue_bytes
        sinks.append(
            TopicSink(
                topics,
                configs,
                losses,
                max_bytes=most,
                now=now_ms,
                clock=clock,
                run=run,
                start=start,
                forwarding=forwarding,
            )
        )
    if not sinks:
        return NO_TRAFFIC_LOG
    log = TrafficLog(
        sinks,
        node_id,
        cluster,
        start=began,
        now=now_ms,
        clock=clock,
        interval=settings.traffic_log_interval_ms / 1000,
        max_keys=settings.traffic_log_max_rows_per_connection,
        max_rows=settings.traffic_log_queue_lines,
        salt=salt,
        topic_name=partial(traffic_topic_name, topics),
    )
    log.start()
    return log


def _open_traffic(
    settings: Settings,
    membership: ClusterMembership,
    clock: Clock,
    topics: Topics,
    run: Callable[..., Awaitable[Any]],
    start: Callable[[Coroutine[Any, Any, None]], None],
) -> RecorderFactory:
    cluster, node = membership.view, membership.node
    forwarding = None if node is None else TrafficForwarding(node.calls, cluster)
    return open_traffic(
        settings, cluster.node_id, cluster.cluster_id, clock, topics, run, start, forwarding
    )


def open_audit(settings: Settings, node_id: int) -> AuditLog:
    """Start the audit log if the settings request one.

    It is rotated, compressed and kept like the traffic log. Raises ValueError for a folder that
    cannot be used.
    """
    if settings.audit_log is None:
        return NO_AUDIT_LOG
    files = _line_files(settings, node_id, "audit_log", settings.audit_log, now_ms())
    return AuditFiles(files, node_id, now_ms)


def _line_files(settings: Settings, node_id: int, name: str, root: Path, began: int) -> LineWriter:
    """Start to write JSON lines to the folder of setting `name`. Raises ValueError."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise ValueError(f"{name}: {root}: {failure.strerror}") from failure
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise ValueError(f"{name}: {root}: no permission to write")
    writer = LineWriter(
        TrafficFolder(root, node_id, began),
        Rotation(settings.traffic_log_rotate_bytes, settings.traffic_log_rotate_ms),
        RetentionLimits(
            _none_if_negative(settings.traffic_log_retention_ms),
            _none_if_negative(settings.traffic_log_retention_bytes),
            settings.traffic_log_compression_level,
        ),
        now_ms,
        max_lines=settings.traffic_log_queue_lines,
        max_bytes=settings.traffic_log_queue_bytes,
    )
    writer.start()
    return writer


def _none_if_negative(limit: int) -> int | None:
    return None if limit < 0 else limit


def traffic_topic_name(topics: Topics, topic: str | bytes) -> str:
    """The topic's name in the traffic log.

    It is the same for all names and the id of a topic. An id without a topic is written as
    `id:...`.
    """
    live = topics.get(topic)
    if live is not None:
        return live.name
    return (
        printable_topic(topic)
        if isinstance(topic, str)
        else f"id:{base64.urlsafe_b64encode(topic).rstrip(b'=').decode()}"
    )


def make_tls(settings: Settings, listener: str) -> TlsContextFactory:
    """The TLS context of a listener.

    Raises TlsError, or ValueError without a certificate. Both name the listener.
    """
    mine = settings.for_listener(listener)
    if mine.ssl_certificate_file is None or mine.ssl_key_file is None:
        raise ValueError(f"listener {listener} needs ssl_certificate_file and ssl_key_file")
    files = TlsFiles(
        mine.ssl_certificate_file,
        mine.ssl_key_file,
        mine.ssl_key_password_file,
        mine.ssl_ca_file,
        mine.ssl_client_auth,
        mine.ssl_min_version,
        mine.ssl_crl_file,
        mine.ssl_server_name_files,
    )
    if mine.ssl_min_version in OLD_VERSIONS:
        _log.warning(
            "listener accepts old TLS versions with weak signatures",
            listener=listener,
            minimum=mine.ssl_min_version,
        )

    def warn(problem: str) -> None:
        _log.warning("certificate problem", listener=listener, problem=problem)

    try:
        return TlsContextFactory(files, time.monotonic, warn)
    except TlsError as error:
        # One file may be given for several settings by mistake.
        names = [
            settings.setting_name(listener, setting)
            for setting in PerListenerSettings.model_fields
            if setting.startswith("ssl_") and error.path in _paths(getattr(mine, setting))
        ]
        name = " or ".join(names) or "TLS"
        raise TlsError(f"listener {listener}: {name}: {error}") from None


def make_principal_rules(settings: Settings, listener: str) -> PrincipalRules | None:
    """How client certificates become principals on a listener, None if they do not.

    On a SASL listener the user name is the principal, as in Kafka. Raises ValueError.
    """
    mine, protocol = settings.for_listener(listener), settings.security_protocol(listener)
    if not protocol.has_tls or protocol.has_sasl or mine.ssl_client_auth == "none":
        return None
    try:
        return PrincipalRules(mine.ssl_principal_mapping_rules)
    except ValueError as error:
        name = settings.setting_name(listener, "ssl_principal_mapping_rules")
        raise ValueError(f"listener {listener}: {name}: {error}") from None


def _paths(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
