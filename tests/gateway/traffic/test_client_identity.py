from __future__ import annotations

import pytest

from auth.mechanism import AuthenticationBusy, AuthenticationFailed
from gateway.protocol.wire.api_keys import ApiKey
from tests.fakes.broker import NOW
from tests.fakes.connection import ScriptedMechanism, authenticate, handshake, plain_frame, versions
from tests.fakes.traffic import INTERVAL, TrafficScenario

METADATA_OF_ALL_V0 = plain_frame(ApiKey.METADATA, 0, b"\0\0\0\0")


def header(api_key, version, client_id):
    name = client_id.encode()
    return plain_frame(api_key, version)[:8] + len(name).to_bytes(2, "big") + name


def test_opened_row_has_peer():
    scene = TrafficScenario()
    scene.connect()
    assert scene.event("opened") == {
        "kind": "connection",
        "v": 1,
        "at": NOW,
        "node": 7,
        "cluster": "cluster",
        "connection": "7-1000-0",
        "sequence": 0,
        "event": "opened",
        "listener": "PLAINTEXT",
        "peer": "192.0.2.1",
        "peer_port": 5000,
        "protocol": "PLAINTEXT",
        "road": "none",
        "opened_at": NOW,
        "principal": "User:ANONYMOUS",
    }


def test_greeted_row_has_software_of_client():
    scene = TrafficScenario()
    client = scene.connect()
    client.send(versions(3))
    assert scene.rows("connection", event="greeted") == []
    client.send(METADATA_OF_ALL_V0, METADATA_OF_ALL_V0)
    greeted = scene.event("greeted")
    assert (greeted["software"], greeted["software_version"], greeted["api_versions"]) == (
        "test",
        "1",
        3,
    )
    assert greeted["client_ids"] == ["test"]
    assert "api_versions_refused" not in greeted


def test_client_that_sends_no_api_versions_has_no_software_fields():
    scene = TrafficScenario()
    scene.connect().send(METADATA_OF_ALL_V0)
    assert {"software", "api_versions", "api_versions_refused", "client_ids"} & set(
        scene.event("greeted")
    ) == set()


def test_unsupported_first_api_versions_is_recorded():
    scene = TrafficScenario()
    client = scene.connect()
    client.send(versions(5))
    client.send(versions(4))
    client.send(METADATA_OF_ALL_V0)
    greeted = scene.event("greeted")
    assert (greeted["api_versions"], greeted["api_versions_refused"]) == (5, True)
    scene.disconnect(client)
    assert scene.usage(api_key=18, api_version=5)["errors"] == {"35": 1}
    assert "errors" not in scene.usage(api_key=18, api_version=4)


def test_closed_row_has_first_requests_and_highest_versions():
    scene = TrafficScenario()
    client = scene.connect()
    client.send(versions(0), METADATA_OF_ALL_V0, versions(2), *[METADATA_OF_ALL_V0] * 20)
    client.run_reactor()
    scene.env.clock.advance(3)
    scene.disconnect(client)
    closed = scene.event("closed")
    assert closed["first_requests"] == ["18:0", "3:0", "18:2", *["3:0"] * 13]
    assert closed["highest"] == {"3": 0, "18": 2}
    assert closed["habits"] == {"metadata_all": True}
    assert (closed["reason"], closed["duration_ms"], closed["requests"]) == ("client", 3000, 23)


def test_usage_row_has_last_client_id_and_connection_row_up_to_8():
    scene = TrafficScenario()
    client = scene.connect()
    client.send(
        *(header(ApiKey.METADATA, 0, f"app-{number}") + b"\0\0\0\0" for number in [*range(12), 0])
    )
    scene.disconnect(client)
    assert scene.event("closed")["client_ids"] == [f"app-{number}" for number in range(8)]
    assert scene.usage(api_key=3)["client_id"] == "app-0"


def test_sasl_path_tells_bare_tokens_from_requests():
    for version, tokens in [(0, [b"token"]), (1, [authenticate(b"token")])]:
        scene = TrafficScenario()
        client = scene.connect(
            [ScriptedMechanism("PLAIN", {b"token": b"welcome"})], protocol="SASL_PLAINTEXT"
        )
        client.send(handshake("PLAIN", version), *tokens)
        told = scene.event("authenticated")
        path = ["handshake-v0-bare", "handshake-v1"][version]
        assert (told["road"], told["mechanism"], told["principal"]) == (path, "PLAIN", "User:alice")
        assert "principal" not in scene.event("opened")
        scene.disconnect(client)
        assert scene.event("closed")["principal"] == "User:alice"


