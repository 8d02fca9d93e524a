"""Makes an OCI image of a Debian package: ``image.py DEB SYSTEM FOLDER``.

SYSTEM is a tar of the system below it, as ``mmdebstrap --variant=extract`` writes it: no daemon,
no base image and nobody's registry take part. The image has two layers and no shell; the server
runs as a user of its own. SOURCE_DATE_EPOCH is the time of all files.

The archive is an OCI image layout (https://github.com/opencontainers/image-spec), which also has
the table that ``docker load`` of older versions asks for.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import marshal
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

USER = 65532
"""Nobody's on usual systems, for volumes."""
STATE = "var/lib/kvasir"
UNWANTED = re.compile(
    r"(dev|proc|sys|run|tmp|boot|media|mnt|srv|opt|home|root"
    r"|var/(cache|log|backups|lib/(apt|dpkg/info|systemd|pam|ucf))"
    r"|etc/(apt|dpkg|cron\.\w+|logrotate\.d|systemd|init\.d|pam\.d|security|selinux|hostname|resolv\.conf)"
    r"|usr/share/(man|info|locale|lintian|bash-completion|debconf|perl5|pam|menu|bug|doc-base)"
    r"|usr/lib/(apt|dpkg|systemd|udev)|usr/lib/python3\.\d+/(pydoc_data|test)"
    r"|usr/lib/x86_64-linux-gnu/(gconv|perl-base|security)|usr/include|usr/games)(/|$)"
)
"""What runs in no container, or is a manual. Copyrights stay."""
DOCUMENT = re.compile(r"usr/share/doc/.+/(?!copyright$)[^/]+$")
PROGRAM = re.compile(r"(usr/)?s?bin/(?!(python3(\.\d+)?)$)[^/]+$")
"""Nothing in the image calls one."""
CERTIFICATES = "usr/share/ca-certificates/"
BUNDLE = "etc/ssl/certs/ca-certificates.crt"
PASSWD = f"root:x:0:0::/:/nologin\nkvasir:x:{USER}:{USER}::/{STATE}:/nologin\n"
GROUP = f"root:x:0:\nkvasir:x:{USER}:\n"
RUNS: dict[str, Any] = {
    "User": f"{USER}:{USER}",
    "ExposedPorts": {"8000/tcp": {}},
    "Env": [
        "PATH=/usr/bin",
        f"HOME=/{STATE}",
        f"KVASIR_CACHE=/{STATE}/models",
        "PYTHONDONTWRITEBYTECODE=1",
        "LANG=C.UTF-8",
    ],
    "Entrypoint": ["kvasir"],
    "Cmd": ["serve", "--host", "0.0.0.0"],
    "Volumes": {f"/{STATE}": {}},
    "WorkingDir": f"/{STATE}",
    "StopSignal": "SIGTERM",
}


def stamp() -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())


