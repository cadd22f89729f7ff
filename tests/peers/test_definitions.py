"""The message definitions that kafka-python lacks have the same layout as those in the jar of
Kafka's clients.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from gateway.protocol.wire import schemas
from tests.testkit.cache import CannotInstall, maven_jars

pytestmark = pytest.mark.peer

KAFKA = "4.4.0"
OURS = sorted(Path(*schemas.__path__).glob("*.json"))

#: The keys that define the byte layout; the others are documentation or are used by Kafka's own
#: checks.
LAYOUT = ("name", "type", "versions", "nullableVersions", "default", "tag", "taggedVersions")

#: kafka-python's name for an int32 that holds flags.
BITFIELD = "bitfield"


@pytest.fixture(scope="module")
def jar():
    try:
        jars = maven_jars(
            (
                f"org.apache.kafka:kafka-clients:{KAFKA}",
                "org.slf4j:slf4j-api:1.7.36",
                "org.slf4j:slf4j-simple:1.7.36",
            )
        )
    except CannotInstall as reason:
        pytest.skip(str(reason))
    with zipfile.ZipFile(jars / f"kafka-clients-{KAFKA}.jar") as opened:
        yield opened


def parse(text):
    return json.loads(re.sub(r"(?m)^\s*//.*$", "", text))


def laid_out(message):
    """The parts of a definition that affect the encoding, with shared structures expanded."""
    shared = {struct["name"]: struct["fields"] for struct in message.get("commonStructs", ())}

    def rows(fields):
        return [row(field) for field in fields]

    def row(field):
        said = {key: str(field[key]) for key in LAYOUT if key in field}
        said["type"] = said["type"].replace(BITFIELD, "int32")
        inner = field.get("fields") or shared.get(field["type"].removeprefix("[]"))
        return said | ({"fields": rows(inner)} if inner else {})

    return {
        key: message[key] for key in ("apiKey", "type", "name", "validVersions", "flexibleVersions")
    } | {"fields": rows(message["fields"])}


@pytest.mark.parametrize("ours", OURS, ids=[path.stem for path in OURS])
def test_message_definition_has_same_layout_as_kafka(ours, jar):
    kafka = jar.read(f"common/message/{ours.name}").decode()
    assert laid_out(parse(ours.read_text("utf-8"))) == laid_out(parse(kafka))


def test_message_definitions_exist():
    assert OURS
