"""Parsing of addresses: valid, invalid, and round trips."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.addresses import (
    Endpoint,
    SecurityProtocol,
    StoreAddress,
    parse_admin,
    parse_endpoint,
    parse_name,
    parse_namespace,
    parse_network,
    parse_store,
)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Endpoint("PLAINTEXT", "127.0.0.1", 9092)),
        ("SASL_SSL://kafka-1.example.com:0", Endpoint("SASL_SSL", "kafka-1.example.com", 0)),
        ("INTERNAL2://[::1]:65535", Endpoint("INTERNAL2", "::1", 65535)),
        ("A://my_host:1", Endpoint("A", "my_host", 1)),
    ],
)
def test_endpoint_round_trips(text, endpoint):
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
        ("PLAINTEXT://h:65536", "greater than 65535"),
        ("PLAINTEXT://[::g]:1", "not an IPv6 address"),
        ("PLAINTEXT://300.1.1.1:1", "not an IPv4 address"),
        ("PLAINTEXT://a b:1", "neither a host name"),
    ],
)
def test_invalid_endpoint_is_refused_with_reason(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_endpoint(text)


@given(st.text())
def test_any_text_is_endpoint_or_value_error(text):
    try:
        endpoint = parse_endpoint(text)
    except ValueError:
        return
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]"])
def test_all_spellings_of_wildcard_address_are_recognized(host):
    assert parse_endpoint(f"PLAINTEXT://{host}:9092").is_wildcard


def test_store_has_scheme_and_location():
    assert parse_store("lmdb:./data") == StoreAddress("lmdb", "./data")
    assert str(parse_store("lmdb:/var/lib/kopgate")) == "lmdb:/var/lib/kopgate"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("./data", "SCHEME:LOCATION"),
        ("redis:x", "unknown scheme 'redis'"),
        ("lmdb:", "no directory"),
        ("", "SCHEME:LOCATION"),
        ("pulsar://", "pulsar://HOST:6650"),
        ("pulsar://:6650", "pulsar://HOST:6650"),
        ("pulsar:h:6650", "pulsar://HOST:6650"),
        ("pulsar://h", "pulsar://HOST:6650"),
        ("pulsar://h:6650/", "pulsar://HOST:6650"),
        ("pulsar://h:6650,", "pulsar://HOST:6650"),
        ("pulsar://h:66500", "greater than 65535"),
        ("pulsar://1.2.3:1", "not an IPv4 address"),
    ],
)
def test_invalid_store_is_refused_with_reason(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_store(text)


@pytest.mark.parametrize(
    "text", ["pulsar://h:6650", "pulsar+ssl://a.example.com:6651,[::1]:6651,10.0.0.1:1"]
)
def test_pulsar_store_lists_brokers(text):
    assert str(parse_store(text)) == text
    assert parse_store(text).is_pulsar


@given(st.text())
def test_any_text_is_store_or_value_error(text):
    for whole in (text, f"pulsar://{text}"):
        try:
            store = parse_store(whole)
        except ValueError:
            continue
        assert parse_store(str(store)) == store


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://h:8080", "http://h:8080"),
        ("https://pulsar.example.com/", "https://pulsar.example.com"),
        ("https://[::1]:8443/behind/a/proxy/", "https://[::1]:8443/behind/a/proxy"),
    ],
)
def test_trailing_slash_of_admin_url_is_removed(text, url):
    assert parse_admin(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "h:8080",
        "pulsar://h:8080",
        "http://",
        "http://h:99999",
        "http://h:8080/a?b=c",
        "http://h:8080 ",
        "",
    ],
)
def test_invalid_admin_url_is_refused(text):
    with pytest.raises(ValueError, match="http://HOST:8080"):
        parse_admin(text)


@pytest.mark.parametrize(
    ("parse", "scheme"),
    [
        (parse_store, "pulsar"),
        (parse_store, "pulsar+ssl"),
        (parse_admin, "http"),
        (parse_admin, "pulsar"),
    ],
)
@pytest.mark.parametrize(
    "where", ["{}@h:1", "x:{}@h:1", "h:1@{}", "h:{}", "h:1/{}:2", "h:1?token={}"]
)
def test_secret_in_address_is_refused_and_not_quoted(parse, where, scheme):
    with pytest.raises(ValueError) as refused:
        parse(f"{scheme}://{where.format('eyJhbGciOi')}")
    assert "eyJhbGciOi" not in str(refused.value)


def test_pulsar_names_and_namespaces_are_validated():
    assert (parse_name("a-b=c:d.e_1"), parse_namespace("my-tenant/ns.1")) == (
        "a-b=c:d.e_1",
        "my-tenant/ns.1",
    )
    for text in ("", "a/b", "a b", "ä", "*", "a\n"):
        with pytest.raises(ValueError, match="not a valid name in Pulsar"):
            parse_name(text)
    for text in ("", "a", "a/", "/b", "a/b/c", "a/*", "${tenant}/default"):
        with pytest.raises(ValueError, match="not TENANT/NAMESPACE"):
            parse_namespace(text)


@pytest.mark.parametrize(
    ("protocol", "has_tls", "has_sasl"),
    [
        ("PLAINTEXT", False, False),
        ("SSL", True, False),
        ("SASL_PLAINTEXT", False, True),
        ("SASL_SSL", True, True),
    ],
)
def test_security_protocol_has_tls_and_sasl_flags(protocol, has_tls, has_sasl):
    assert (SecurityProtocol[protocol].has_tls, SecurityProtocol[protocol].has_sasl) == (
        has_tls,
        has_sasl,
    )


@pytest.mark.parametrize("text", ["192.0.2.1", "10.0.0.0/8", "2001:db8::1", "2001:db8::/32"])
def test_network_contains_its_first_address(text):
    assert ip_address(text.partition("/")[0]) in parse_network(text)


@pytest.mark.parametrize(
    "text", ["", "proxy.example.com", "10.0.0.1/8", "10.0.0.0/33", "192.0.2.1:5", "[::1]"]
)
def test_invalid_network_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"is not an IP address or network such as 192\.0\.2\.1"):
        parse_network(text)
