"""Files come whole, or not at all: after cuts, stalls, lies, redirects, a full disk and kill -9."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvasir.core.errors import ModelError
from kvasir.library import transfer
from kvasir.library.hub import Hub, HubRepo
from kvasir.library.journal import MIN_PART, N_PARTS, SYNC_BYTES, PartJournal, divided
from kvasir.library.journal import _read as read_journal
from kvasir.library.quants import HubFile
from kvasir.library.transfer import CHUNK, TransferPatience, fetch_file
from tests.hub_standin import COMMIT, Faults, StandIn, serving

ROOT = Path(__file__).parents[2]
REPO, NAME = "org/tiny", "tiny.Q4_K_M.gguf"
DATA = hashlib.shake_256(b"a model").digest(MIN_PART * 4 + 12_345)
FILE = HubFile(NAME, len(DATA), f"sha256:{hashlib.sha256(DATA).hexdigest()}")
QUICK = TransferPatience(stall=0.5, n_tries=3, pause=0.01, tell=0.01)
TWICE = 32 << 20
"""Bytes that may be fetched twice."""


def hub(**faults: object) -> StandIn:
    return StandIn({REPO: {NAME: DATA}}, Faults(**faults))  # type: ignore[arg-type]


def fetch(stand_in: StandIn, place: Path, file: HubFile = FILE, token: str | None = None) -> None:
    source = Hub(stand_in.url, token).source(HubRepo(REPO, COMMIT, (file,)), file)
    fetch_file(source, file, place, lambda done, total: None, QUICK)


def left(place: Path) -> list[str]:
    return sorted(path.name for path in place.parent.iterdir())


FAULTS: dict[str, dict[str, object]] = {
    "none": {},
    "cut": {"cuts": 9},
    "stalled": {"stalls": 4},
    "busy": {"busy": 2},
    "busy for no number": {"busy": 2, "busy_for": "\xb2"},
    "busy for ever": {"busy": 1, "busy_for": "-1"},
    "cut and busy": {"cuts": 3, "busy": 2, "stalls": 1},
    "no ranges": {"knows_ranges": False},
    "no ranges and cut": {"knows_ranges": False, "cuts": 5},
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_comes_whole(name: str, tmp_path: Path) -> None:
    place = tmp_path / "models" / NAME
    with serving(hub(**FAULTS[name])) as stand_in:
        fetch(stand_in, place)
    assert place.read_bytes() == DATA
    assert left(place) == [NAME]
    assert stand_in.sent <= len(DATA) + TWICE


def test_no_ranges_and_cut_for_ever(tmp_path: Path) -> None:
    says = "always the whole file, ended early"
    faults = {"knows_ranges": False, "cuts": 10**6}
    with serving(hub(**faults)) as stand_in, pytest.raises(ModelError, match=says):
        fetch(stand_in, tmp_path / NAME)


def test_what_is_removed_meanwhile_is_told(tmp_path: Path) -> None:
    """By another process: kvasir rm."""
    place = tmp_path / NAME

    def forget(done: int, n_bytes: int) -> None:
        place.with_name(NAME + ".partial").unlink(missing_ok=True)

    with serving(hub()) as stand_in:
        source = Hub(stand_in.url).source(HubRepo(REPO, COMMIT, (FILE,)), FILE)
        with pytest.raises(ModelError, match="was removed while it was fetched: pull it again"):
            fetch_file(source, FILE, place, forget, QUICK)


def test_four_ranges_at_a_time(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with serving(hub(pause=0.0005)) as stand_in:
        source = Hub(stand_in.url).source(HubRepo(REPO, COMMIT, (FILE,)), FILE)
        fetch_file(source, FILE, tmp_path / NAME, lambda *said: told.append(said), QUICK)
    assert len(stand_in.asked) == 4 and stand_in.sent == len(DATA)
    assert told[-1] == (len(DATA), len(DATA)) and told == sorted(told)


@pytest.mark.parametrize(
    ("faults", "says", "stays"),
    [
        ({"flips": True}, "its hash is .* it was not kept", False),
        ({"grown": 7}, f"has {len(DATA) + 7} bytes, {len(DATA)} were announced", True),
        ({"busy": 99}, "status 503, 3 times in a row.*pull it again to go on", True),
        ({"cuts": 10**6, "cut_bytes": 0}, "3 times in a row", True),
        ({"says": f"bytes 0-9/{'9' * 5000}"}, "did not say which range it sends", True),
    ],
)
def test_what_is_wrong_has_no_name(
    faults: dict[str, object], says: str, stays: bool, tmp_path: Path
) -> None:
    place = tmp_path / NAME
    with serving(hub(**faults)) as stand_in, pytest.raises(ModelError, match=says):
        fetch(stand_in, place)
    assert not place.exists()
    assert left(place) == ([NAME + ".partial", NAME + ".parts"] if stays else [])


def test_another_file_of_that_name_begins_anew(tmp_path: Path) -> None:
    """The repository has changed between two pulls."""
    place = tmp_path / NAME
    other = DATA[::-1]
    file = HubFile(NAME, len(other), f"sha256:{hashlib.sha256(other).hexdigest()}")
    with serving(hub(busy=10**6, cuts=0)) as stand_in, pytest.raises(ModelError):
        fetch(stand_in, place)
    with serving(StandIn({REPO: {NAME: other}})) as stand_in:
        fetch(stand_in, place, file)
    assert place.read_bytes() == other


@pytest.mark.parametrize("same_host", [True, False])
def test_a_token_follows_no_redirect_to_another_host(same_host: bool, tmp_path: Path) -> None:
    with serving(hub()) as store, serving(hub()) as front:
        if same_host:
            fetch(front, tmp_path / NAME, token="secret")
            assert set(front.tokens) == {"Bearer secret"}
            return
        front.faults.redirects_to = store.url
        fetch(front, tmp_path / NAME, token="secret")
    assert set(front.tokens) == {"Bearer secret"}
    assert set(store.tokens) == {""}
    assert (tmp_path / NAME).read_bytes() == DATA


@pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirect_leads_to_no_other_kind_of_address(where: str, tmp_path: Path) -> None:
    with serving(hub(redirects_to=where)) as stand_in, pytest.raises(ModelError, match="redirect"):
        fetch(stand_in, tmp_path / NAME)


def test_a_disk_that_is_too_small_is_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transfer.shutil.disk_usage(tmp_path)
    small = real._replace(free=1 << 20)
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda path: small)
    with serving(hub()) as stand_in, pytest.raises(ModelError, match=r"1 MiB are free.*prune"):
        fetch(stand_in, tmp_path / NAME)
    assert stand_in.sent == 0 and left(tmp_path / NAME) == []


def test_a_disk_that_gets_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, written = os.pwrite, []

    def full(file: int, data: bytes, at: int) -> int:
        written.append(len(data))
        if sum(written) > 4 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, at)

    monkeypatch.setattr("kvasir.library.journal.os.pwrite", full)
    place = tmp_path / NAME
    with serving(hub()) as stand_in, pytest.raises(ModelError, match="kvasir rm") as caught:
        fetch(stand_in, place)
    assert caught.value.code == "disk_full" and not place.exists()
    monkeypatch.setattr("kvasir.library.journal.os.pwrite", real)
    with serving(hub()) as stand_in:
        fetch(stand_in, place)
    assert place.read_bytes() == DATA and left(place) == [NAME]


def test_two_pulls_share_one_download(tmp_path: Path) -> None:
    place = tmp_path / NAME
    with serving(hub(pause=0.001)) as stand_in:
        threads = [threading.Thread(target=fetch, args=(stand_in, place)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert stand_in.sent == len(DATA)
    assert place.read_bytes() == DATA and left(place) == [NAME]


LOST = N_PARTS * (SYNC_BYTES + CHUNK)
SCRIPT = """
import sys
from pathlib import Path
from kvasir.library.hub import Hub, HubRepo
from kvasir.library.quants import HubFile
from kvasir.library.transfer import fetch_file
url, place, n_bytes, digest = sys.argv[1:]
file = HubFile("tiny.Q4_K_M.gguf", int(n_bytes), digest)
source = Hub(url).source(HubRepo("org/tiny", "0123456789abcdef", (file,)), file)
fetch_file(source, file, Path(place), lambda done, total: None)
"""


def synced(place: Path) -> int:
    """Bytes that a journal vouches for."""
    _, done = read_journal(place.with_name(place.name + ".parts"))
    return sum(done.values())


def written(place: Path) -> int:
    """Bytes that are in the file, vouched for or not."""
    path = place.with_name(place.name + ".partial")
    data = path.read_bytes() if path.exists() else b""
    pieces = (data[start:end].rstrip(b"\0") for start, end in divided(len(DATA)))
    return sum(map(len, pieces))


def test_kill_9_loses_little(tmp_path: Path) -> None:
    """At moments all over the file: the bytes are right, and what was written before each kill is
    vouched for but for the last of each range."""
    place = tmp_path / NAME
    command = [sys.executable, "-c", SCRIPT, "URL", str(place), str(len(DATA)), FILE.digest]
    n_kills = 0
    with serving(hub(pause=0.002)) as stand_in:
        command[3] = stand_in.url
        for i in range(6):
            before, kept = stand_in.sent, synced(place)
            with subprocess.Popen(command, cwd=ROOT) as process:
                wanted = min((3 * i + 1) << 20, len(DATA) - kept)
                while stand_in.sent - before < wanted and process.poll() is None:
                    time.sleep(0.002)
                process.send_signal(signal.SIGKILL)
            if place.exists():
                break
            n_kills += 1
            assert written(place) - synced(place) <= LOST
        stand_in.faults.pause = 0.0
        subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    assert n_kills >= 4
    assert place.read_bytes() == DATA and left(place) == [NAME]


def test_what_the_journal_says_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when its last line was not finished; what it does not say is fetched again."""
    monkeypatch.setattr("kvasir.library.journal.SYNC_SECONDS", float("inf"))
    place, lines = tmp_path / "x.partial", tmp_path / "x.parts"
    journal = PartJournal(place, lines, len(DATA), "d")
    assert [(part.start, part.end) for part in journal.parts] == list(divided(len(DATA)))
    for part in journal.parts:
        journal.write(part, DATA[part.start : part.start + (5 << 20)])
        journal.write(part, DATA[part.at : part.at + 1000])
    kept = lines.read_bytes()
    journal.close()
    lines.write_bytes(kept + b"3 99999")
    again = PartJournal(place, lines, len(DATA), "d")
    assert [part.done for part in again.parts] == [5 << 20] * 4
    for part in again.parts:
        assert place.read_bytes()[part.start : part.at] == DATA[part.start : part.at]
    again.close()
    other = PartJournal(place, lines, len(DATA), "another digest")
    assert other.n_done == 0
    other.close()


@pytest.mark.parametrize(
    "text", [b"", b"{}\n", b"\xff\n", b'{"n_bytes":5,"digest":"","bounds":[[3,1]]}\n0 5\n']
)
def test_a_damaged_journal_says_nothing(text: bytes, tmp_path: Path) -> None:
    place, lines = tmp_path / "x.partial", tmp_path / "x.parts"
    place.write_bytes(bytes(5))
    lines.write_bytes(text)
    journal = PartJournal(place, lines, 5, "")
    assert journal.n_done == 0
    journal.close()


def test_files_of_git_are_checked_too(tmp_path: Path) -> None:
    data = b'{"model_type": "llama"}'
    digest = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    for said, is_right in ((digest, True), ("0" * 40, False)):
        file = HubFile("config.json", len(data), f"git:{said}")
        with serving(StandIn({REPO: {"config.json": data}})) as stand_in:
            if is_right:
                fetch(stand_in, tmp_path / "config.json", file)
            else:
                with pytest.raises(ModelError, match="hash"):
                    fetch(stand_in, tmp_path / "other.json", file)
    assert (tmp_path / "config.json").read_bytes() == data
