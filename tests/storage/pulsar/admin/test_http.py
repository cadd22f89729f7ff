"""HTTP to brokers that are unreachable, slow, verbose, or not brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.web.http import Request
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from storage.log import NotReady, StorageFailed
from storage.pulsar.admin.admin_api import AdminFailed, Forbidden, PulsarAdmin, Unauthorized
from storage.pulsar.admin.http import REDIRECTS
from storage.pulsar.settings import PulsarSettings
from tests.testkit.settle import settle

Answer = Callable[[Any], Any]


class AdminServer(Resource):
    """Answers every request with `answer` and records method, target, token and body."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.answer: Answer = lambda _: b"{}"
        self.requests: list[tuple[str, str, str | None, bytes]] = []
        self._port: Any = reactor.listenTCP(0, Site(self), interface="127.0.0.1")
        self.url = f"http://127.0.0.1:{self._port.getHost().port}"

    def render(self, request: Request) -> Any:
        self.requests.append(
            (
                request.method.decode(),
                request.uri.decode(),
                request.getHeader("authorization"),
                request.content.read(),
            )
        )
        return self.answer(request)

    async def stop(self) -> None:
        await self._port.stopListening()


@pytest.fixture
def servers() -> Iterator[Callable[[], AdminServer]]:
    made: list[AdminServer] = []

    def make() -> AdminServer:
        made.append(AdminServer())
        return made[-1]

    yield make
    for server in made:
        settle(server.stop())


@pytest.fixture
def server(servers: Callable[[], AdminServer]) -> AdminServer:
    return servers()


@pytest.fixture
def admins() -> Iterator[Callable[..., PulsarAdmin]]:
    made: list[PulsarAdmin] = []

    def make(url: str, **others: Any) -> PulsarAdmin:
        made.append(PulsarAdmin(PulsarSettings("pulsar://127.0.0.1:1", url, **others), reactor))
        return made[-1]

    yield make
    for admin in made:
        settle(admin.close())


def with_timeout(admin: PulsarAdmin, seconds: float) -> None:
    """Requests time out after `seconds`; the connect timeout is unchanged."""
    admin._settings = replace(admin._settings, admin_timeout_seconds=seconds)


def redirects_to(location: str) -> Answer:
    def answer(request: Request) -> bytes:
        request.setResponseCode(307)
        request.setHeader("location", location)
        return b""

    return answer


@ensureDeferred
async def test_connection_refused_names_the_address(
    admins: Callable[..., PulsarAdmin],
) -> None:
    with pytest.raises(
        StorageFailed,
        match=r"Pulsar's admin API at http://127.0.0.1:1 cannot be reached: .*refused",
    ):
        await admins("http://127.0.0.1:1").get("/clusters")


@ensureDeferred
async def test_redirect_keeps_method_body_and_token(
    servers: Callable[[], AdminServer], admins: Callable[..., PulsarAdmin], tmp_path: Path
) -> None:
    first, owner = servers(), servers()
    (tmp_path / "token").write_text("secret\n")
    first.answer = redirects_to(
        f"{owner.url}/admin/v2/persistent/a/b/c/retention?authoritative=true"
    )
    owner.answer = lambda _: b'{"done":true}'
    admin = admins(first.url, token_file=tmp_path / "token")
    assert await admin.post("/persistent/a/b/c/retention", {"x": 1}) == {"done": True}
    assert owner.requests == [
        (
            "POST",
            "/admin/v2/persistent/a/b/c/retention?authoritative=true",
            "Bearer secret",
            b'{"x":1}',
        )
    ]


class RedirectingCluster:
    """A broker that redirects every call to `owner`, an unconfigured host, and lists `brokers`."""

    def __init__(
        self, first: AdminServer, owner: AdminServer, brokers: bytes, status: int = 200
    ) -> None:
        self.url = owner.url.replace("127.0.0.1", "localhost")

        def answers(request: Request) -> bytes:
            if request.path == b"/admin/v2/brokers":
                request.setResponseCode(status)
                return brokers
            return redirects_to(self.url + request.uri.decode())(request)

        first.answer = answers


@ensureDeferred
async def test_redirect_to_listed_broker_is_followed(
    servers: Callable[[], AdminServer], admins: Callable[..., PulsarAdmin], tmp_path: Path
) -> None:
    first, owner = servers(), servers()
    (tmp_path / "token").write_text("secret")
    RedirectingCluster(first, owner, b'["broker-1:8080","LOCALHOST:8080"]')
    admin = admins(first.url, token_file=tmp_path / "token")
    for _ in range(2):
        assert await admin.get("/persistent/a/b/c/retention") == {}
    assert [token for _, _, token, _ in owner.requests] == ["Bearer secret"] * 2
    # The list is requested once.
    assert [target for _, target, _, _ in first.requests].count("/admin/v2/brokers") == 1


