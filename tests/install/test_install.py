"""From what was built to an answer, in every way to install it: what somebody types who has
nothing yet. The model comes from a hub on this machine (KVASIR_BUILT, KVASIR_WAYS: make
test-install)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_standin import StandIn, serving
from tests.install.ways import WAYS, Installed, run, size, unpacked
from tests.smollm2 import smollm2

REPO = "bartowski/SmolLM2-135M-Instruct-GGUF"
QUESTION = "What is the capital of France?"
BUILT = os.environ.get("KVASIR_BUILT")
"""The folder of the wheel, the Debian package and the image."""
ASKED = (os.environ.get("KVASIR_WAYS") or " ".join(WAYS)).split()
SUFFIX = {"deb": "*.deb", "image": "*.oci.tar"}
MAX_SECONDS = 15.0
MAX_BYTES = 140_000_000
"""By uv, on two idle cores."""
MAX_IMAGE_BYTES = 110_000_000

pytestmark = [
    pytest.mark.skipif(not BUILT, reason="KVASIR_BUILT says where the packages are"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def hub() -> Iterator[StandIn]:
    file = smollm2()
    files = {"SmolLM2-135M-Instruct-Q4_1.gguf": file.read_bytes()}
    with serving(StandIn({REPO: files})) as standin:
        yield standin


@pytest.mark.parametrize("way", ASKED)
def test_from_a_package_to_answers(way: str, tmp_path: Path, hub: StandIn) -> None:
    (package,) = Path(BUILT or "").glob(SUFFIX.get(way, "*.whl"))
    began = time.monotonic()
    installed = WAYS[way](package, tmp_path)
    after_install = time.monotonic() - began
    n_bytes = size(installed.folder)  # without bytecode, which the first runs write
    own = {"HF_ENDPOINT": hub.url, "no_proxy": "127.0.0.1", "KVASIR_CACHE": _cache(installed)}
    known = {**installed.variables, **own}
    command = list(installed.command)
    assert "kvasir" in run([*command, "--version"], known)
    run([*command, "pull", REPO], known)
    said = run([*command, "run", REPO, "--max-tokens", "12", QUESTION], known)
    seconds = time.monotonic() - began
    assert "Paris" in said
    _serves(command, known)
    told = json.loads(run(["sh", "-c", '"$@" || true', "sh", *command, "doctor", "--json"], known))
    assert "core" not in {each["check"] for each in told}, told  # one that loads, of this CPU
    figures = {
        "way": way,
        "package_bytes": package.stat().st_size,
        "installed_bytes": n_bytes,
        "install_seconds": round(after_install, 1),
        "to_first_answer_seconds": round(seconds, 1),
    }
    print(json.dumps(figures))
    if way == "uv" and os.environ.get("KVASIR_QUIET"):
        assert seconds <= MAX_SECONDS
        assert n_bytes <= MAX_BYTES


def _cache(installed: Installed) -> str:
    """A folder that the command can write, by the name that it knows."""
    if installed.home is None:
        return str(installed.folder.parent / "kvasir-cache")
    return installed.variables.get("KVASIR_CACHE", "/tmp/kvasir-cache")


def _serves(command: list[str], known: dict[str, str]) -> None:
    """The page, and an answer over HTTP; ends when it is told to."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = [*command, "serve", REPO, "--port", str(port), "--max-model-len", "512"]
    with subprocess.Popen(words, env=known, cwd="/", start_new_session=True) as server:
        try:
            _wait(f"{url}/ready", server)
            assert "<title>" in _get(f"{url}/ui/")
            body = {"model": REPO, "prompt": "The capital of France is", "max_tokens": 4}
            asked = urllib.request.Request(
                f"{url}/v1/completions",
                json.dumps(body | {"temperature": 0}).encode(),
                {"Content-Type": "application/json"},
            )
            assert "Paris" in _get(asked)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert server.poll() is None, "the server ended"
        try:
            _get(url)
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"{url} was not there after a minute")


def _get(asked: str | urllib.request.Request) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(asked, timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.skipif(not shutil.which("lintian"), reason="needs lintian")
@pytest.mark.skipif("deb" not in ASKED, reason="not asked for")
def test_lintian_finds_no_error() -> None:
    (package,) = Path(BUILT or "").glob("*.deb")
    run(["lintian", "--fail-on", "error", "--tag-display-limit", "0", str(package)], os.environ)


@pytest.mark.skipif("image" not in ASKED, reason="not asked for")
def test_an_image_is_small_and_runs_as_nobody_of_importance(tmp_path: Path) -> None:
    (image,) = Path(BUILT or "").glob("*.oci.tar")
    assert image.stat().st_size <= MAX_IMAGE_BYTES
    config = unpacked(image, tmp_path / "root")["config"]
    assert config["User"] == "65532:65532"
    root = tmp_path / "root"
    shells = [p for p in root.rglob("*") if p.name in ("sh", "bash", "dash", "perl", "apt", "dpkg")]
    assert [p for p in shells if p.is_file()] == []
    assert [p for p in root.rglob("*") if p.is_file() and p.stat().st_mode & 0o6000] == []
