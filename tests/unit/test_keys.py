"""API keys: how they are kept, what they allow, how long they hold."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import threading
from functools import partial
from pathlib import Path

import pytest

from kvasir.cli.main import run_command
from kvasir.config.serving import ServeOptions, check_keys
from kvasir.core.errors import CapacityError, ConfigError, KvasirError, RequestError
from kvasir.serve.keys import keyring
from kvasir.serve.keys.caller import ANYONE, Caller
from kvasir.serve.keys.key import (
    ADMIN_KEY,
    API_KEY,
    MAX_KEYS,
    MAX_SECRETS,
    Key,
    KeyLimits,
    Keys,
    create,
    digest,
    revoke,
    rotate,
)
from kvasir.serve.keys.keyfile import KeyFile
from kvasir.serve.keys.keyring import Keyring


def key(key_id: str = "alice", **fields: object) -> Key:
    return Key(key_id, ("inference",), (), created=0, **fields)  # type: ignore[arg-type]


def made(path: Path, *keys: Key) -> tuple[KeyFile, list[str]]:
    """A file with these keys, and their secrets."""
    file = KeyFile(path)
    return file, [file.edit(partial(create, made=each)) for each in keys or (key(),)]


def code(error: KvasirError) -> tuple[int, str]:
    return error.status, error.code


# The file


def test_secrets_are_random_and_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    _, secrets = made(path, *(key(f"k{i}") for i in range(50)))
    assert all(re.fullmatch(r"kvasir-[\w-]{43}", secret) for secret in secrets)
    assert len(set(secrets)) == 50
    text = path.read_text()
    assert not any(secret[7:] in text for secret in secrets)
    assert all(digest(secret.encode()) in text for secret in secrets)


def test_the_file_is_its_owners_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made(tmp_path / "keys")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    file, _ = made(path)
    path.chmod(0o620)
    with pytest.raises(ConfigError, match="others may write the key file"):
        file.read()


def test_a_change_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    file, _ = made(path)
    before = path.read_bytes()

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ConfigError, match=r"cannot write the key file .*: No space left"):
        file.edit(partial(create, made=key("bob")))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert sorted(x.name for x in tmp_path.iterdir()) == ["keys", "keys.lock"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "keys"
    made(tmp_path / "there/real")
    link.symlink_to("there/real")
    made(link, key("bob"))
    assert link.is_symlink() and list(KeyFile(link).read()) == ["alice", "bob"]


def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    made(path)
    threads = [
        threading.Thread(target=made, args=(path, *(key(f"k{i}-{j}") for j in range(5))))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(KeyFile(path).read()) == 21


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "truncated"),
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ('{"keys": [{}]}', r"`id` - at `\$.keys\[0\]`"),
        ('{"keys": [], "more": 1}', "unknown field `more`"),
        ('{"keys": [], "version": 2}', "version"),
        ('{"keys": [{"id":"a b","scopes":[],"secrets":[],"created":0}]}', "regex"),
        ('{"keys": [{"id":"a","scopes":["root"],"secrets":[],"created":0}]}', "root"),
        ('{"keys": [{"id":"a","scopes":[],"secrets":[{"sha256":"x"}],"created":0}]}', "regex"),
        ('{"keys": [{"id":"api-key","scopes":[],"secrets":[],"created":0}]}', "are no ids"),
        ("[" * 100_000, "damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=f"key file .* is damaged: .*{says}|{says}"):
        KeyFile(path).read()


def test_an_id_or_a_secret_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    made(path, key("alice"), key("bob"))
    text = path.read_text()
    for before, after in ((r'"id": "bob"', '"id": "alice"'), ('"sha256": "\\w+"', '"sha256": "0"')):
        path.write_text(re.sub(before, after.replace('"0"', f'"{"0" * 64}"'), text))
        with pytest.raises(ConfigError, match="occurs twice"):
            KeyFile(path).read()


def test_without_a_file_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make one with kvasir keys create"):
        Keyring(file=KeyFile(tmp_path / "none"))


# Keys


def test_an_id_is_never_used_twice() -> None:
    keys, _ = create({}, key())
    keys, _ = revoke(keys, "alice", 5)
    for taken in ("alice", API_KEY, ADMIN_KEY):
        with pytest.raises(RequestError) as caught:
            create(keys, key(taken))
        assert code(caught.value) == (409, "key_exists")


def test_keys_are_bounded(tmp_path: Path) -> None:
    keys = {f"k{i}": key(f"k{i}") for i in range(MAX_KEYS)}
    with pytest.raises(RequestError, match="there are 2000 keys") as caught:
        create(keys, key("more"))
    assert code(caught.value) == (409, "too_many_keys")
    file = KeyFile(tmp_path / "keys")
    file.edit(lambda _: ({**keys, "more": key("more")}, None))
    with pytest.raises(ConfigError, match="holds 2001 keys, the most are 2000"):
        file.read()


def test_older_secrets_hold_for_the_overlap(tmp_path: Path) -> None:
    now = [1000.0]
    file, (first,) = made(tmp_path / "keys")
    ring = Keyring(file=file, clock=lambda: now[0])
    second = asyncio.run(ring.edit(partial(rotate, key_id="alice", overlap=60, now=1000)))
    assert {ring.client(x.encode()).key_id for x in (first, second)} == {"alice"}
    now[0] = 1060.0
    assert ring.client(second.encode()).key_id == "alice"
    with pytest.raises(RequestError) as caught:
        ring.client(first.encode())
    assert code(caught.value) == (401, "expired_api_key")
    asyncio.run(ring.edit(partial(rotate, key_id="alice", overlap=0, now=1060)))
    with pytest.raises(RequestError) as caught:
        ring.client(second.encode())
    assert code(caught.value) == (401, "invalid_api_key")


def test_a_later_rotation_prolongs_nothing_and_secrets_are_bounded() -> None:
    keys: Keys
    keys, first = create({}, key())
    keys, _ = rotate(keys, "alice", 10, 0)
    keys, _ = rotate(keys, "alice", 1000, 5)
    kept = {secret.sha256: secret.expires for secret in keys["alice"].secrets}
    assert kept[digest(first.encode())] == 10
    for _ in range(20):
        keys, last = rotate(keys, "alice", 1000, 5)
    assert len(keys["alice"].secrets) == MAX_SECRETS
    assert keys["alice"].secrets[-1].sha256 == digest(last.encode())


def test_what_is_over_is_not_rotated() -> None:
    keys, _ = create({}, key(expires=10))
    with pytest.raises(RequestError) as caught:
        rotate(keys, "alice", 0, 10)
    assert code(caught.value) == (409, "key_not_active")
    with pytest.raises(RequestError) as caught:
        rotate(keys, "bob", 0, 0)
    assert code(caught.value) == (404, "not_found")


# The ring


def refusal(ring: Keyring, secret: bytes) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        ring.client(secret)
    return code(caught.value)


def test_whose_a_secret_is(tmp_path: Path) -> None:
    limits = KeyLimits(n=2)
    file, (alice, bob) = made(
        tmp_path / "keys", key(limits=limits), key("bob", expires=5, limits=KeyLimits(n=3))
    )
    ring = Keyring("one", "root", file, clock=lambda: 4.0)
    assert ring.client(alice.encode()) == Caller("alice", frozenset(("inference",)), limits)
    assert ring.client(bob.encode()).key_id == "bob"
    assert ring.client(b"one").scopes == {"inference", "state", "metrics"}
    assert ring.known(b"root").scopes == {"admin"}
    for wrong in (b"", b"kvasir-", alice[:-1].encode(), alice.upper().encode(), b"\xff"):
        assert refusal(ring, wrong) == (401, "invalid_api_key")
    ring = Keyring(file=file, clock=lambda: 5.0)
    assert refusal(ring, bob.encode()) == (401, "expired_api_key")
    assert refusal(ring, b"one") == (401, "invalid_api_key")


class Untouchable(bytes):
    """A secret that can be read as a whole, and compared with nothing."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a secret was compared")

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = startswith = find = __contains__ = __eq__

    def __hash__(self) -> int:
        raise AssertionError("a secret was looked up")


