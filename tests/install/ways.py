"""Ways to install what was built, each into a folder of its own with nothing else in it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

SYSTEM_PATH = "/usr/bin:/bin"


@dataclass(frozen=True)
class Installed:
    """``command`` begins every command; ``folder`` has all that was installed."""

    command: tuple[str, ...]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    home: Path | None = None
    """A folder of the command's own view of files, where that is not everybody's."""


def variables(home: Path) -> dict[str, str]:
    """Of somebody who has nothing yet; packages come from where pip's configuration says."""
    home.mkdir(parents=True, exist_ok=True)
    found = {"HOME": str(home), "PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
    index = _pip("config", "get", "global.index-url") or os.environ.get("PIP_INDEX_URL", "")
    if index:
        found |= {"PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index}
    kept = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy")
    return found | {name: os.environ[name] for name in kept if name in os.environ}


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def run(command: list[str], known: Mapping[str, str], timeout: float = 300) -> str:
    """What it wrote. Raises AssertionError with it when it fails."""
    begin = {"env": dict(known), "cwd": "/", "timeout": timeout}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **begin)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def tool(name: str) -> str:
    """Where a program of this environment is."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert found is not None, f"{name} is not here: make test-install brings it"
    return found


def by_pip(wheel: Path, folder: Path) -> Installed:
    known = variables(folder / "home")
    run([sys.executable, "-m", "venv", str(folder / "env")], known)
    run([str(folder / "env/bin/pip"), "install", "-q", "--no-compile", str(wheel)], known)
    return Installed((str(folder / "env/bin/kvasir"),), folder / "env", known)


def _uv(folder: Path) -> dict[str, str]:
    known = variables(folder / "home")
    places = {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin", "UV_CACHE_DIR": "cache"}
    return known | {name: str(folder / place) for name, place in places.items()}


def by_uv(wheel: Path, folder: Path) -> Installed:
    known = _uv(folder)
    run([tool("uv"), "tool", "install", "-q", "--python", sys.executable, str(wheel)], known)
    return Installed((str(folder / "bin/kvasir"),), folder / "tools", known)


def by_uvx(wheel: Path, folder: Path) -> Installed:
    """``uvx kvasir-llm``: no install at all, and the name of the package is that of a script."""
    command = [tool("uv"), "tool", "run", "-q", "--python", sys.executable]
    command += ["--find-links", str(wheel.parent), "kvasir-llm"]
    return Installed(tuple(command), folder / "cache", _uv(folder))


def by_pipx(wheel: Path, folder: Path) -> Installed:
    known = variables(folder / "home")
    known |= {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "bin")}
    run([tool("pipx"), "install", "--python", sys.executable, str(wheel)], known)
    return Installed((str(folder / "bin/kvasir"),), folder / "pipx", known)


def by_deb(deb: Path, folder: Path) -> Installed:
    """Into a small Debian of its own, by its own tools, with what the package depends on."""
    root = folder / "root"
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    words = ["mmdebstrap", "--quiet", "--variant=minbase"]
    words.append(f"--customize-hook=copy-in {deb.resolve()} /tmp")
    words.append(f'--customize-hook=chroot "$1" apt-get install --yes --quiet /tmp/{deb.name}')
    known = {**os.environ, "PATH": f"/usr/sbin:/sbin:{SYSTEM_PATH}"}
    run([*words, suite, str(root)], known)
    return _inside(root, ("/usr/bin/kvasir",), {"PATH": SYSTEM_PATH, "HOME": "/tmp"}, "0:0")


def by_image(image: Path, folder: Path) -> Installed:
    """As a container's runtime would: layers one over the other, the image's user and variables."""
    root = folder / "root"
    config = unpacked(image, root)["config"]
    known = dict(line.split("=", 1) for line in config["Env"])
    assert config["Entrypoint"] == ["kvasir"]
    return _inside(root, ("/usr/bin/kvasir",), known, config["User"])


def unpacked(image: Path, root: Path) -> dict[str, dict[str, list[str]]]:
    """The image's configuration; its layers are in ``root``, checked by their digests."""
    with tarfile.open(image) as archive:

        def blob(digest: str) -> bytes:
            reader = archive.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
            assert reader is not None
            return reader.read()

        index = archive.extractfile("index.json")
        assert index is not None
        (entry,) = json.load(index)["manifests"]
        manifest = json.loads(blob(entry["digest"]))
        layers = [blob(each["digest"]) for each in manifest["layers"]]
        config: dict[str, dict[str, list[str]]] = json.loads(blob(manifest["config"]["digest"]))
    root.mkdir(parents=True)
    for layer in layers:
        piped = ["tar", "-xpz", "--numeric-owner", "-C", str(root)]
        subprocess.run(piped, input=layer, check=True)
    return config


def _inside(root: Path, command: tuple[str, ...], known: Mapping[str, str], user: str) -> Installed:
    """With /proc and /dev as containers have them, until the command ends."""
    binds = " && ".join(f"mount --bind /{name} '{root}/{name}'" for name in ("proc", "dev"))
    chroot = shutil.which("chroot", path=f"/usr/sbin:/sbin:{SYSTEM_PATH}")
    script = f"{binds} && exec {chroot} --userspec={user} '{root}' \"$@\""
    start = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
    return Installed((*start, *command), root, {"PATH": SYSTEM_PATH, **known}, root)


WAYS: dict[str, Callable[[Path, Path], Installed]] = {
    "pip": by_pip,
    "uv": by_uv,
    "uvx": by_uvx,
    "pipx": by_pipx,
    "deb": by_deb,
    "image": by_image,
}


def newest(folder: Path, pattern: str) -> Path:
    """Of the files that this interpreter can install: wheels of other versions may lie beside."""
    fit = {str(tag) for tag in sys_tags()}
    found = [
        path
        for path in folder.glob(pattern)
        if path.suffix != ".whl" or fit & {str(tag) for tag in parse_wheel_filename(path.name)[3]}
    ]
    assert found, f"{folder} has no {pattern} for this Python: make wheel, deb or image"
    return max(found, key=lambda path: path.stat().st_mtime)


def size(folder: Path) -> int:
    """Bytes of the files in it, each once."""
    seen = {(s.st_dev, s.st_ino): s.st_size for p in folder.rglob("*") if (s := p.lstat())}
    return sum(seen.values())