@pytest.mark.parametrize(
    ("version", "tokens"), [(0, [b"token"]), (1, [authenticate(b"token")])], ids=["bare", "wrapped"]
)
def test_interval_during_authentication_defers_rows(version, tokens):
    """The rows would have no principal. They are written when authentication ends."""
    scene = TrafficScenario()
    scene.log.start()
    client = scene.connect(
        [ScriptedMechanism("PLAIN", {b"token": b"welcome"})], protocol="SASL_PLAINTEXT"
    )
    client.send(handshake("PLAIN", version))
    scene.env.clock.pump([1] * INTERVAL)
    assert scene.rows("usage") == []
    client.send(*tokens)
    (told,) = scene.rows("usage")
    assert (told["api_key"], told["principal"], told["requests"]) == (17, "User:alice", 1)
    assert told["sequence"] == scene.event("authenticated")["sequence"] + 1


def test_authentication_within_interval_is_in_first_rows():
    scene = TrafficScenario()
    scene.log.start()
    client = scene.connect(
        [ScriptedMechanism("PLAIN", {b"token": b"welcome"})], protocol="SASL_PLAINTEXT"
    )
    client.send(handshake("PLAIN", 1), authenticate(b"token"), METADATA_OF_ALL_V0)
    assert scene.rows("usage") == []
    scene.env.clock.pump([1] * INTERVAL)
    told = {row["api_key"]: (row["principal"], row["requests"]) for row in scene.rows("usage")}
    assert told == dict.fromkeys((17, 36, 3), ("User:alice", 1))


def test_failed_authentication_is_close_reason_without_principal():
    for version, tokens in [(0, [b"wrong"]), (1, [authenticate(b"wrong")])]:
        scene = TrafficScenario()
        client = scene.connect([ScriptedMechanism("PLAIN", {b"token": AuthenticationFailed("no")})])
        client.send(handshake("PLAIN", version), *tokens)
        scene.disconnect(client)
        closed = scene.event("closed")
        assert closed["reason"] == "error:login"
        assert "principal" not in closed


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(AuthenticationBusy("later"), "error:busy"), (ZeroDivisionError(), "error:bug")],
)
def test_unavailable_authentication_is_not_client_error(failure, reason):
    for version, tokens in [(0, [b"token"]), (1, [authenticate(b"token")])]:
        scene = TrafficScenario()
        client = scene.connect([ScriptedMechanism("PLAIN", {b"token": failure})])
        client.send(handshake("PLAIN", version), *tokens)
        assert client.is_aborted
        scene.disconnect(client)
        assert scene.event("closed")["reason"] == reason


def test_invalid_mechanism_is_not_recorded():
    scene = TrafficScenario()
    client = scene.connect([ScriptedMechanism("PLAIN", {b"token": b""})])
    client.send(handshake("my password", 1))
    scene.disconnect(client)
    assert "mechanism" not in scene.event("closed")
    assert scene.event("closed")["reason"] == "error:mechanism"
    asked = TrafficScenario()
    client = asked.connect([ScriptedMechanism("PLAIN", {b"token": b""})])
    client.send(handshake("GSSAPI", 1))
    asked.disconnect(client)
    assert asked.event("closed")["mechanism"] == "GSSAPI"


def test_bare_gssapi_token_is_recorded_as_mechanism():
    scene = TrafficScenario()
    client = scene.connect([ScriptedMechanism("PLAIN", {b"token": b""})], protocol="SASL_PLAINTEXT")
    client.send(b"\x60\x82\x02\x4b" + bytes(600))
    assert client.is_aborted
    scene.disconnect(client)
    closed = scene.event("closed")
    assert (closed["mechanism"], closed["road"], closed["reason"]) == (
        "GSSAPI",
        "none",
        "error:mechanism",
    )
    assert {"principal", "highest", "first_requests", "client_ids"} & set(closed) == set()
    assert closed["bytes_in"] == 604