def test_r102_no_secret_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest is, of which nobody can choose a part: whether a guess begins as a secret does is
    nowhere to be seen. Every guess costs one digest and one look, right or wrong."""
    file, (alice,) = made(tmp_path / "keys", key())
    ring = Keyring("one", "root", file)
    looked: list[bytes] = []

    def counted(secret: bytes) -> str:
        looked.append(secret)
        return digest(secret)

    monkeypatch.setattr(keyring, "digest", counted)
    assert ring.client(Untouchable(alice.encode())).key_id == "alice"
    assert ring.known(Untouchable(b"root")).scopes == {"admin"}
    for guess in (alice[:-1] + "~", "~" + alice[1:], alice[:9], "", "on", "~" * len(alice)):
        assert refusal(ring, Untouchable(guess.encode())) == (401, "invalid_api_key")
    assert len(looked) == 8


def test_whose_work_goes_on(tmp_path: Path) -> None:
    """After its request: by the id alone, as the key is now."""
    file, _ = made(
        tmp_path / "keys", key(limits=KeyLimits(n=2)), key("bob", expires=5, limits=KeyLimits(n=3))
    )
    ring = Keyring("one", file=file, clock=lambda: 5.0)
    assert ring.named("") is ANYONE
    assert ring.named("alice") == Caller("alice", frozenset(("inference",)), KeyLimits(n=2))
    assert ring.named(API_KEY).scopes == {"inference", "state", "metrics"}
    assert ring.named("bob") == Caller("bob", frozenset(), KeyLimits(n=3))
    assert ring.named("nobody") == Caller("nobody", frozenset())


def test_without_keys_anyone_asks_and_an_empty_file_is_no_open_door(tmp_path: Path) -> None:
    assert Keyring().client(b"") is ANYONE
    assert Keyring(admin_key="root").client(b"") is ANYONE
    path = tmp_path / "keys"
    path.write_text('{"keys": []}')
    path.chmod(0o600)
    assert refusal(Keyring(file=KeyFile(path)), b"") == (401, "invalid_api_key")


def test_r108_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    file, (secret,) = made(path)
    ring = Keyring(file=file)
    path.write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        ring.reload()
    assert ring.client(secret.encode()).key_id == "alice"
    path.unlink()
    with pytest.raises(ConfigError, match="no key file"):
        ring.reload()
    assert ring.client(secret.encode()).key_id == "alice"


def test_a_reload_forgets_revoked_keys_and_no_use(tmp_path: Path) -> None:
    file, (alice, bob) = made(
        tmp_path / "keys", key(limits=KeyLimits(requests_per_minute=2)), key("bob")
    )
    ring = Keyring(file=file)
    caller = ring.client(alice.encode())
    ring.meter(caller).begin()
    file.edit(partial(revoke, key_id="bob", now=0))
    ring.reload()
    assert refusal(ring, bob.encode()) == (401, "invalid_api_key")
    assert ring.meter(caller).n_open == 1
    ring.meter(caller).begin()
    with pytest.raises(CapacityError):
        ring.meter(caller).begin()


def test_keys_of_options_must_differ_and_say_something() -> None:
    with pytest.raises(ConfigError, match="clients would be operators"):
        check_keys(ServeOptions(api_key="x", admin_key="x"))
    for name in ("api_key", "admin_key"):
        with pytest.raises(ConfigError, match=f"{name} is empty"):
            check_keys(ServeOptions(**{name: ""}))


# The command


def command(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[int, str, str]:
    status = run_command(["keys", words[0], "--api-key-file", str(path), *words[1:]])
    found = capsys.readouterr()
    return status, found.out, found.err


def test_the_command_makes_and_ends_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    asked = ("--scopes", "inference,metrics", "--requests-per-minute", "60", "--max-n", "2")
    status, secret, _ = command(capsys, path, "create", "alice", *asked, "--expires-in", "90d")
    assert status == 0 and secret.startswith("kvasir-")
    assert command(capsys, path, "create", "bob", "--classes", "batch")[0] == 0
    ring = Keyring(file=KeyFile(path))
    caller = ring.client(secret.strip().encode())
    assert caller.scopes == {"inference", "metrics"}
    assert caller.limits == KeyLimits(requests_per_minute=60, n=2)
    status, shown, _ = command(capsys, path, "list")
    assert [line.split()[:3] for line in shown.splitlines()] == [
        ["alice", "active", "inference,metrics"],
        ["bob", "active", "inference,state"],
    ]
    assert "requests_per_minute 60, n 2, expires 2" in shown and secret.strip() not in shown
    _, other, _ = command(capsys, path, "rotate", "alice", "--overlap", "1h")
    ring.reload()
    assert {ring.client(x.strip().encode()).key_id for x in (secret, other)} == {"alice"}
    assert command(capsys, path, "revoke", "alice")[0] == 0
    ring.reload()
    assert refusal(ring, other.strip().encode()) == (401, "invalid_api_key")
    assert '"state": "revoked"' in command(capsys, path, "list", "--json")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create", "a b"), "cannot be made: .*id"),
        (("create", "a", "--scopes", "root"), "cannot be made: .*root"),
        (("create", "a", "--classes", "best"), "cannot be made: .*best"),
        (("create", "a", "--max-n", "0"), "cannot be made: .*limits.n"),
        (("create", "a", "--expires-in", "soon"), "'soon' is no time: write it as 30s"),
        (("rotate", "nobody"), "no key 'nobody'"),
        (("revoke", "nobody"), "no key 'nobody'"),
    ],
)
def test_what_the_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    status, out, err = command(capsys, tmp_path / "keys", *words)
    assert (status, out) == (2, "") and re.search(says, err), err