class Layer:
    """A tar that is written in the order of its names' arrival; times and owners are fixed."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._bytes, mode="w", format=tarfile.PAX_FORMAT)

    def add(self, item: tarfile.TarInfo, data: bytes | None = None, owner: int = 0) -> None:
        item.mtime, item.uid, item.gid, item.uname, item.gname = stamp(), owner, owner, "", ""
        item.pax_headers = {}
        self._tar.addfile(item, None if data is None else io.BytesIO(data))

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        item = tarfile.TarInfo(name)
        item.size, item.mode = len(data), mode
        self.add(item, data)

    def folder(self, name: str, mode: int = 0o755, owner: int = 0) -> None:
        item = tarfile.TarInfo(name)
        item.type, item.mode = tarfile.DIRTYPE, mode
        self.add(item, owner=owner)

    def packed(self) -> bytes:
        self._tar.close()
        return self._bytes.getvalue()


def entries(data: bytes) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Of a tar, by name; a hard link as the file that it names. Devices are left out."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for item in sorted(tar, key=lambda x: x.name.removeprefix("./")):
            found = item
            if item.islnk():
                found = tar.getmember(item.linkname)
            if not (found.isfile() or found.isdir() or found.issym()):
                continue
            reader = tar.extractfile(found) if found.isfile() else None
            item.type, item.size = found.type, found.size
            item.name = item.name.removeprefix("./").rstrip("/")
            if item.name not in ("", "."):
                yield item, None if reader is None else reader.read()


def system(data: bytes) -> bytes:
    """The lower layer, of what ``mmdebstrap`` wrote."""
    layer, certificates = Layer(), list[bytes]()
    for item, content in entries(data):
        name = item.name
        if name.startswith(CERTIFICATES) and content is not None:
            certificates.append(content)
        kinds = (UNWANTED, PROGRAM) if not item.isdir() else (UNWANTED,)
        if any(x.match(name) for x in kinds) or (content is not None and DOCUMENT.match(name)):
            continue
        layer.add(item, content)
    for name, mode in (("tmp", 0o1777), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755)):
        layer.folder(name, mode)
    layer.file("etc/passwd", PASSWD.encode())
    layer.file("etc/group", GROUP.encode())
    layer.file(BUNDLE, b"".join(certificates))
    return layer.packed()


def package(data: bytes) -> bytes:
    """The upper layer, of the files of a Debian package, with bytecode, which nobody in the image
    could write."""
    layer = Layer()
    for item, content in entries(data):
        if item.name.startswith("usr/share/lintian"):
            continue
        layer.add(item, content)
        if content is not None and item.name.endswith(".py"):
            compiled = _compiled(item.name, content)
            if compiled:
                folder, _, name = item.name.rpartition("/")
                tag = sys.implementation.cache_tag
                layer.file(f"{folder}/__pycache__/{name[:-3]}.{tag}.pyc", compiled)
    layer.folder(STATE, 0o700, USER)
    return layer.packed()


def _compiled(name: str, source: bytes) -> bytes:
    """As ``compileall --invalidation-mode unchecked-hash``: nobody looks at times of files."""
    try:
        code = compile(source, f"/{name}", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # of templates that packages bring along
        return b""
    flags = (1).to_bytes(4, "little")
    key = importlib.util.source_hash(source)
    return importlib.util.MAGIC_NUMBER + flags + key + marshal.dumps(code)


class Archive:
    """An image layout in one tar."""

    def __init__(self) -> None:
        self._layer = Layer()
        self._layer.file("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        self._layer.folder("blobs")
        self._layer.folder("blobs/sha256")

    def blob(self, kind: str, data: bytes) -> dict[str, Any]:
        """A descriptor of what was put in."""
        digest = hashlib.sha256(data).hexdigest()
        self._layer.file(f"blobs/sha256/{digest}", data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def text(self, name: str, value: object) -> None:
        self._layer.file(name, json.dumps(value).encode())

    def packed(self) -> bytes:
        return self._layer.packed()


def image(layers: list[bytes], tag: str) -> bytes:
    kind = "application/vnd.oci.image"
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stamp()))
    archive = Archive()
    parts = [
        archive.blob(f"{kind}.layer.v1.tar+gzip", gzip.compress(layer, 9, mtime=0))
        for layer in layers
    ]
    sums = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    config = {
        "created": made,
        "architecture": "amd64",
        "os": "linux",
        "config": RUNS,
        "rootfs": {"type": "layers", "diff_ids": sums},
        "history": [{"created": made} for _ in layers],
    }
    described = archive.blob(f"{kind}.config.v1+json", json.dumps(config).encode())
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": described,
        "layers": parts,
    }
    entry = archive.blob(f"{kind}.manifest.v1+json", json.dumps(manifest).encode())
    names = {"org.opencontainers.image.ref.name": tag.partition(":")[2]}
    index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": names}]}
    archive.text("index.json", index)
    places = ["blobs/sha256/" + x["digest"][7:] for x in (described, *parts)]
    archive.text("manifest.json", [{"Config": places[0], "RepoTags": [tag], "Layers": places[1:]}])
    return archive.packed()


def main(arguments: list[str]) -> int:
    deb, below, folder = map(Path, arguments)
    files = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(deb)], check=True, capture_output=True
    )
    layers = [system(below.read_bytes()), package(files.stdout)]
    name, version, _ = deb.stem.split("_")
    made = folder / f"{name}-{version}.oci.tar"
    made.write_bytes(image(layers, f"{name}:{version}"))
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB, {len(layers)} layers")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
