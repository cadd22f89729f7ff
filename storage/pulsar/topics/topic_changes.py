"""Changes of topics in Pulsar. After a missing answer, the outcome is verified."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlencode

from storage.log import StorageFailed, Topic, TopicExists, UnknownTopic
from storage.pulsar.admin.admin_api import (
    PARTITIONED,
    AdminFailed,
    BrokerError,
    Conflict,
    NotFound,
    PulsarAdmin,
)
from storage.pulsar.compaction.trim import RetentionTrimmer
from storage.pulsar.log.entry_messages import ENTRY_FORMAT
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import path_of
from storage.pulsar.topics.retention_policies import (
    KEEP_NOTHING,
    Retention,
    RetentionPolicies,
    cleanup_of,
    retention_of,
)
from storage.pulsar.topics.topic_listing import (
    CONFIG,
    NATIVE,
    RETENTION,
    PulsarTopic,
    TopicListing,
    properties_of,
)

log = logging.getLogger(__name__)

COMPACTED = "compacted"
"""Suffix of the property with the policies set on a topic, if Pulsar compacts the topic."""

RETENTION_CONFIGS = ("cleanup.policy", "retention.ms", "retention.bytes")


class TopicChanges:
    """Creates, alters and deletes topics.

    Methods raise StorageFailed if Pulsar fails or the outcome is unknown.
    """

    def __init__(
        self,
        settings: PulsarSettings,
        admin: PulsarAdmin,
        listing: TopicListing,
        trimmer: RetentionTrimmer,
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._listing = listing
        self._trimmer = trimmer
        self._policies = RetentionPolicies(admin)

    async def create(self, topic: Topic, full_name: str) -> PulsarTopic:
        """Create a topic. Raises TopicExists if another process created it first."""
        entry_format = topic.configs.get(ENTRY_FORMAT, self._settings.entry_format)
        body = {"partitions": topic.partitions, "properties": properties_of(topic, entry_format)}
        try:
            await self._admin.put(f"{path_of(full_name)}/partitions", body, PARTITIONED)
        except Conflict:
            raise TopicExists(
                f"topic {topic.name} was created or is being deleted by another process"
            ) from None
        except NotFound as failure:
            namespace = full_name.removeprefix("persistent://").rpartition("/")[0]
            raise StorageFailed(
                f"{full_name} cannot be created: {failure.reason}. "
                f"Create the namespace with `pulsar-admin namespaces create {namespace}`"
            ) from None
        except StorageFailed as failure:
            if isinstance(failure, AdminFailed) and not isinstance(failure, BrokerError):
                raise
            await self._confirm_created(topic, full_name, failure)
        return PulsarTopic(topic, full_name, True, entry_format)

    async def _confirm_created(self, topic: Topic, full_name: str, failure: StorageFailed) -> None:
        """Raises `failure` unless the topic was created nevertheless."""
        try:
            seen = await self._listing.fetch(topic.name, full_name)
        except StorageFailed:
            raise failure from None
        if seen is None or seen.topic.topic_id != topic.topic_id:
            raise failure
        await self.create_missing_partitions(seen)

    async def create_missing_partitions(self, found: PulsarTopic) -> None:
        """Create missing partitions, left out if a broker ended while creating a topic."""
        if found.is_partitioned:
            await self._admin.post(f"{found.path}/createMissedPartitions")

    async def alter(self, known: PulsarTopic, topic: Topic) -> PulsarTopic:
        """Add partitions and set exactly these configs; other properties are kept. Raises
        UnknownTopic.
        """
        now = await self._listing.fetch(topic.name, known.full_name, known.is_partitioned)
        if now is None or now.topic.topic_id != topic.topic_id:
            raise UnknownTopic(f"topic {topic.name} was deleted by another process")
        try:
            if topic.partitions > now.topic.partitions:
                await self._admin.post(f"{known.path}/partitions", topic.partitions)
            entry_format = self._entry_format(topic.configs, now)
            await self._set(now, topic.configs, entry_format)
        except NotFound:
            raise UnknownTopic(f"topic {topic.name} was deleted by another process") from None
        return replace(now, topic=topic, entry_format=entry_format)

    def _entry_format(self, configs: Mapping[str, str], now: PulsarTopic) -> str | None:
        """A topic that never had the config keeps its format, even if the default changes."""
        default = (
            self._settings.entry_format if ENTRY_FORMAT in now.topic.configs else now.entry_format
        )
        return configs.get(ENTRY_FORMAT, default)

    async def _set(
        self, now: PulsarTopic, configs: Mapping[str, str], entry_format: str | None
    ) -> None:
        """Set new configs before removing old ones, so that concurrent readers never see too
        few.
        """
        new = {
            CONFIG + name: value
            for name, value in configs.items()
            if now.topic.configs.get(name) != value
        }
        if entry_format is not None and entry_format != now.entry_format:
            new[ENTRY_FORMAT] = entry_format
        if new:
            await self._admin.put(f"{now.path}/properties", new)
        for name in now.topic.configs:
            if name not in configs:
                await self._remove(now, CONFIG + name)

    async def _remove(self, found: PulsarTopic, key: str) -> None:
        await self._admin.delete(f"{found.path}/properties?{urlencode({'key': key})}")

    async def delete(self, found: PulsarTopic) -> None:
        """Delete the topic with its policies and all its subscriptions."""
        try:
            await self._admin.delete(
                f"{found.path}{'/partitions' if found.is_partitioned else ''}?force=true"
            )
        except NotFound:
            log.info("topic %s was already deleted by another process", found.topic.name)
        except StorageFailed as failure:
            try:
                seen = await self._listing.fetch(
                    found.topic.name, found.full_name, found.is_partitioned
                )
            except StorageFailed:
                raise failure from None
            if seen is not None:
                raise
        self._policies.forget(found.full_name)
        self._trimmer.forget(found)

    def due(self, found: PulsarTopic) -> Retention | None:
        """The retention policy to set, if not set yet.

        Topics created by other programs keep theirs, unless they have retention configs here.
        """
        wanted = retention_of(found.topic.configs, self._settings)
        if found.is_retention_lowered:
            return wanted
        if found.entry_format is None and not any(
            name in found.topic.configs for name in RETENTION_CONFIGS
        ):
            return None
        return (
            None
            if found.retention == self._policy_property(found)
            or self._policies.is_refused(found.full_name, wanted)
            else wanted
        )

    async def retain(self, found: PulsarTopic) -> PulsarTopic:
        """Set the retention policy if it is due. A refusal by Pulsar is logged and ignored."""
        wanted = self.due(found)
        if wanted is None or not await self._policies.retain(found.full_name, wanted):
            return found
        if found.is_retention_lowered and not await self._trimmer.end(found, wanted):
            return found
        await self._compact(found)
        value = self._policy_property(found)
        await self._admin.put(f"{found.path}/properties", {RETENTION: value})
        return replace(found, retention=value)

    def _policy_property(self, found: PulsarTopic) -> str:
        """The value of the topic's property once Pulsar has the policies of its configs."""
        wanted = str(retention_of(found.topic.configs, self._settings))
        is_native = found.entry_format == NATIVE
        return (
            f"{wanted} {COMPACTED}"
            if is_native and "compact" in cleanup_of(found.topic.configs, self._settings)
            else wanted
        )

    async def _compact(self, found: PulsarTopic) -> None:
        """Enable or disable Pulsar's compaction of a topic shared with native clients.

        Native clients that read compacted then see the last message of each key.
        """
        if self._policy_property(found).endswith(COMPACTED):
            await self._admin.post(
                f"{found.path}/compactionThreshold", self._settings.native_compaction_bytes
            )
        elif (found.retention or "").endswith(COMPACTED):
            await self._admin.delete(f"{found.path}/compactionThreshold")

    def is_retained(self, found: PulsarTopic) -> bool:
        """Whether Pulsar has the retention of the topic's configs, which may be changed
        temporarily.
        """
        is_given = found.retention == self._policy_property(found) or self._trimmer.is_restored(
            found
        )
        return is_given and not self._policies.is_refused(found.full_name, KEEP_NOTHING)

    async def lower(self, found: PulsarTopic) -> bool:
        """Keep only unacknowledged messages of subscriptions; return whether Pulsar accepted it."""
        return await self._policies.retain(found.full_name, KEEP_NOTHING)
