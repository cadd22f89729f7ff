"""A Pulsar tenant for one test session, with any number of namespaces; and the admin API for
tests.
"""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from storage.pulsar.settings import PulsarSettings

#: A broker aborts an operation after 30 s; the rest is for a busy machine.
REST_SECONDS = 120.0
#: The cluster name of `pulsar standalone`.
CLUSTER = "standalone"


class TenantRequestFailed(Exception):
    """The admin API returned an unexpected status; the message has the request and the reply."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A new tenant. Most tests only need `settings`: a store on namespaces of its test."""

    service_url: str
    admin_url: str
    name: str
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)
    _loaded: list[str] = field(default_factory=list, repr=False, compare=False)
    """Namespaces made since the last `unload`."""

    @classmethod
    def make(cls, service_url: str, admin_url: str) -> Self:
        made = cls(service_url, admin_url, f"test-{uuid.uuid4().hex[:12]}")
        made.admin("PUT", f"tenants/{made.name}", {"allowedClusters": [CLUSTER]})
        return made

    def namespace(self) -> str:
        """Create a namespace and return its name without the tenant."""
        name = f"n{next(self._numbers)}"
        self.admin("PUT", f"namespaces/{self.name}/{name}")
        self._loaded.append(name)
        return name

    def settings(self, **others: Any) -> PulsarSettings:
        """Settings for a store with a new topic namespace and a new metadata namespace.

        `others` adds or overrides settings. There are few shards, and cluster checks at start are
        off, which would slow down hundreds of starts.
        """
        own = {
            "tenant": self.name,
            "metadata_tenant": self.name,
            "checks_at_start": False,
            "shards": 2,
        }
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
        """Call the admin API; `path` follows `/admin/v2/`.

        Raises TenantRequestFailed unless the status is 2xx.
        """
        status, answer = rest(method, f"{self.admin_url}/admin/v2/{path}", body)
        if not 200 <= status < 300:
            raise TenantRequestFailed(f"{method} {path}: {status} {answer}")
        return answer

    def unload(self) -> None:
        """Close all topics of the namespaces made since the last call; the next use opens them.

        When a namespace is opened, Pulsar applies the policies of every open topic of every
        namespace again. With a thousand topics this is most of a broker's work.
        """
        while self._loaded:
            # A test may have deleted its namespace.
            with suppress(OSError, TenantRequestFailed):
                self.admin("PUT", f"namespaces/{self.name}/{self._loaded.pop()}/unload")

    def remove(self) -> None:
        """Delete all topics, the namespaces and the tenant, on a broker that keeps running.

        A namespace can be deleted only when it is empty.
        """
        for namespace in self.admin("GET", f"namespaces/{self.name}"):
            for topic in self.admin("GET", f"persistent/{namespace}/partitioned"):
                self.admin("DELETE", f"{_path(topic)}/partitions?force=true")
            for topic in self.admin("GET", f"persistent/{namespace}?includeSystemTopic=false"):
                self.admin("DELETE", f"{_path(topic)}?force=true")
            self.admin("DELETE", f"namespaces/{namespace}")
        self.admin("DELETE", f"tenants/{self.name}")


def rest(method: str, url: str, body: object = None) -> tuple[int, Any]:
    """Status and body of a reply; the body is parsed as JSON if possible. Raises OSError if there
    is no reply.
    """
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
