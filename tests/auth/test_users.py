"""The password file: reading, writing and reloading."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth import users
from auth.users import PasswordHash, UsersFile, UsersFileError, edit_users

# RFC 7914, section 12: scrypt (P="pleaseletmein", S="SodiumChloride", N=16384, r=8, p=1, dkLen=64).
RFC_7914_DIGEST = bytes.fromhex(
    "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2d5432955613f0fcf62d49705242a9af9e61e85dc0d651e40dfcf017b45575887"
)
RFC_7914 = (
    "$scrypt$ln=14,r=8,p=1$U29kaXVtQ2hsb3JpZGU"
    f"${base64.b64encode(RFC_7914_DIGEST).decode().rstrip('=')}"
)


class FakeTime:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def quick(password):
    return PasswordHash.of(password, log_cost=1)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "users"
    write(path, f"alice:{quick('s3cret')}\n")
    return path


def write(path, text):
    path.write_text(text, "utf-8")
    path.chmod(0o600)


@pytest.fixture
def clock():
    return FakeTime()


@pytest.fixture
def problems():
    return []


def test_rfc_7914_test_vector_matches():
    assert PasswordHash.parse(RFC_7914).matches("pleaseletmein")
    assert not PasswordHash.parse(RFC_7914).matches("pleaseletmein ")


def test_new_hash_equals_hashlib_result_for_its_salt():
    stored = PasswordHash.of("s3cret")
    assert stored.digest == hashlib.scrypt(b"s3cret", salt=stored.salt, n=16384, r=8, p=1, dklen=32)
    assert len(stored.salt) == 16


def test_hashes_of_same_password_differ():
    assert str(quick("s3cret")) != str(quick("s3cret"))


@given(password=st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_hash_parses_back_from_its_text(password):
    assert PasswordHash.parse(str(quick(password))).matches(password)


def test_hash_repr_hides_salt_and_digest():
    assert (
        repr(PasswordHash.parse(RFC_7914))
        == "PasswordHash(log_cost=14, block_size=8, parallelism=1)"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3cret",
        "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$" + "A" * 43,
        "$scrypt$ln=14,r=8,p=1$c2FsdA$",
        "$scrypt$ln=14,r=8,p=1$c2FsdA$" + "A" * 45,
        "$scrypt$ln=0,r=8,p=1$c2FsdA$" + "A" * 43,
        "$scrypt$ln=16,r=1,p=1$c2FsdA$" + "A" * 43,
        "$scrypt$ln=14,r=8,p=0$c2FsdA$" + "A" * 43,
        "$scrypt$ln=99,r=8,p=1$c2FsdA$" + "A" * 43,
        "$scrypt$ln=18,r=8,p=1$c2FsdA$" + "A" * 43,
        "$scrypt$ln=14,r=8,p=1$c2FsdA$" + "A" * 43 + "\n",
    ],
)
def test_malformed_hash_is_rejected(text):
    with pytest.raises(ValueError):
        PasswordHash.parse(text)


@given(
    st.text(max_size=80)
    | st.from_regex(
        r"\$scrypt\$ln=\d{1,2},r=\d{1,2},p=\d{1,2}\$[A-Za-z0-9+/]{1,9}\$[A-Za-z0-9+/]{22,30}",
        fullmatch=True,
    )
)
def test_any_text_is_hash_within_memory_limit_or_value_error(text):
    try:
        stored = PasswordHash.parse(text)
    except ValueError:
        return
    assert 128 * stored.block_size * stored.parallelism * 2**stored.log_cost <= 128 << 20


def test_only_correct_password_of_known_user_passes(path, clock, problems):
    known = UsersFile(path, clock, problems.append)
    assert known.check("alice", "s3cret")
    assert not known.check("alice", "wrong")
    assert not known.check("bob", "s3cret")
    assert problems == []


@pytest.fixture
def costs(monkeypatch):
    """The parameters of the scrypt calls: n, r, p and the sizes of salt and digest."""
    found = []
    scrypt = hashlib.scrypt

    def counted(password, *, salt, n, r, p, maxmem, dklen):
        found.append((n, r, p, len(salt), dklen))
        return scrypt(password, salt=salt, n=n, r=r, p=p, maxmem=maxmem, dklen=dklen)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    return found


def test_wrong_password_and_unknown_user_cost_the_same(path, clock, problems, costs):
    known = UsersFile(path, clock, problems.append)
    for name in ("alice", "mallory", "x" * 100_000, "ålice"):
        assert not known.check(name, "wrong")
    assert costs == [(2, 8, 1, 16, 32)] * 4


def test_unknown_users_cost_as_users_do_if_costs_differ(path, clock, problems, costs):
    """With the cost of the most expensive user for all, a faster answer would name a user."""
    stored = [PasswordHash.of("a", log_cost=1) for _ in range(6)]
    stored += [PasswordHash.of("b", log_cost=3) for _ in range(2)]
    write(path, "".join(f"user{number}:{one}\n" for number, one in enumerate(stored)))
    found = UsersFile(path, clock, problems.append)
    costs.clear()
    names = [f"unknown{number}" for number in range(400)]
    for name in names:
        assert not found.check(name, "a")
    seen = [cost[0] for cost in costs]
    # A quarter has the higher cost; the binomial distribution's standard deviation is 9.
    assert set(seen) == {2, 8}
    assert 60 < seen.count(8) < 140
    # A name's cost does not change with a restart, as that of a user does not.
    costs.clear()
    again = UsersFile(path, clock, problems.append)
    for name in names:
        again.check(name, "a")
    assert [cost[0] for cost in costs] == seen


def test_correct_password_is_cached_for_a_short_time(path, clock, problems):
    found = UsersFile(path, clock, problems.append)
    assert not found.is_cached("alice", "s3cret")
    assert found.check("alice", "s3cret")
    assert found.is_cached("alice", "s3cret")
    clock.now = users.CACHE_SECONDS + 0.1
    assert not found.is_cached("alice", "s3cret")


def test_wrong_password_and_unknown_user_are_not_cached(path, clock, problems):
    found = UsersFile(path, clock, problems.append)
    for name, password in (("alice", "wrong"), ("bob", "s3cret")):
        assert not found.check(name, password)
        assert not found.is_cached(name, password)
    assert found.check("alice", "s3cret")
    assert not found.is_cached("alice", "wrong")
    assert not found.is_cached("ali", "ces3cret")


def test_cached_password_expires_when_user_changes(path, clock, problems):
    found = UsersFile(path, clock, problems.append)
    assert found.check("alice", "s3cret")
    write(path, f"alice:{quick('other')}\n")
    clock.now = users.RECHECK_SECONDS
    assert not found.is_cached("alice", "s3cret")
    assert not found.check("alice", "s3cret")
    assert not found.is_cached("alice", "s3cret")
    assert found.check("alice", "other")
    assert found.is_cached("alice", "other")


def test_password_cache_is_limited(path, clock, problems, monkeypatch):
    monkeypatch.setattr(users, "MAX_CACHED_PASSWORDS", 2)
    write(path, "".join(f"{name}:{quick(name)}\n" for name in "abc"))
    found = UsersFile(path, clock, problems.append)
    assert all(found.check(name, name) for name in "abc")
    assert [found.is_cached(name, name) for name in "abc"] == [False, True, True]


def test_empty_file_rejects_every_user(path, clock, problems):
    write(path, "# no users yet\n\n")
    assert not UsersFile(path, clock, problems.append).check("alice", "s3cret")


def test_changed_file_is_reloaded_after_recheck_interval(path, clock, problems):
    known = UsersFile(path, clock, problems.append)
    write(path, f"alice:{quick('new')}\nbob:{quick('b0b')}\n")
    clock.now = 0.9
    assert known.check("alice", "s3cret")
    clock.now = 1.0
    assert known.check("alice", "new")
    assert known.check("bob", "b0b")
    assert not known.check("alice", "s3cret")


@pytest.mark.parametrize("text", ["alice", "alice:s3cret\n"])
def test_broken_change_is_reported_once_and_users_kept(path, clock, problems, text):
    known = UsersFile(path, clock, problems.append)
    write(path, text)
    for clock.now in (1.0, 2.0, 3.0):
        assert known.check("alice", "s3cret")
    (problem,) = problems
    assert problem.startswith(f"{path}, line 1: ")
    assert "s3cret" not in problem


def test_vanished_file_keeps_users_and_restored_file_is_reloaded(path, clock, problems):
    known = UsersFile(path, clock, problems.append)
    path.unlink()
    clock.now = 1.0
    assert known.check("alice", "s3cret")
    assert len(problems) == 1
    write(path, f"bob:{quick('b0b')}\n")
    clock.now = 2.0
    assert known.check("bob", "b0b")


def test_threads_authenticate_while_file_changes(path, clock, problems):
    known = UsersFile(path, clock, problems.append)
    outcomes = []

    def log_in():
        outcomes.extend(known.check("alice", "s3cret") for _ in range(50))

    threads = [threading.Thread(target=log_in) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        clock.now += 1.0
        with edit_users(path) as found:
            found["bob"] = quick("b0b")
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 200
    assert problems == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_file_accessible_to_others_is_reported(path, clock, problems, mode):
    path.chmod(mode)
    UsersFile(path, clock, problems.append)
    assert problems == [
        f"{path} is accessible to other users (mode {mode:04o}); run chmod 600 {path}"
    ]


def test_missing_file_at_startup_names_command_to_create_it(tmp_path, clock, problems):
    with pytest.raises(UsersFileError, match="kopgate users add"):
        UsersFile(tmp_path / "none", clock, problems.append)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# fine\nalice:x\n", "line 2: the hash is not"),
        (":" + RFC_7914, "line 1: a user name must have 1 to 249"),
        ("a\tb:" + RFC_7914, "line 1: a user name must not contain"),
        (f"a:{RFC_7914}\na:{RFC_7914}", "line 2: duplicate user name"),
    ],
)
def test_broken_line_is_reported_with_its_number(tmp_path, text, complaint):
    path = tmp_path / "users"
    write(path, text)
    with pytest.raises(UsersFileError, match=complaint):
        users.read_users(path)


def test_non_utf8_file_is_rejected(tmp_path):
    (tmp_path / "users").write_bytes(b"\xff\xfe")
    with pytest.raises(UsersFileError, match="not UTF-8"):
        users.read_users(tmp_path / "users")


def test_windows_line_endings_are_accepted(tmp_path):
    write(tmp_path / "users", f"alice:{RFC_7914}\r\n")
    assert list(users.read_users(tmp_path / "users")) == ["alice"]


def test_new_file_is_accessible_to_owner_only(tmp_path):
    with edit_users(tmp_path / "users") as found:
        found["alice"] = quick("s3cret")
    assert stat.S_IMODE((tmp_path / "users").stat().st_mode) == 0o600
    assert users.read_users(tmp_path / "users")["alice"].matches("s3cret")


def test_failed_edit_leaves_file_unchanged_and_no_temporary_file(path):
    before = path.read_bytes()

    def fail():
        with edit_users(path) as found:
            found.clear()
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["users"]


def test_edit_through_symlink_keeps_symlink(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path)
    with edit_users(link) as found:
        del found["alice"]
    assert link.is_symlink()
    assert users.read_users(path) == {}


def test_concurrent_edits_lose_nothing(path):
    def add(name):
        with edit_users(path) as found:
            found[name] = quick(name)

    threads = [threading.Thread(target=add, args=(f"user{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(users.read_users(path)) == {"alice", *(f"user{i}" for i in range(8))}


def test_missing_folder_is_named_in_error(tmp_path):
    with pytest.raises(UsersFileError, match="none"), edit_users(tmp_path / "none" / "users"):
        pass
