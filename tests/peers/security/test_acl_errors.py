"""Each API, its lowest and highest version, with different rights: the errors are Kafka's 3.9.2."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from kafka.protocol.admin.acl import CreateAclsRequest, DescribeAclsRequest
from kafka.protocol.admin.topics import CreateTopicsRequest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from auth.users import PasswordHash, edit_users
from gateway import handlers as handlers  # registers their routes
from gateway.protocol.routes import supported_versions
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import FIRST_FLEXIBLE_VERSION
from gateway.security.acls import CLUSTER_NAME, AclOperation, AclResource
from tests.fakes.connection import request as frame_of
from tests.gateway.handlers.handler_calls import decode_response
from tests.gateway.security.requests_by_api import error_codes, request_of
from tests.testkit.certificates import Authority
from tests.testkit.gateway import gateway
from tests.testkit.kafka import Kafka, Secured

pytestmark = pytest.mark.peer

_TOPIC, _GROUP, _CLUSTER = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER
_ID = AclResource.TRANSACTIONAL_ID
#: Rights by user.
RIGHTS: Mapping[str, list[tuple[str, AclResource]]] = {
    "stranger": [],
    "describer": [("DESCRIBE", _TOPIC), ("DESCRIBE", _GROUP), ("DESCRIBE", _CLUSTER)],
    "reader": [("READ", _TOPIC), ("READ", _GROUP)],
    "writer": [("WRITE", _TOPIC), ("WRITE", _ID)],
    "configurer": [
        ("DESCRIBE_CONFIGS", _TOPIC),
        ("ALTER_CONFIGS", _TOPIC),
        ("ALTER_CONFIGS", _CLUSTER),
    ],
    "operator": [("ALTER", _TOPIC), ("ALTER", _CLUSTER), ("CREATE", _CLUSTER), ("DELETE", _GROUP)],
}
NAMES = {_TOPIC: "orders", _GROUP: "readers", _CLUSTER: CLUSTER_NAME, _ID: "payments"}

#: Change what later requests would find.
LAST = [ApiKey.DELETE_RECORDS, ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS, ApiKey.DELETE_TOPICS]
#: Limit for Kafka to apply the ACLs on a busy machine.
ACL_SECONDS = 60.0

#: Logging in again is not part of this test.
SKIPPED = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


COORDINATOR_STARTING = {14, 15, 16}

#: APIs with other errors than in Kafka 3.9.2 for clients that it allows, and why.
EXPLAINED = {
    "OFFSET_COMMIT v0": "Kafka keeps these offsets in ZooKeeper, which KRaft does not have",
    "OFFSET_FETCH v0": "Kafka keeps these offsets in ZooKeeper, which KRaft does not have",
    "WRITE_TXN_MARKERS": "there are no transactions",
    "DESCRIBE_QUORUM": "there is no metadata quorum",
    "ADD_RAFT_VOTER": "there is no metadata quorum",
    "REMOVE_RAFT_VOTER": "there is no metadata quorum",
    "UPDATE_FEATURES v0": "there are no features; Kafka ignores the removal of an unknown one",
}
REFUSALS = {29, 30, 31, 53}


class Connection:
    """A client that sends one request at a time."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 60)

    def close(self) -> None:
        self._socket.close()

    def call(self, asked: Any, version: int) -> Any:
        asked.API_VERSION = version
        frame = frame_of(asked)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._read(4))
        body = self._read(size)
        key = ApiKey(asked.API_KEY)
        is_flexible = key is not ApiKey.API_VERSIONS and version >= FIRST_FLEXIBLE_VERSION[key]
        return decode_response(asked, body[5 if is_flexible else 4 :], version)

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            if not part:
                raise ConnectionError("closed by the broker")
            found += part
        return bytes(found)

    def log_in(self, user: str) -> None:
        assert self.call(SaslHandshakeRequest(version=1, mechanism="PLAIN"), 1).error_code == 0
        token = f"\0{user}\0{user}-secret".encode()
        reply = self.call(SaslAuthenticateRequest(version=1, auth_bytes=token), 1)
        assert reply.error_code == 0


def without_retries(client: Connection, asked: Any, version: int) -> set[int]:
    """The error codes of the reply, other than those of a coordinator that is starting."""
    deadline = monotonic() + 60
    while (codes := error_codes(client.call(asked, version)) - {0}) & COORDINATOR_STARTING:
        assert monotonic() < deadline
        sleep(0.1)
    return codes


