"""The settings of the gateway: a typed, immutable model.

Names are Kafka's where Kafka has the setting; descriptions state the reason for each limit. Each
section is a module of this folder. `Settings(...)` uses only its arguments;
`gateway.settings.layers.load` combines flags, environment and file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Self

from pydantic import BaseModel, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.settings.addresses import Endpoint, SecurityProtocol
from gateway.settings.authentication_settings import AuthenticationSettings, TokenSettings
from gateway.settings.authorization_settings import AuthorizationSettings
from gateway.settings.connection_settings import ConnectionSettings
from gateway.settings.fetch_settings import FetchSettings
from gateway.settings.group_settings import GroupSettings
from gateway.settings.listener_settings import ListenerSettings, PerListenerSettings
from gateway.settings.lmdb_settings import EmbeddedStoreSettings
from gateway.settings.log_settings import LogSettings
from gateway.settings.pulsar_settings import PulsarStoreSettings
from gateway.settings.topic_settings import TopicSettings

#: The sections by title, in the order in which they are listed.
SECTIONS: dict[str, type[BaseModel]] = {
    "Listeners": ListenerSettings,
    "TLS, SASL and proxies of all listeners, or of one": PerListenerSettings,
    "Authentication": AuthenticationSettings,
    "Tokens for PLAIN and OAUTHBEARER": TokenSettings,
    "Authorization and the audit log": AuthorizationSettings,
    "Connections": ConnectionSettings,
    "Topics": TopicSettings,
    "Fetching and conversion": FetchSettings,
    "Consumer groups and committed offsets": GroupSettings,
    "The embedded store": EmbeddedStoreSettings,
    "The store in Apache Pulsar": PulsarStoreSettings,
    "The traffic log and the log": LogSettings,
}


MAX_PORT = 65535

#: Settings that must not be without effect, since they make fewer tokens valid.
_CHECKS_OF_OAUTH_TOKENS = (
    "sasl_oauthbearer_expected_audience",
    "sasl_oauthbearer_expected_issuer",
    "sasl_oauthbearer_tenant_claim_name",
)


class Settings(
    # pydantic lists the fields of the last base first.
    LogSettings,
    PulsarStoreSettings,
    EmbeddedStoreSettings,
    GroupSettings,
    FetchSettings,
    TopicSettings,
    ConnectionSettings,
    AuthorizationSettings,
    TokenSettings,
    AuthenticationSettings,
    PerListenerSettings,
    ListenerSettings,
    BaseSettings,
):
    """All settings. Times are in milliseconds, sizes in bytes; -1 means no limit where allowed."""

    model_config = SettingsConfigDict(
        env_prefix="KOPGATE_", extra="forbid", frozen=True, strict=True, validate_default=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the arguments, so that `load` can report the origin of each value."""
        return (init_settings,)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        problems = [
            *self._listener_problems(),
            *self._worker_problems(),
            *self._security_problems(),
            *self._token_problems(),
            *self._pulsar_problems(),
            *self._size_problems(),
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def security_protocol(self, listener: str) -> SecurityProtocol:
        """Return the security protocol of a listener.

        Raises KeyError for an unmapped name; the model refuses such listeners.
        """
        return (
            self.listener_security_protocol_map[listener]
            if listener in self.listener_security_protocol_map
            else SecurityProtocol[listener]
        )

    def for_listener(self, listener: str) -> PerListenerSettings:
        """Return the settings of a listener: its overrides, else the general ones."""
        return PerListenerSettings.model_construct(
            **{
                name: getattr(self._source(listener, name), name)
                for name in PerListenerSettings.model_fields
            }
        )

    def setting_name(self, listener: str, name: str) -> str:
        """Return where a setting of a listener has its value: `listener.NAME.SETTING`, or
        `SETTING` if it is not overridden.
        """
        return name if self._source(listener, name) is self else f"listener.{listener}.{name}"

    def enabled_mechanisms(self) -> tuple[str, ...]:
        """Return the SASL mechanisms that any SASL listener offers, without duplicates."""
        names = {endpoint.name for endpoint in self.listeners}
        return tuple(
            dict.fromkeys(
                mechanism
                for name in sorted(names)
                if self.security_protocol(name).has_sasl
                for mechanism in self.for_listener(name).sasl_enabled_mechanisms
            )
        )

    def _source(self, listener: str, name: str) -> PerListenerSettings:
        overrides = self.listener.get(listener)
        return self if overrides is None or name not in overrides.model_fields_set else overrides

    def advertised_for(self, listener: str) -> Endpoint | None:
        """Return the advertised address of a listener; None means the bound address."""
        return next((endpoint for endpoint in self.advertised if endpoint.name == listener), None)

    def _listener_problems(self) -> Iterator[str]:
        names = {endpoint.name for endpoint in self.listeners}
        bound = [(endpoint.host, endpoint.port) for endpoint in self.listeners if endpoint.port]
        told = {endpoint.name for endpoint in self.advertised}
        yield from (
            (f"listeners: duplicate address {host}:{port}") for host, port in _duplicates(bound)
        )
        yield from (f"advertised: no listener is named {name}" for name in sorted(told - names))
        yield from (
            f"listener_security_protocol_map: no listener is named {name}"
            for name in sorted(set(self.listener_security_protocol_map) - names)
        )
        yield from (
            f"listener.{name}: no listener has this name"
            for name in sorted(set(self.listener) - names)
        )
        for endpoint in self.advertised:
            if endpoint.is_wildcard:
                yield (
                    f"advertised: clients cannot connect to {endpoint}, which stands for all "
                    "interfaces; use a host name or address"
                )
        for endpoint in self.listeners:
            if endpoint.is_wildcard and endpoint.name not in told:
                example = (
                    "advertised = "
                    f"[{str(Endpoint(endpoint.name, 'gateway.example.com', endpoint.port))!r}]"
                )
                yield (
                    f"listeners: {endpoint} listens on all interfaces, so an advertised address "
                    f"is required; for example {example}"
                )

    def _worker_problems(self) -> Iterator[str]:
        if self.workers > 1 and not self.store.is_pulsar:
            yield (
                f"workers: {self.store} can be used by one process only; use one worker, or a "
                "store in Pulsar"
            )
        for setting, endpoints in ("listeners", self.listeners), ("advertised", self.advertised):
            for name, count in Counter(endpoint.name for endpoint in endpoints).items():
                if count not in (1, self.workers):
                    advice = (
                        f"; give it once, or once for each of the {self.workers} workers"
                        if self.workers > 1
                        else ""
                    )
                    yield f"{setting}: duplicate name {name}{advice}"
            for endpoint in endpoints:
                if endpoint.port + self.workers - 1 > MAX_PORT:
                    yield (
                        f"{setting}: {endpoint} with {self.workers} workers needs ports greater "
                        f"than {MAX_PORT}"
                    )

    def for_worker(self, index: int) -> Self:
        """Return the settings of one of `workers`.

        The node id is higher by `index`. So is the port of a listener that is given once, unless it
        is 0; of a listener that is given for each worker, the one with this index is used.
        """
        changes = {
            "workers": 1,
            "node_id": None if self.node_id is None else self.node_id + index,
            "listeners": _of_worker(self.listeners, index),
            "advertised": _of_worker(self.advertised, index),
        }
        return self.model_copy(update=changes)

    def _security_problems(self) -> Iterator[str]:
        for name in dict.fromkeys(endpoint.name for endpoint in self.listeners):
            try:
                protocol = self.security_protocol(name)
            except KeyError:
                yield (
                    f"listener_security_protocol_map: no entry for {name}, which is not the name "
                    f"of a security protocol; add for example {name} = 'PLAINTEXT'"
                )
                continue
            yield from self._listener_security_problems(name, protocol)
            if protocol.has_sasl:
                yield from self._mechanism_problems(name)

    def _mechanism_problems(self, listener: str) -> Iterator[str]:
        """Yield what the mechanisms of a SASL listener lack."""
        enabled = self.for_listener(listener).sasl_enabled_mechanisms
        if "PLAIN" in enabled and not (self.users_file or self._has_token_key()):
            yield (
                f"users_file: required by SASL listener {listener}; create one with `kopgate "
                "users add NAME --file FILE`, or set token_secret_key or token_public_key"
            )
        if "GSSAPI" in enabled and not self.sasl_kerberos_keytab_file:
            yield (
                f"sasl_kerberos_keytab_file: required by GSSAPI on SASL listener {listener}; "
                f"create the file with kadmin: ktadd -k FILE "
                f"{self.sasl_kerberos_service_name}/HOST"
            )
        if "OAUTHBEARER" in enabled and not (self._has_oauth_rules() or self._has_token_key()):
            yield (
                f"sasl_oauthbearer_jwks_endpoint_url: required by SASL listener {listener}, unless "
                "token_secret_key or token_public_key is set"
            )

    def _has_token_key(self) -> bool:
        return self.token_secret_key is not None or self.token_public_key is not None

    def _has_oauth_rules(self) -> bool:
        """Whether the settings `sasl_oauthbearer_...` apply, and not those that begin with
        `token_`.
        """
        return (
            self.sasl_oauthbearer_jwks_endpoint_url is not None
            or self.sasl_oauthbearer_allow_unsecured_tokens
        )

    def _token_problems(self) -> Iterator[str]:
        if (
            self.pulsar_multi_tenant_metadata
            and self._has_token_key()
            and self.token_tenant_claim is None
            and "PLAIN" in self.enabled_mechanisms()
            and (self.authorizer == "none" or self.allow_everyone_if_no_acl_found)
        ):
            yield (
                "token_tenant_claim: required with pulsar_multi_tenant_metadata, unless "
                "authorizer=pulsar or acls limits what clients may do: they choose the tenant by "
                "their user name, so a token of one tenant would open all of them"
            )
        if self.token_secret_key and self.token_public_key:
            yield "token_public_key: has no effect, since token_secret_key is set"
        if (self.token_audience_claim is None) != (self.token_audience is None):
            yield "token_audience: required with token_audience_claim, and has no effect without"
        if not self._has_oauth_rules():
            for name in _CHECKS_OF_OAUTH_TOKENS:
                if getattr(self, name):
                    yield (
                        f"{name}: has no effect without sasl_oauthbearer_jwks_endpoint_url; the "
                        "settings that begin with token_ apply"
                    )

    def _listener_security_problems(
        self, listener: str, protocol: SecurityProtocol
    ) -> Iterator[str]:
        """Yield what is missing in the settings of a listener, and which have no effect."""
        for name in sorted(self._overridden(listener)):
            if name.startswith("ssl_") and not protocol.has_tls:
                yield f"listener.{listener}.{name}: has no effect, since the listener has no TLS"
            if name.startswith("sasl_") and not protocol.has_sasl:
                yield f"listener.{listener}.{name}: has no effect, since the listener has no SASL"
        if not protocol.has_tls:
            return
        mine = self.for_listener(listener)
        for name in ("ssl_certificate_file", "ssl_key_file"):
            if not getattr(mine, name):
                yield f"{self.setting_name(listener, name)}: required by TLS listener {listener}"
        if mine.ssl_client_auth != "none" and not mine.ssl_ca_file:
            yield (
                f"{self.setting_name(listener, 'ssl_ca_file')}: required to verify client "
                f"certificates, since {self.setting_name(listener, 'ssl_client_auth')} is "
                f"{mine.ssl_client_auth} (listener {listener})"
            )

    def _overridden(self, listener: str) -> set[str]:
        overrides = self.listener.get(listener)
        return set() if overrides is None else overrides.model_fields_set

    def _pulsar_problems(self) -> Iterator[str]:
        if self.store.is_pulsar and not self.pulsar_admin:
            yield (
                f"pulsar_admin: required by store {self.store}; set the address of the cluster's "
                "admin API, for example http://HOST:8080"
            )
        if self.pulsar_admin and not self.store.is_pulsar:
            yield (
                f"pulsar_admin: store is {self.store}; to use Pulsar, also set store = "
                "'pulsar://HOST:6650'"
            )
        if self.authorizer == "pulsar" and not self.store.is_pulsar:
            yield (
                f"authorizer: store is {self.store}, which has no permissions of Pulsar; use acls"
            )
        if self.pulsar_permissions_max_age_ms <= self.pulsar_permissions_refresh_ms:
            yield (
                "pulsar_permissions_max_age_ms: not more than pulsar_permissions_refresh_ms, so "
                "permissions would expire before they are read again"
            )
        if self.pulsar_multi_tenant_metadata and not self.store.is_pulsar:
            yield (
                f"pulsar_multi_tenant_metadata: store is {self.store}, which has no namespaces; "
                "set it to false"
            )
        if self.pulsar_tls_certificate_file and not self.pulsar_tls_key_file:
            yield "pulsar_tls_certificate_file: pulsar_tls_key_file is missing"
        if self.pulsar_tls_key_file and not self.pulsar_tls_certificate_file:
            yield "pulsar_tls_key_file: pulsar_tls_certificate_file is missing"

    def _size_problems(self) -> Iterator[str]:
        for field in (
            "listeners",
            "sasl_enabled_mechanisms",
            "sasl_kerberos_principal_to_local_rules",
            "log_cleanup_policy",
        ):
            if not getattr(self, field):
                yield f"{field}: at least one value is required"
        for name, overrides in self.listener.items():
            if not overrides.sasl_enabled_mechanisms:
                yield (f"listener.{name}.sasl_enabled_mechanisms: at least one value is required")
        if self.max_in_flight_bytes < self.socket_request_max_bytes:
            yield (
                "max_in_flight_bytes: less than socket_request_max_bytes, so the largest request "
                "cannot be read"
            )
        if self.message_max_bytes > self.socket_request_max_bytes:
            yield (
                "message_max_bytes: more than socket_request_max_bytes, so the largest batch "
                "cannot be sent"
            )
        if self.audit_log is not None and self.audit_log == self.traffic_log:
            yield "audit_log: the folder of the traffic log; choose another one"
        if -1 < self.traffic_log_retention_bytes < self.traffic_log_rotate_bytes:
            yield (
                "traffic_log_retention_bytes: less than traffic_log_rotate_bytes, so no finished "
                "file could be kept"
            )
        if self.num_partitions > self.max_partitions_per_topic:
            yield "num_partitions: more than max_partitions_per_topic"
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            yield (
                "group_min_session_timeout_ms: more than group_max_session_timeout_ms, so no "
                "client could join a group"
            )
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            yield (
                "group_consumer_heartbeat_interval_ms: not less than "
                "group_consumer_session_timeout_ms, so every session would expire between "
                "heartbeats"
            )


def _duplicates(items: list[Any]) -> list[Any]:
    return sorted({item for item in items if items.count(item) > 1})


def _of_worker(endpoints: Iterable[Endpoint], index: int) -> tuple[Endpoint, ...]:
    by_name: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_name.setdefault(endpoint.name, []).append(endpoint)
    return tuple(
        given[index]
        if len(given) > 1
        else replace(given[0], port=given[0].port + index if given[0].port else 0)
        for given in by_name.values()
    )