@pytest.mark.parametrize(
    ("brokers", "status"),
    [
        (b'["broker-1:8080"]', 200),
        (b'["localhost:8080"]', 403),
        (b"{}", 200),
        (b'["["]', 200),
        (b"", 200),
    ],
)
@ensureDeferred
async def test_token_is_not_sent_outside_the_cluster(
    servers: Callable[[], AdminServer],
    admins: Callable[..., PulsarAdmin],
    tmp_path: Path,
    brokers: bytes,
    status: int,
) -> None:
    first, stranger = servers(), servers()
    (tmp_path / "token").write_text("secret")
    url = RedirectingCluster(first, stranger, brokers, status).url
    with pytest.raises(
        StorageFailed, match=rf" to {url}, which is not followed: .*\(status {status}\)"
    ):
        await admins(first.url, token_file=tmp_path / "token").get("/persistent/a/b/c/retention")
    assert stranger.requests == []


@ensureDeferred
async def test_host_of_service_url_is_trusted(
    servers: Callable[[], AdminServer],
) -> None:
    first, owner = servers(), servers()
    RedirectingCluster(first, owner, b"", 403)
    admin = PulsarAdmin(PulsarSettings("pulsar://broker-1:6650,localhost:6650", first.url), reactor)
    assert await admin.get("/persistent/a/b/c/retention") == {}
    await admin.close()


@pytest.mark.parametrize(
    "elsewhere",
    [
        "/other",
        "https://127.0.0.1:1/admin/v2/clusters",
        "http://user@127.0.0.1:1/admin/v2/clusters",
        "",
    ],
)
@ensureDeferred
async def test_redirect_to_another_call_is_refused(
    server: AdminServer, admins: Callable[..., PulsarAdmin], elsewhere: str
) -> None:
    server.answer = redirects_to(elsewhere)
    with pytest.raises(
        StorageFailed, match="which is not followed" if elsewhere else "redirected it more than"
    ):
        await admins(server.url).get("/clusters")


@ensureDeferred
async def test_redirects_are_limited(
    server: AdminServer, admins: Callable[..., PulsarAdmin]
) -> None:
    server.answer = redirects_to("/admin/v2/clusters")
    with pytest.raises(StorageFailed, match="disagree on its owner"):
        await admins(server.url).get("/clusters")
    assert len(server.requests) == REDIRECTS + 1


@ensureDeferred
async def test_missing_answer_times_out(
    server: AdminServer, admins: Callable[..., PulsarAdmin]
) -> None:
    server.answer = lambda _: NOT_DONE_YET
    admin = admins(server.url)
    with_timeout(admin, 0.05)
    with pytest.raises(
        StorageFailed, match=r"GET /clusters: no answer .* within 0\.05 s \(admin_timeout_seconds\)"
    ):
        await admin.get("/clusters")


@ensureDeferred
async def test_timeout_while_connecting_names_the_setting(
    server: AdminServer, admins: Callable[..., PulsarAdmin]
) -> None:
    server.answer = lambda _: NOT_DONE_YET
    admin = admins(server.url)
    with_timeout(admin, 0)
    with pytest.raises(StorageFailed, match=r"no answer .* within 0 s \(admin_timeout_seconds\)"):
        await admin.get("/clusters")
    assert not server.requests


@ensureDeferred
async def test_unfinished_answer_times_out(
    server: AdminServer, admins: Callable[..., PulsarAdmin]
) -> None:
    def begins(request: Request) -> int:
        request.write(b"[")
        return NOT_DONE_YET

    server.answer = begins
    admin = admins(server.url, admin_connections=1)
    with_timeout(admin, 0.1)
    # The first has released its slot.
    for _ in range(2):
        with pytest.raises(StorageFailed, match="no answer"):
            await admin.get("/clusters")


@ensureDeferred
async def test_answer_above_size_limit_is_refused(
    server: AdminServer, admins: Callable[..., PulsarAdmin]
) -> None:
    admin = admins(server.url, admin_answer_bytes=100)
    server.answer = lambda _: b'"' + b"x" * 98 + b'"'
    assert await admin.get("/clusters") == "x" * 98
    server.answer = lambda _: b'"' + b"x" * 99 + b'"'
    with pytest.raises(StorageFailed, match=r"exceeds 100 bytes \(admin_answer_bytes\)"):
        await admin.get("/clusters")


@ensureDeferred
async def test_truncated_answer_fails(
    server: AdminServer, admins: Callable[..., PulsarAdmin]
) -> None:
    def breaks_off(request: Request) -> int:
        request.setHeader("content-length", "100")
        request.write(b"[]")
        request.transport.loseConnection()
        return NOT_DONE_YET

    server.answer = breaks_off
    with pytest.raises(StorageFailed, match="lost during an answer"):
        await admins(server.url).get("/clusters")


