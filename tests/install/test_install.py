"""From what was built to an answer, in every way to install it: what somebody types who has
nothing yet. Models come from a hub and a package on this machine (KVASIR_BUILT, KVASIR_WAYS:
make test-install). What was measured goes into the file that KVASIR_RESULT names."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import write
from kvasir.weights.default import FILE_NAME, PACKAGE
from tests.hub_standin import StandIn, serving
from tests.install.ways import WAYS, Installed, newest, run, size, unpacked
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
NOBODY_SAID = "bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact"
"""What lintian finds wrong with a package of which DEBEMAIL does not say who made it."""

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


@pytest.fixture(scope="module")
def measured() -> Iterator[dict[str, Any]]:
    """By way, for those that pass."""
    ways = dict[str, Any]()
    yield ways
    result = os.environ.get("KVASIR_RESULT")
    if result and ways:
        about = {"kind": "install-ways", "command": f'make test-install WAYS="{" ".join(ASKED)}"'}
        write({**about, "machine": fingerprint(), "results": ways}, Path(result))


@pytest.mark.parametrize("way", ASKED)
def test_from_a_package_to_answers(
    way: str, tmp_path: Path, hub: StandIn, measured: dict[str, Any]
) -> None:
    package = newest(Path(BUILT or ""), SUFFIX.get(way, "*.whl"))
    with Meter() as meter:
        installed = WAYS[way](package, tmp_path)
        after_install = time.perf_counter()
        n_bytes = size(installed.folder)  # without bytecode, which the first runs write
        own = {"HF_ENDPOINT": hub.url, "no_proxy": "127.0.0.1", "KVASIR_CACHE": _cache(installed)}
        known = {**installed.variables, **own}
        command = list(installed.command)
        assert "kvasir" in run([*command, "--version"], known)
        run([*command, "pull", REPO], known)
        said = run([*command, "run", REPO, "--max-tokens", "12", QUESTION], known)
        to_answer = time.perf_counter() - after_install
    assert "Paris" in said
    _serves(command, known)
    assert "Paris" in run(
        [*command, "run", "--max-tokens", "12", QUESTION], _default(installed, known)
    )
    told = json.loads(run(["sh", "-c", '"$@" || true', "sh", *command, "doctor", "--json"], known))
    assert "core" not in {each["check"] for each in told}, told  # one that loads, of this CPU
    measured[way] = {
        "package_bytes": package.stat().st_size,
        "installed_bytes": n_bytes,
        "install_seconds": round(meter.seconds - to_answer, 1),
        "to_first_answer_seconds": round(meter.seconds, 1),
        "foreign": meter.foreign,
    }
    print(json.dumps({way: measured[way]}))
    if way == "uv" and os.environ.get("KVASIR_QUIET"):
        assert meter.seconds <= MAX_SECONDS
        assert n_bytes <= MAX_BYTES


def _cache(installed: Installed) -> str:
    """A folder that the command can write, by the name that it knows."""
    if installed.home is None:
        return str(installed.folder.parent / "kvasir-cache")
    return installed.variables.get("KVASIR_CACHE", "/tmp/kvasir-cache")


def _default(installed: Installed, known: dict[str, str]) -> dict[str, str]:
    """So that pip finds the default model's package, and nothing else, in a folder here."""
    name, _, version = PACKAGE.partition("==")
    stem = f"{name.replace('-', '_')}-{version}"
    folder = (installed.home or installed.folder.parent) / "tmp" / "links"
    folder.mkdir(parents=True)
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.write(smollm2(), f"{name.replace('-', '_')}/{FILE_NAME}")
        wheel.writestr(f"{stem}.dist-info/METADATA", about)
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    seen = "/tmp/links" if installed.home else str(folder)
    unset = {name: x for name, x in known.items() if not name.startswith(("PIP_", "UV_DEFAULT"))}
    return unset | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": seen}


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
    package = newest(Path(BUILT or ""), "*.deb")
    words = ["lintian", "--fail-on", "error", "--tag-display-limit", "0"]
    if not os.environ.get("DEBEMAIL"):
        words += ["--suppress-tags", NOBODY_SAID]
    run([*words, str(package)], os.environ)


@pytest.mark.skipif("image" not in ASKED, reason="not asked for")
def test_an_image_is_small_and_runs_as_nobody_of_importance(tmp_path: Path) -> None:
    image = newest(Path(BUILT or ""), "*.oci.tar")
    assert image.stat().st_size <= MAX_IMAGE_BYTES
    config = unpacked(image, tmp_path / "root")["config"]
    assert config["User"] == "65532:65532"
    root = tmp_path / "root"
    shells = [p for p in root.rglob("*") if p.name in ("sh", "bash", "dash", "perl", "apt", "dpkg")]
    assert [p for p in shells if p.is_file()] == []
    assert [p for p in root.rglob("*") if p.is_file() and p.stat().st_mode & 0o6000] == []
