"""Parsing of addresses: valid, invalid, and round trips."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.addresses import (
    Endpoint,
    KeyLocation,
    SecurityProtocol,
    StoreAddress,
    canonical_host,
    parse_admin,
    parse_endpoint,
    parse_key_location,
    parse_key_set_url,
    parse_name,
    parse_namespace,
    parse_network,
    parse_store,
    path_of_file_url,
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


SECRET = bytes.fromhex("14b1725b4a0b276162db628a0a6db5275f266c0773b5f48737f9404f9b9c10a5")


def test_key_has_the_forms_of_pulsar(tmp_path):
    """The key in base64 is the example of KoP's documentation."""
    in_base64 = "FLFyW0oLJ2Fi22KKCm21J18mbAdztfSHN/lAT5ucEKU="
    assert parse_key_location(f"data:;base64,{in_base64}") == KeyLocation(None, SECRET)
    assert parse_key_location(f"data:application/octet-stream;base64,{in_base64}").path is None
    assert parse_key_location(in_base64) == KeyLocation(None, SECRET)
    assert parse_key_location("file:///my%20keys/secret.key") == KeyLocation(
        Path("/my keys/secret.key")
    )
    assert parse_key_location("file:/secret.key") == KeyLocation(Path("/secret.key"))
    existing = tmp_path / "secret.key"
    existing.write_bytes(SECRET)
    assert parse_key_location(str(existing)) == KeyLocation(existing)


@pytest.mark.parametrize(
    "text",
    ["", "secret!", "data:;base64,", "data:;base64,s3cret!", "data:,s3cret", "data:s3cret",
     "file://host/s3cret", "file:s3cret", "/no/such/s3cret!", "file:///s3cret%00"],
)  # fmt: skip
def test_other_places_of_keys_are_refused_without_being_quoted(text):
    with pytest.raises(ValueError) as caught:
        parse_key_location(text)
    assert "s3cret" not in str(caught.value)


def test_key_in_a_setting_is_not_printed():
    location = KeyLocation(None, b"s3cret")
    assert "s3cret" not in f"{location} {location!r}"


@given(st.text(max_size=30) | st.text(max_size=20).map("data:;base64,".__add__))
def test_any_text_is_a_place_of_a_key_or_refused(text):
    with suppress(ValueError):
        parse_key_location(text)


@pytest.mark.parametrize(
    "url",
    ["https://id.example/a/keys?p=b_c", "https://id.example", "http://[::1]:80/keys", "file:///a"],
)
def test_url_of_a_key_set_is_accepted(url):
    assert parse_key_set_url(url) == url


def test_only_file_urls_have_a_path():
    assert path_of_file_url("file:///etc/a%20b") == Path("/etc/a b")
    assert path_of_file_url("https://id.example/keys") is None


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("*", "*"),
        ("a:b", "a:b"),
    ],
)
def test_clients_are_compared_by_one_form_of_their_address(text, host):
    assert canonical_host(text) == host
