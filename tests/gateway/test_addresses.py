"""Addresses: what is taken, what is refused, and that the text comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.addresses import Endpoint, SecurityProtocol, StoreAddress, parse_endpoint, parse_store


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Endpoint("PLAINTEXT", "127.0.0.1", 9092)),
        ("SASL_SSL://kafka-1.example.com:0", Endpoint("SASL_SSL", "kafka-1.example.com", 0)),
        ("INTERNAL2://[::1]:65535", Endpoint("INTERNAL2", "::1", 65535)),
        ("A://my_host:1", Endpoint("A", "my_host", 1)),
    ],
)
def test_an_endpoint_is_read_and_written_alike(text, endpoint):
    assert parse_endpoint(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("127.0.0.1:9092", "NAME://HOST:PORT"),
        ("PLAINTEXT://127.0.0.1", "NAME://HOST:PORT"),
        ("PLAINTEXT://::1:9092", "NAME://HOST:PORT"),
        ("PLAINTEXT://h:9092/", "NAME://HOST:PORT"),
        ("PLAINTEXT://h:+1", "NAME://HOST:PORT"),
        ("PLAINTEXT://h:٣", "NAME://HOST:PORT"),
        ("PLAINTEXT://h:9092\n", "NAME://HOST:PORT"),
        ("plaintext://h:1", "capitals"),
        ("://h:1", "capitals"),
        ("PLAINTEXT://:9092", "no host"),
        ("PLAINTEXT://h:65536", "beyond 65535"),
        ("PLAINTEXT://[::g]:1", "not an IPv6 address"),
        ("PLAINTEXT://300.1.1.1:1", "not an IPv4 address"),
        ("PLAINTEXT://a b:1", "neither a host name"),
    ],
)
def test_a_wrong_endpoint_is_refused_with_the_reason(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_endpoint(text)


@given(st.text())
def test_any_text_is_an_endpoint_or_a_value_error(text):
    try:
        endpoint = parse_endpoint(text)
    except ValueError:
        return
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]"])
def test_every_spelling_of_every_interface_is_a_wildcard(host):
    assert parse_endpoint(f"PLAINTEXT://{host}:9092").is_wildcard


def test_a_store_is_a_scheme_and_a_location():
    assert parse_store("lmdb:./data") == StoreAddress("lmdb", "./data")
    assert str(parse_store("lmdb:/var/lib/kopgate")) == "lmdb:/var/lib/kopgate"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("./data", "SCHEME:LOCATION"), ("redis:x", "unknown scheme 'redis'"), ("lmdb:", "no directory"), ("", "SCHEME:LOCATION")],
)
def test_a_wrong_store_is_refused_with_the_reason(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_store(text)


@pytest.mark.parametrize(
    ("protocol", "has_tls", "has_sasl"),
    [("PLAINTEXT", False, False), ("SSL", True, False), ("SASL_PLAINTEXT", False, True), ("SASL_SSL", True, True)],
)
def test_a_protocol_says_what_it_asks(protocol, has_tls, has_sasl):
    assert (SecurityProtocol[protocol].has_tls, SecurityProtocol[protocol].has_sasl) == (has_tls, has_sasl)