def prepare(plain: str) -> Any:
    """Create the topic, a group and the ACLs as a super user; return the topic's id."""
    with closing(Connection(plain)) as admin:
        topic = CreateTopicsRequest.CreatableTopic(
            name="orders", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        asked = CreateTopicsRequest(
            version=7, topics=[topic], timeout_ms=60_000, validate_only=False
        )
        (row,) = admin.call(asked, 7).topics
        assert row.error_code == 0
        for key, key_type in (("readers", 0), ("payments", 1)):
            without_retries(admin, FindCoordinatorRequest(version=1, key=key, key_type=key_type), 1)
        offsets = request_of(
            ApiKey.OFFSET_COMMIT, 2, generation_id_or_member_epoch=-1, member_id=""
        )
        assert without_retries(admin, offsets, 2) == set()
        acls = [
            CreateAclsRequest.AclCreation(
                resource_type=resource,
                resource_name=NAMES[resource],
                resource_pattern_type=3,
                principal=f"User:{user}",
                host="*",
                operation=AclOperation[operation],
                permission_type=3,
            )
            for user, rights in RIGHTS.items()
            for operation, resource in rights
        ]
        assert error_codes(admin.call(CreateAclsRequest(version=2, creations=acls), 2)) == {0}
        wait_for_acls(admin, len(acls))
        return row.topic_id


def wait_for_acls(admin: Connection, count: int) -> None:
    """Kafka's controller answers before the broker applies the ACLs."""
    everything = DescribeAclsRequest(
        version=2,
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    end = monotonic() + ACL_SECONDS
    while sum(len(row.acls) for row in admin.call(everything, 2).resources) < count:
        assert monotonic() < end
        sleep(0.05)


def versions(plain: str) -> dict[int, tuple[int, int]]:
    with closing(Connection(plain)) as one:
        reply = one.call(ApiVersionsRequest(version=0), 0)
        return {row.api_key: (row.min_version, row.max_version) for row in reply.api_keys}


def requests(of_kafka: Mapping[int, tuple[int, int]]) -> Iterator[tuple[ApiKey, int]]:
    """The APIs of both, in the lowest and the highest common version."""
    served = supported_versions()
    for key in [*(one for one in served if one not in LAST), *LAST]:
        if key in of_kafka and key not in SKIPPED:
            lowest = max(served[key][0], of_kafka[key][0])
            highest = min(served[key][1], of_kafka[key][1])
            yield from ((key, version) for version in sorted({lowest, highest}))


def results(
    plain: str, secured: str, asked: list[tuple[ApiKey, int]]
) -> dict[tuple[str, str], list[int]]:
    found = {}
    topic_id = prepare(plain)
    for key, version in asked:
        by_id = key is ApiKey.FETCH
        for user in RIGHTS:
            with closing(Connection(secured)) as client:
                client.log_in(user)
                body = request_of(key, version, **({"topic_id": topic_id} if by_id else {}))
                body.API_VERSION = version
                try:
                    codes = sorted(without_retries(client, body, version))
                except ConnectionError:
                    codes = [-999]
            found[f"{key.name} v{version}", user] = codes
    return found


@pytest.fixture(scope="module")
def of_both(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[tuple[str, str], list[int]], dict[tuple[str, str], list[int]]]:
    folder = tmp_path_factory.mktemp("acls")
    certificate, key = Authority().sign("127.0.0.1").write(folder, "server")
    both = folder / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    users = folder / "users.json"
    with edit_users(users) as stored:
        for user in RIGHTS:
            stored[user] = PasswordHash.of(f"{user}-secret", log_cost=4)
    with Kafka.start(
        secured=Secured(tuple((user, f"{user}-secret") for user in RIGHTS), both),
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
        group_coordinator_rebalance_protocols="classic,consumer",
        transaction_state_log_replication_factor="1",
    ) as kafka:
        plain, secured = kafka.bootstrap, kafka.listeners["SASL_PLAINTEXT"]
        asked = list(requests(versions(plain)))
        reference = results(plain, secured, asked)
    with gateway(
        Path(folder),
        listeners=("PLAINTEXT", "SASL_PLAINTEXT"),
        node_id=1,
        authorizer="acls",
        super_users="User:ANONYMOUS",
        users_file=users,
    ) as server:
        at = {name: f"{host}:{port}" for name, (host, port) in server.addresses.items()}
        return reference, results(at["PLAINTEXT"], at["SASL_PLAINTEXT"], asked)


def test_errors_by_rights_are_those_of_kafka(of_both: Any) -> None:
    reference, ours = of_both
    assert len(reference) > 500
    different = {
        case: (codes, ours[case]) for case, codes in reference.items() if ours[case] != codes
    }
    found = {
        next((name for name in EXPLAINED if case[0].startswith(name)), case) for case in different
    }
    assert found == set(EXPLAINED), different
    assert not any(REFUSALS.intersection(codes) for codes, _ in different.values())
    # Each right and its absence occur.
    assert {tuple(codes) for codes in reference.values()} > {(), (29,), (30,), (31,), (53,)}
