"""Hubs that lie, names that are nearly alike, and what is made or removed while it is in use:
nothing is lost that was there."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.cli.main import run_command
from kvasir.library.hub import Hub
from kvasir.library.links import link
from kvasir.library.shelf import Shelf
from tests.hub_standin import StandIn, serving

REPO = "org/tiny-GGUF"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(StandIn({REPO: {"tiny.Q4_0.gguf": b"GGUF" + bytes(10_000)}})) as stand_in:
        monkeypatch.setenv("HF_ENDPOINT", stand_in.url)
        yield stand_in


@pytest.mark.parametrize("commit", ["../../../../", "a/b", "", "x" * 99])
def test_a_hub_whose_commit_is_a_path(hub: StandIn, commit: str, tmp_path: Path) -> None:
    """It would become one here."""
    hub.commit = commit
    assert run_command(["pull", f"{REPO}:Q4_0", "--force"]) == 1
    assert not list((tmp_path / "cache").rglob("*.partial")) and not Shelf().models()


@pytest.mark.parametrize("name", ["a\x1b]0;b.Q4_0.gguf", "x" * 250 + ".Q4_0.gguf", "../x.gguf"])
def test_names_of_files_that_a_hub_may_not_say(hub: StandIn, name: str) -> None:
    """ESC would reach the terminal; a name needs room for what is put behind it."""
    hub.files = {REPO: {name: b"GGUF" + bytes(100)}}
    assert Hub(hub.url).open(REPO, "").files == ()


@pytest.mark.parametrize("others", [("a/b", "a-b"), ("x:8b", "x-8b")])
def test_links_of_names_that_are_nearly_alike(others: tuple[str, str], tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "library")
    for i, name in enumerate(others):
        (tmp_path / f"{i}.gguf").write_bytes(b"GGUF%d" % i)
        link(shelf, tmp_path / f"{i}.gguf", name)
    found = [shelf.path(shelf.known(name)).read_bytes() for name in others]
    assert found == [b"GGUF0", b"GGUF1"]


def test_a_repository_is_removed_with_all_its_quantizations(
    hub: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    other, tags = "org/other", ("Q4_0", "Q8_0")
    names = [f"{REPO}:{tag}" for tag in tags]
    hub.files = {
        REPO: {f"x.{tag}.gguf": b"GGUF" + tag.encode() for tag in tags},
        other: {"x.Q4_K_M.gguf": b"GGUF"},
    }
    for name in (*names, f"{other}:Q4_K_M"):
        assert run_command(["pull", name, "--force"]) == 0
    capsys.readouterr()
    assert run_command(["rm", REPO.upper()]) == 0
    said = capsys.readouterr().out
    assert all(f"{name} removed" in said for name in names)
    assert [model.name for model in Shelf().models()] == [f"{other}:Q4_K_M"]
    assert not Shelf().orphans()
    for name in names:
        assert run_command(["pull", name, "--force"]) == 0
    assert run_command(["rm", names[1], other]) == 0
    assert [model.name for model in Shelf().models()] == [names[0]]
    assert run_command(["rm", names[1]]) == 1


def test_another_name_of_a_link_stays_what_it_is(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "library")
    for i in range(2):
        (tmp_path / f"{i}.gguf").write_bytes(b"GGUF%d" % i)
    link(shelf, tmp_path / "0.gguf", "mine")
    shelf.copy("mine", "other")
    shelf.remove("mine")
    link(shelf, tmp_path / "1.gguf", "mine")
    assert shelf.path(shelf.known("other")).read_bytes() == b"GGUF0"
    assert shelf.path(shelf.known("mine")).read_bytes() == b"GGUF1"


@pytest.mark.parametrize("base", ["./Modelfile", "nothing", "{own}", "./m.gguf"])
def test_what_is_made_anew_loses_nothing_before_it_is_there(
    hub: StandIn, base: str, tmp_path: Path
) -> None:
    """Nor what is called nearly so, nor the file that it is made of."""
    assert run_command(["pull", f"{REPO}:Q4_0", "--force"]) == 0
    shelf, pulled = Shelf(), f"{REPO}:Q4_0"
    own = shelf.path(shelf.known(pulled))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    file = tmp_path / "Modelfile"
    file.write_text(f"FROM {base.format(own=own)}\n")
    is_well = base not in ("./Modelfile", "nothing")
    name = pulled if base == "{own}" else REPO
    assert run_command(["create", name, "-f", str(file)]) == (0 if is_well else 1)
    assert shelf.is_whole(shelf.known(pulled)) and own.read_bytes().startswith(b"GGUF")


def test_a_pull_that_runs_is_not_pruned(hub: StandIn) -> None:
    assert run_command(["pull", f"{REPO}:Q4_0", "--force"]) == 0
    shelf = Shelf()
    place = shelf.path(shelf.known(f"{REPO}:Q4_0"))
    partial = place.rename(place.with_name(place.name + ".partial"))
    with place.with_name(place.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as who fetches it
        assert shelf.prune() == 0 and partial.exists()
    assert shelf.prune() > 0 and not partial.exists()


def test_links_to_what_has_gone_are_not_pruned(tmp_path: Path) -> None:
    """The disk may come back; a Modelfile's words would not."""
    shelf, file = Shelf(tmp_path / "library"), tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    link(shelf, file, "mine")
    file.unlink()
    assert not shelf.is_whole(shelf.known("mine")) and shelf.prune() == 0
    file.write_bytes(b"GGUF")
    assert shelf.is_whole(shelf.known("mine"))
