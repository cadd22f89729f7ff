"""Converted batches in lz4 and snappy are readable by real clients of formats 0 and 1, whether
compressible or not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.legacy_clients.brokers import are_required
from tests.legacy_clients.clients import Span, consume, table
from tests.records.sample_records import LZ4, SNAPPY, Sample, batch
from tests.testkit.cache import CannotInstall
from tests.testkit.gateway import GatewayProcess, gateway

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("codecs")]

OLD_CLIENTS = ["java-0.9.0.1", "java-0.10.0.1", "java-0.10.2.2", "kafka-python-1.3.5"]
TOPICS = {LZ4: "packed-lz4", SNAPPY: "packed-snappy"}


def contents() -> list[list[bytes]]:
    """The values of each batch: incompressible, compressible, and more than one block of
    either.
    """
    chance = random.Random(1)
    noise = [chance.randbytes(1024) for _ in range(15)]
    words = [b"the same words, number %d, again and again " % n * 25 for n in range(15)]
    return [
        noise,
        words,
        [*noise, *words] * 8,
        [chance.randbytes(70_000), b"x" * 70_000, chance.randbytes(70_000)],
        [b""],
    ]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway(tmp_path_factory.mktemp("gateway")) as started, started.peer() as peer:
        for codec, topic in TOPICS.items():
            peer.create_topic(topic)
            for values in contents():
                records = [Sample(n, 1000 + n, b"k%d" % n, value) for n, value in enumerate(values)]
                assert peer.produce(topic, batch(records, codec=codec)).error_code == 0
            # The first batch in snappy is not converted by the kernel, which then loads a library.
            peer.fetch(topic, 0, version=3, max_bytes=1)
        yield started


@pytest.mark.parametrize("client", OLD_CLIENTS)
@pytest.mark.parametrize("codec", TOPICS)
def test_old_client_reads_every_record(running, client, codec):
    host, port = running.address
    expected = [(b"k%d" % n, value) for values in contents() for n, value in enumerate(values)]
    span = Span(TOPICS[codec], 0, 0, len(expected))
    try:
        got = consume(table()[client], f"{host}:{port}", [span])
    except CannotInstall as reason:
        (pytest.fail if are_required() else pytest.skip)(str(reason))
    assert [(record.key, record.value) for record in got] == expected
    assert [record.offset for record in got] == list(range(len(expected)))
