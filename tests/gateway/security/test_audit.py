"""Lines of the audit log, and the parts that write them."""

from __future__ import annotations

import asyncio
import json

import pytest

from auth.mechanism import Principal
from gateway.security.audit import NO_AUDIT_LOG, REFUSAL_INTERVAL_MS, AuditFiles

ALICE = Principal("User", "alice")
PEER = ("192.0.2.1:5000", "SASL_SSL")


class LinesInMemory:
    def __init__(self):
        self.lines = []
        self.stopped_after = None

    def put(self, block, lines):
        assert block.endswith(b"\n")
        assert block.count(b"\n") == lines == 1
        self.lines.append(json.loads(block))

    async def stop(self, seconds):
        self.stopped_after = seconds


@pytest.fixture
def sink():
    return LinesInMemory()


@pytest.fixture
def audit(sink):
    return AuditFiles(sink, 7, lambda: 1_700_000_000_000)


START = {"time": 1_700_000_000_000, "node": 7, "peer": PEER[0], "listener": PEER[1]}


def test_login_names_principal_and_mechanism(audit, sink):
    audit.logged_in(*PEER, "PLAIN", ALICE, again=False)
    audit.logged_in(*PEER, "PLAIN", ALICE, again=True)
    login = {**START, "principal": "User:alice", "mechanism": "PLAIN"}
    assert sink.lines == [{**login, "event": "login"}, {**login, "event": "reauthentication"}]


def test_failed_login_names_reason(audit, sink):
    audit.login_failed(*PEER, "PLAIN", "wrong user name or password")
    assert sink.lines == [
        {
            **START,
            "event": "login-failed",
            "mechanism": "PLAIN",
            "reason": "wrong user name or password",
        }
    ]


def test_control_characters_of_names_are_escaped():
    class Blocks(LinesInMemory):
        def put(self, block, lines):
            self.lines.append(block)

    sink = Blocks()
    AuditFiles(sink, 7, lambda: 0).login_failed(*PEER, "PLAIN\x1b[2J", "\x9b2J")
    (line,) = sink.lines
    assert b'"mechanism":"PLAIN\\u001b[2J","reason":"\\u009b2J"}\n' in line


def test_refusal_names_request_operation_and_resource(audit, sink):
    audit.refused(*PEER, ALICE, "FETCH", "READ", "Topic:orders")
    assert sink.lines == [
        {
            **START,
            "event": "refused",
            "principal": "User:alice",
            "api": "FETCH",
            "operation": "READ",
            "resource": "Topic:orders",
        }
    ]


def test_change_names_kind_and_error(audit, sink):
    audit.changed(*PEER, ALICE, "quota", "set", "User:bob", error=42)
    assert sink.lines == [
        {
            **START,
            "event": "changed",
            "principal": "User:alice",
            "kind": "quota",
            "action": "set",
            "resource": "User:bob",
            "error": 42,
        }
    ]


def test_names_of_clients_are_bounded_and_stay_on_one_line(audit, sink):
    audit.refused(
        *PEER, Principal("User", "a\nb" * 10_000), "FETCH", "READ", "Topic:" + "x" * 99_999
    )
    (line,) = sink.lines
    assert len(json.dumps(line)) < 5_000


def test_closing_stops_the_sink(audit, sink):
    asyncio.run(audit.close(1.5))
    assert sink.stopped_after == 1.5


def test_default_does_nothing():
    NO_AUDIT_LOG.logged_in(*PEER, "PLAIN", ALICE, again=False)
    asyncio.run(NO_AUDIT_LOG.close(1))


def test_repeated_refusal_is_written_once_a_minute():
    sink, times = LinesInMemory(), [0]
    log = AuditFiles(sink, 0, lambda: times[0])
    row = ("SSL", Principal("User", "alice"), "FETCH", "READ", "TOPIC:orders")
    for port in range(100):
        log.refused(f"192.0.2.1:{port}", *row)
    assert len(sink.lines) == 1
    log.refused("192.0.2.2:1", *row)
    assert len(sink.lines) == 2
    times[0] += REFUSAL_INTERVAL_MS
    log.refused("192.0.2.1:1", *row)
    assert len(sink.lines) == 3