@pytest.mark.parametrize("body", [b"<html>", b'{"a":1}', b"\xff", b"["])
@ensureDeferred
async def test_answer_of_another_server_is_reported(
    server: AdminServer, admins: Callable[..., PulsarAdmin], body: bytes
) -> None:
    server.answer = lambda _: body
    with pytest.raises(
        StorageFailed,
        match=r"GET /clusters: the answer of http://.* is not one of Pulsar's admin API",
    ):
        await admins(server.url).get("/clusters", list[str])


@ensureDeferred
async def test_token_is_reloaded_and_never_in_errors(
    server: AdminServer, admins: Callable[..., PulsarAdmin], tmp_path: Path
) -> None:
    def refuses(request: Request) -> bytes:
        request.setResponseCode(401)
        return b"<html>\n<title>Error 401 Authentication required</title>\n</html>"

    file = tmp_path / "token"
    file.write_text("old-secret")
    server.answer = refuses
    admin = admins(server.url, token_file=file)
    with pytest.raises(Unauthorized) as old:
        await admin.get("/clusters")
    # A different length: on some kernels a file written twice within 4 ms keeps its timestamp.
    file.write_text("newer-secret")
    with pytest.raises(Unauthorized) as new:
        await admin.get("/clusters")
    assert [token for _, _, token, _ in server.requests] == [
        "Bearer old-secret",
        "Bearer newer-secret",
    ]
    assert "401 Error 401 Authentication required (" in str(old.value)
    assert "the token is missing, wrong or expired" in str(old.value)
    assert "secret" not in str(old.value) + str(new.value) + repr(admin)


@pytest.mark.parametrize("status", [401, 403])
@ensureDeferred
async def test_missing_permission_is_forbidden_for_status_401_and_403(
    server: AdminServer, admins: Callable[..., PulsarAdmin], status: int
) -> None:
    def refuses(request: Request) -> bytes:
        request.setResponseCode(status)
        return (
            b'{"reason":"Unauthorized to validateTopicOperation for operation [LOOKUP] '
            b'on topic [t]"}'
        )

    server.answer = refuses
    with pytest.raises(
        Forbidden, match="lacks permission; a superuser or the tenant's administrator"
    ) as caught:
        await admins(server.url).get("/persistent/a/b/t/partitions")
    assert not isinstance(caught.value, Unauthorized)


@pytest.mark.parametrize(
    ("status", "is_transient"),
    [(400, False), (405, False), (409, False), (412, False), (500, True), (503, True), (599, True)],
)
@ensureDeferred
async def test_server_errors_are_retryable_and_refusals_are_not(
    server: AdminServer, admins: Callable[..., PulsarAdmin], status: int, is_transient: bool
) -> None:
    def answers(request: Request) -> bytes:
        request.setResponseCode(status)
        return b'{"reason":"Not enough non-faulty bookies available error code: -6"}'

    server.answer = answers
    with pytest.raises(AdminFailed, match=f"{status} Not enough non-faulty bookies") as caught:
        await admins(server.url).get("/persistent/a/b/t/properties")
    assert isinstance(caught.value, NotReady) == is_transient


@pytest.mark.parametrize("written", [None, "", "two words", "\xe4"])
@ensureDeferred
async def test_missing_token_is_reported_before_sending(
    server: AdminServer, admins: Callable[..., PulsarAdmin], tmp_path: Path, written: str | None
) -> None:
    file = tmp_path / "token"
    if written is not None:
        file.write_text(written, "latin-1")
    with pytest.raises(
        StorageFailed, match="cannot be read" if written is None else "holds no token"
    ):
        await admins(server.url, token_file=file).get("/clusters")
    assert server.requests == []


@ensureDeferred
async def test_concurrent_calls_are_limited_to_connections(
    server: AdminServer, admins: Callable[..., PulsarAdmin]
) -> None:
    held: list[Any] = []

    def holds(request: Request) -> int:
        held.append(request)
        if len(held) == 2:
            reactor.callLater(0.05, release)
        return NOT_DONE_YET

    def release() -> None:
        assert len(held) == 2
        server.answer = lambda _: b"[]"
        for request in held:
            request.write(b"[]")
            request.finish()

    server.answer = holds
    admin = admins(server.url, admin_connections=2, calls_waiting=3)
    calls = [Deferred.fromCoroutine(admin.get("/clusters")) for _ in range(5)]
    with pytest.raises(StorageFailed, match="calls_waiting"):
        await admin.get("/clusters")
    assert [await call for call in calls] == [[]] * 5
