"""A tenant of a test session's own on a running Pulsar, with as many namespaces as its tests ask for; and the admin API, for tests alone."""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from storage.pulsar.settings import PulsarSettings

#: A broker ends an operation after 30 s; the rest is for a busy machine.
REST_SECONDS = 120.0
#: What `pulsar standalone` calls its cluster.
CLUSTER = "standalone"


class AdminFailed(Exception):
    """The admin API answered otherwise than a test needs; the message says what it was asked and what it said."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """`settings` is all that most tests need: a store on namespaces that nobody else has."""

    service_url: str
    admin_url: str
    name: str
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)

    @classmethod
    def make(cls, service_url: str, admin_url: str) -> Self:
        made = cls(service_url, admin_url, f"test-{uuid.uuid4().hex[:12]}")
        made.admin("PUT", f"tenants/{made.name}", {"allowedClusters": [CLUSTER]})
        return made

    def namespace(self) -> str:
        """The name (without the tenant's) of a new, empty namespace."""
        name = f"n{next(self._numbers)}"
        self.admin("PUT", f"namespaces/{self.name}/{name}")
        return name

    def settings(self, **others: Any) -> PulsarSettings:
        """Of a store with a new namespace for its topics and one for its tables; `others` are more of the settings, or some in place of these.

        It does not look at each of hundreds of starts whether the cluster has all that is needed.
        """
        own = {"tenant": self.name, "metadata_tenant": self.name, "checks_at_start": False}
        namespaces = {
            name: self.namespace()
            for name in ("namespace", "metadata_namespace")
            if name not in others
        }
        return PulsarSettings(
            **{
                "service_url": self.service_url,
                "admin_url": self.admin_url,
                **own,
                **namespaces,
                **others,
            }
        )

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """What the admin API answers; `path` begins behind `/admin/v2/`. Raises AdminFailed unless that is a success."""
        status, answer = rest(method, f"{self.admin_url}/admin/v2/{path}", body)
        if not 200 <= status < 300:
            raise AdminFailed(f"{method} {path}: {status} {answer}")
        return answer

    def remove(self) -> None:
        """Everything that was made in it, for a broker that goes on; a namespace that lost its topics may be deleted, others not."""
        for namespace in self.admin("GET", f"namespaces/{self.name}"):
            for topic in self.admin("GET", f"persistent/{namespace}/partitioned"):
                self.admin("DELETE", f"{_path(topic)}/partitions?force=true")
            for topic in self.admin("GET", f"persistent/{namespace}?includeSystemTopic=false"):
                self.admin("DELETE", f"{_path(topic)}?force=true")
            self.admin("DELETE", f"namespaces/{namespace}")
        self.admin("DELETE", f"tenants/{self.name}")


def rest(method: str, url: str, body: object = None) -> tuple[int, Any]:
    """Status and answer, of JSON or else text. Raises OSError when there is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=REST_SECONDS) as answer:
            return answer.status, _read(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, _read(refused.read())


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


def _path(topic: str) -> str:
    return topic.replace("://", "/", 1)
