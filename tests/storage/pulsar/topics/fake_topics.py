"""Fakes: topics in Pulsar's admin API, and a metadata log that several gateways replay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from twisted.internet.defer import Deferred, fail, succeed

from storage.log import Fenced, StorageError
from storage.pulsar.admin.admin_api import Conflict, InternalStats, Ledger, NotFound
from storage.pulsar.topics.pulsar_names import PREFIX, partition_name, path_of
from storage.pulsar.topics.topic_rows import Rows, SectionRows


class FakePulsar:
    """Partitioned topics by full name. `calls` has METHOD and path of each call.

    A partition has ledgers 0 to 9 of one entry; a trim deletes those before the first cursor. A
    call that contains a key of `fails` raises its error, without effect. One that contains a key of
    `held` takes effect, and is answered when the Deferred fires.
    """

    def __init__(self) -> None:
        self.partitions: dict[str, int] = {}
        self.properties_of: dict[str, dict[str, str]] = {}
        self.retention: dict[str, Any] = {}
        self.cursors: dict[str, dict[str, Any]] = {}
        self.first_ledger: dict[str, int] = {}
        self.calls: list[str] = []
        self.held: dict[str, Deferred[None]] = {}
        self.fails: dict[str, Exception] = {}
        self.unlisted: set[str] = set()
        """Topics that lists leave out."""

    def make(self, full_name: str, partitions: int, properties: Mapping[str, str]) -> None:
        self.partitions[full_name] = partitions
        self.properties_of[full_name] = dict(properties)

    def called(self, *beginnings: str) -> list[str]:
        return [call for call in self.calls if call.startswith(beginnings)]

    async def get(self, path: str, kind: Any = Any) -> Any:
        answer = await self._call("GET", path)
        return answer if kind is Any else msgspec.convert(answer, kind)

    async def put(self, path: str, body: Any = None, content_type: str = "") -> Any:
        return await self._call("PUT", path, body)

    async def post(self, path: str, body: Any = None) -> Any:
        return await self._call("POST", path, body)

    async def delete(self, path: str) -> Any:
        return await self._call("DELETE", path)

    async def properties(self, topic: str) -> dict[str, str]:
        found: dict[str, str] = await self._call("GET", f"{path_of(topic)}/properties")
        return found

    async def internal_stats(self, topic: str) -> InternalStats:
        await self._call("GET", f"{path_of(topic)}/internalStats")
        ledgers = [Ledger(number, 1, 100) for number in range(self.first_ledger.get(topic, 0), 10)]
        return InternalStats(ledgers, 0, 0, 10, 1000, "9:0", self.cursors.get(topic, {}))

    async def _call(self, method: str, url: str, body: Any = None) -> Any:
        self.calls.append(f"{method} {url}")
        for part, error in self.fails.items():
            if part in f"{method} {url}":
                raise error
        answer = self._perform(method, url, body)
        for part, until in list(self.held.items()):
            if part in f"{method} {url}":
                waiting: Deferred[None] = Deferred()
                until.addCallback(lambda _, one=waiting: one.called or one.callback(None))
                await waiting
        return answer

    def _perform(self, method: str, url: str, body: Any) -> Any:
        path, query = urlsplit(url).path, parse_qs(urlsplit(url).query)
        parts = [unquote(part) for part in path.split("/")[2:]]
        namespace = "/".join(parts[:2])
        if path.startswith("/namespaces/"):
            return None
        if len(parts) == 2:
            there = f"{PREFIX}{namespace}/"
            return [
                partition_name(name, index)
                for name, count in self.partitions.items()
                if name.startswith(there) and name not in self.unlisted
                for index in range(count)
            ]
        if parts[2] == "partitioned" and len(parts) == 3:
            names = self.partitions.keys() - self.unlisted
            return [name for name in names if name.startswith(f"{PREFIX}{namespace}/")]
        name = f"{PREFIX}{namespace}/{parts[2]}"
        return self._perform_on_topic(f"{method} {'/'.join(parts[3:])}", name, query, body)

    def _perform_on_topic(self, call: str, name: str, query: Any, body: Any) -> Any:
        match call.split("/"):
            case ["PUT partitions"]:
                if name in self.partitions:
                    raise Conflict("exists", 409, "exists")
                self.make(name, body["partitions"], body["properties"])
                return None
            case ["PUT subscription", _] if "-partition-" in name:
                return None
            case ["POST subscription", cursor, "resetcursor"]:
                place = f"{body['ledgerId']}:{body['entryId'] - 1}"
                self.cursors.setdefault(name, {})[cursor] = {"markDeletePosition": place}
                return None
            case ["POST trim"]:
                places = [one["markDeletePosition"] for one in self.cursors[name].values()]
                self.first_ledger[name] = min(int(place.partition(":")[0]) for place in places)
                return None
            case ["GET internalStats"]:
                return None
        if name not in self.partitions:
            raise NotFound("no topic", 404, "no topic")
        match call.split("/"):
            case ["GET partitions"]:
                properties = self.properties_of[name]
                return {"partitions": self.partitions[name], "properties": dict(properties)}
            case ["GET properties"]:
                return dict(self.properties_of[name])
            case ["PUT properties"]:
                self.properties_of[name].update(body)
            case ["DELETE properties"]:
                del self.properties_of[name][query["key"][0]]
            case ["POST partitions"]:
                self.partitions[name] = body
            case ["DELETE partitions"]:
                del self.partitions[name], self.properties_of[name]
            case ["POST retention"]:
                self.retention[name] = body
            case ["GET retention"]:
                return msgspec.to_builtins(self.retention[name])
        return None


class FakeMetadataLog:
    """The rows that all gateways replay; tests make one member the writer.

    While `is_held`, puts wait for `release`. `fails` is raised by puts, which are not stored.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.members: list[LogMember] = []
        self.puts: list[Rows] = []
        self.is_held = False
        self.fails: StorageError | None = None
        self._waiting: list[tuple[Rows, Deferred[None]]] = []

    def member(self, *, is_writer: bool = False) -> LogMember:
        self.members.append(LogMember(self, is_writer=is_writer))
        return self.members[-1]

    def elect(self, writer: LogMember) -> None:
        for member in self.members:
            member.is_writer = member is writer

    def release(self) -> None:
        self.is_held = False
        waiting, self._waiting = self._waiting, []
        for rows, stored in waiting:
            self._store(rows)
            stored.callback(None)

    def put(self, rows: Rows) -> Deferred[None]:
        if self.fails is not None:
            return fail(self.fails)
        if self.is_held:
            stored: Deferred[None] = Deferred()
            self._waiting.append((rows, stored))
            return stored
        self._store(rows)
        return succeed(None)

    def _store(self, rows: Rows) -> None:
        self.puts.append(rows)
        for key, row in rows.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        for member in self.members:
            for call in member.watchers:
                call(rows)


class LogMember:
    """One gateway's `storage.cluster.MetadataLog`."""

    def __init__(self, log: FakeMetadataLog, *, is_writer: bool) -> None:
        self._log = log
        self.is_writer = is_writer
        self.watchers: list[Callable[[Rows], None]] = []

    @property
    def rows(self) -> Mapping[bytes, bytes]:
        return self._log.rows

    def watch(self, call: Callable[[Rows], None]) -> None:
        self.watchers.append(call)

    def put(self, rows: Rows) -> Awaitable[None]:
        if not self.is_writer:
            return fail(Fenced("another process is the writer"))
        return self._log.put(rows)


def alone_in_cluster() -> SectionRows:
    """The topics' rows of a gateway that is the controller."""
    return SectionRows(FakeMetadataLog().member(is_writer=True))
