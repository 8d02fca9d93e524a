"""The unit that systemd is given."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kvasir.cli.main import run_command
from kvasir.cli.service_unit import unit_text
from tests import tiny
from tests.tiny import write_gguf_model

MOST_EXPOSED = 2.0
"""Of systemd's own scale, 0 to 10."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_gguf_model(tiny.llama(), tmp_path / "tiny.gguf", "Q8_0")


def test_a_unit_for_the_user(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert run_command(["service", "install", "--user", str(model), "--port", "9000"]) == 0
    text = (tmp_path / "config/systemd/user/kvasir.service").read_text()
    assert f"serve {model} --port 9000\n" in text and "Type=notify" in text
    assert "systemctl --user enable --now" in capsys.readouterr().out.replace(
        "systemctl --user daemon-reload && ", ""
    )


def test_a_unit_of_the_system(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["service", "install", "--print", str(model)]) == 0
    text = capsys.readouterr().out
    assert f"BindReadOnlyPaths={model.parent}" in text
    for line in ("DynamicUser=yes", "WatchdogSec=60", "ProtectSystem=strict", "IPAddressDeny=any"):
        assert line in text.splitlines()


def test_files_that_are_links_are_seen(tmp_path: Path) -> None:
    folder, blobs = tmp_path / "model", tmp_path / "blobs"
    for each in (folder, blobs):
        each.mkdir()
    (blobs / "abc").write_text("{}")
    (folder / "config.json").symlink_to(blobs / "abc")
    text = unit_text(["kvasir"], folder, is_user=False)
    assert f"BindReadOnlyPaths={folder} {blobs}" in text


def test_what_systemd_reads_as_signs(tmp_path: Path) -> None:
    text = unit_text(["kvasir", "a b", 'x"y', "%h", "$HOME"], tmp_path, is_user=True)
    assert 'ExecStart=kvasir "a b" "x\\"y" %%h $$HOME\n' in text


def test_an_open_address_is_reached(tmp_path: Path) -> None:
    text = unit_text(["kvasir", "serve", "--host", "0.0.0.0"], tmp_path, is_user=False)
    assert "IPAddressDeny" not in text


@pytest.mark.parametrize("form", [["--api-key-file={}"], ["--api-key-file", "{}"]])
def test_keys_are_handed_over_by_systemd(
    form: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text("{}")
    said = [word.format(keys) for word in form]
    more = ["--speculative-config", '{"method": "a=b"}']
    assert run_command(["service", "install", "--print", str(model), *said, *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"LoadCredential=keys:{keys}" in lines
    (start,) = (line for line in lines if line.startswith("ExecStart="))
    assert "a=b" in start and start.endswith(" --api-key-file %d/keys")


def test_a_secret_is_not_written_into_a_unit(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for said in (["--api-key", "abc"], ["--admin-key=abc"]):
        assert run_command(["service", "install", "--print", str(model), *said]) == 2
        told = capsys.readouterr()
        assert "everybody can read" in told.err and "ExecStart" not in told.out


@pytest.mark.parametrize(
    "arguments",
    [["--name", "a/b"], ["/none.gguf"], ["--api-key-file"], ["--api-key-file", "/none"]],
)
def test_what_makes_no_unit(arguments: list[str], model: Path) -> None:
    given = arguments if arguments[0].startswith("/") else [str(model), *arguments]
    assert run_command(["service", "install", "--print", *given]) == 2


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_finds_little_to_say(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "kvasir.service"
    place.write_text(unit_text(["/bin/true"], model, is_user=False))
    command = ["systemd-analyze", "security", "--offline=true", str(place)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    exposed = next(x for x in said.splitlines() if "Overall exposure" in x).split(":")[1].split()[0]
    assert float(exposed) <= MOST_EXPOSED, said


def test_a_unit_has_no_option_that_serve_refuses(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (["--prot", "9000"], ["--port", "many"], ["--port"]):
        assert run_command(["service", "install", "--print", str(model), *wrong]) == 2
        said = capsys.readouterr()
        assert said.out == "" and "--po" in said.err, wrong
