from __future__ import annotations

from gateway.topics.reply_cache import MAX_REPLIES, ReplyCache


def test_cached_body_is_returned_for_same_key() -> None:
    cache = ReplyCache()
    cache.put("all", 1, b"body")
    assert cache.get("all", 1) == b"body"
    assert cache.get("some", 1) is None


def test_new_version_clears_cache() -> None:
    cache = ReplyCache()
    cache.put("all", 1, b"body")
    assert cache.get("all", 2) is None
    cache.put("some", 2, b"other")
    assert (cache.get("all", 1), len(cache), cache.cached_bytes) == (None, 1, 5)


def test_least_recently_used_bodies_are_evicted_over_byte_limit() -> None:
    cache = ReplyCache(max_bytes=10)
    for name in ("a", "b"):
        cache.put(name, 1, bytes(4))
    cache.get("a", 1)
    cache.put("c", 1, bytes(4))
    assert [name for name in ("a", "b", "c") if cache.get(name, 1)] == ["a", "c"]
    assert cache.cached_bytes == 8


def test_body_above_limit_is_not_cached() -> None:
    cache = ReplyCache(max_bytes=10)
    cache.put("a", 1, bytes(11))
    assert (len(cache), cache.cached_bytes) == (0, 0)


def test_body_cached_twice_counts_once() -> None:
    cache = ReplyCache()
    cache.put("a", 1, bytes(4))
    cache.put("a", 1, bytes(6))
    assert (len(cache), cache.cached_bytes) == (1, 6)


def test_number_of_bodies_is_limited() -> None:
    cache = ReplyCache()
    for number in range(MAX_REPLIES + 5):
        cache.put(number, 1, b"")
    assert len(cache) == MAX_REPLIES