def test_login_with_bare_gssapi_tokens_has_no_handshake_and_no_error():
    scene = TrafficScenario()
    mechanism = ScriptedMechanism("GSSAPI", {b"\x60\x01": b"offer", b"": None})
    client = scene.connect([mechanism], protocol="SASL_PLAINTEXT")
    client.send(b"\x60\x01", b"")
    scene.disconnect(client)
    closed = scene.event("closed")
    assert (closed["mechanism"], closed["road"], closed["reason"]) == ("GSSAPI", "none", "client")
    assert closed["principal"] == "User:alice"


def test_non_kafka_bytes_are_refused_and_unsupported_request_is_recorded():
    scene = TrafficScenario()
    client = scene.connect()
    client.send(plain_frame(ApiKey.FETCH, 99, b"\0"))
    scene.disconnect(client)
    closed = scene.event("closed")
    assert (closed["reason"], closed["highest"], closed["first_requests"]) == (
        "error:refused",
        {"1": 99},
        ["1:99"],
    )
    assert scene.usage(api_key=1, api_version=99)["requests"] == 1


HOSTILE = [
    'x"}\n{"v":1,"kind":"usage","principal":"User:root"}\n{"',
    "\x00\x01\x1f\x7f\x85\u2028\u2029\ufeff",
    '\r\n\t\\"/</script>',
    "\u202euser\u2066",
    "x" * 32_767,
    "\U0001f600" * 8_000,
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_client_names_are_bounded_and_escaped(name):
    scene = TrafficScenario()
    client = scene.connect()
    client.send(header(ApiKey.METADATA, 0, name) + b"\0\0\0\0")
    scene.recorder.software_announced(name, name)
    scene.recorder.group_named(name)
    scene.recorder.topic_accessed(ApiKey.OFFSET_FETCH, 1, name, [3], name)
    scene.recorder.habit_seen("protocols", [name] * 99)
    scene.disconnect(client)
    closed, used = scene.event("closed"), scene.usage(api_key=9)
    told = [
        closed["client_ids"][0],
        closed["software"],
        closed["software_version"],
        *closed["habits"]["protocols"],
    ]
    told += [used["client_id"], used["topic"], used["group"]]
    assert told == [name[:512]] * (3 + 8 + 3)
    assert all(row.get("principal") == "User:ANONYMOUS" for row in scene.kept.rows)
    assert b"\r" not in scene.kept.text


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"ok\x80"])
def test_client_id_that_is_not_utf_8_is_refused_and_not_recorded(name):
    scene = TrafficScenario()
    client = scene.connect()
    client.send(
        plain_frame(ApiKey.METADATA, 0)[:8] + len(name).to_bytes(2, "big") + name + b"\0\0\0\0"
    )
    assert client.is_aborted
    scene.disconnect(client)
    assert scene.event("closed")["reason"] == "error:refused"
    assert "client_ids" not in scene.event("closed")


def test_names_of_connections_are_bounded():
    scene = TrafficScenario(max_keys=5, max_rows=20)
    client = scene.connect()
    recorder = scene.recorder
    for number in range(10_000):
        recorder.software_announced(f"library-{number}", "1")
        recorder.topic_accessed(ApiKey.OFFSET_FETCH, 1, f"t{number}", [number % 3], f"g{number}")
    client.send(
        *(header(ApiKey.METADATA, 0, f"app-{number}") + b"\0\0\0\0" for number in range(100))
    )
    scene.disconnect(client)
    assert len(scene.rows("usage")) == 5 + 1 + 1
    assert scene.event("closed")["software"] == "library-0"
    assert len(scene.event("closed")["client_ids"]) == 8
    assert len(scene.event("closed")["first_requests"]) == 16
    many = []
    for number in range(200):
        scene.connect()
        scene.recorder.topic_accessed(ApiKey.OFFSET_FETCH, 1, f"t{number}")
        many.append(scene.recorder)
    before = len(scene.kept.rows)
    for recorder in many:
        recorder.closed("client")
    rows = scene.kept.rows[before:]
    assert len(rows) == 2 * 200
    assert len([row for row in rows if "topic" in row]) == 20
    assert len([row for row in rows if row.get("merged")]) == 180
