"""Makes a Debian package of a wheel: ``deb.py WHEEL FOLDER [FILE...]``.

The package brings its Python packages along, in a folder of its own with the layout of a virtual
environment of Debian's Python, so that neither touches the other. It is for the release whose
``python3`` is this interpreter's version. FILE: wheels to take instead of what pip would fetch.
DEBFULLNAME and DEBEMAIL say who made it.
"""

from __future__ import annotations

import email.parser
import gzip
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from email.message import Message
from pathlib import Path

NAME = "kvasir-llm"
HOME = Path("usr/lib") / NAME
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SITE = HOME / "lib" / PYTHON / "site-packages"
COMMANDS = ("kvasir", "kvasir-llm")
START = """\
#!/usr/lib/kvasir-llm/bin/python
import sys

from kvasir.__main__ import main

sys.exit(main())
"""
CONTROL = """\
Package: {name}
Version: {version}
Architecture: amd64
Maintainer: {maintainer}
Installed-Size: {kilobytes}
Depends: {python}, libc6 (>= {glibc}), libgcc-s1, libstdc++6
Recommends: ca-certificates
Section: science
Priority: optional
Description: serves large language models on CPUs
 An OpenAI-compatible server, a terminal chat and an offline engine for
 language models in GGUF files and safetensors. The same model, prompt and
 seed give the same answer, bit for bit, whatever else the server does.
"""
AFTER = f"""\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    /{HOME}/bin/python -m compileall -q /{HOME}/lib || true
fi
"""
BEFORE = f"""\
#!/bin/sh
set -e
find /{HOME} -depth -type d -name __pycache__ -exec rm -r {{}} +
"""
OVERRIDES = """\
# Wheels carry libraries that their makers built and linked for every distribution.
{name}: embedded-library
{name}: custom-library-search-path
{name}: unstripped-binary-or-object
{name}: library-not-linked-against-libc
{name}: shared-library-is-executable
"""
CHANGES = """\
{name} ({version}) unstable; urgency=medium

  * See the project's CHANGELOG.md.

 -- {maintainer}  {date}
"""


def maintainer() -> str:
    """As Debian's own tools know who packages."""
    mail = os.environ.get("DEBEMAIL") or f"root@{socket.getfqdn()}"
    return f"{os.environ.get('DEBFULLNAME') or 'Local build'} <{mail}>"


def stamp() -> int:
    """Seconds that all files are of: equal inputs give equal packages."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())


def install(root: Path, wheel: Path, others: list[Path]) -> None:
    """The wheel and what it needs, without bytecode, pip, which fetches the default model and is
    not Debian's to use here, and the commands. Raises CalledProcessError where pip fails."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    target = ["--no-compile", "--only-binary", ":all:", "--target", str(root / SITE)]
    subprocess.run([*pip, *target, "pip", *map(str, (wheel, *others))], check=True)
    shutil.rmtree(root / SITE / "bin", ignore_errors=True)
    for url in (root / SITE).glob("*.dist-info/direct_url.json"):
        url.unlink()  # where the wheel lay on this machine
    programs = root / HOME / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(f"/usr/bin/{PYTHON}")
    (root / HOME / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON[6:]}\n"
    )
    (root / "usr" / "bin").mkdir(parents=True)
    for name in COMMANDS:
        (programs / name).write_text(START)
        (programs / name).chmod(0o755)
        (root / "usr" / "bin" / name).symlink_to(f"../lib/{NAME}/bin/{name}")


def metadata(root: Path) -> list[Message]:
    """Of each distribution in it, by name."""
    texts = (x.read_text("utf-8") for x in (root / SITE).glob("*.dist-info/METADATA"))
    parsed = (email.parser.HeaderParser().parsestr(text) for text in texts)
    return sorted(parsed, key=lambda x: str(x["Name"]).lower())


def licence(about: Message) -> str:
    """As the distribution says it: an expression, a classifier, or its own words."""
    classifiers = (x for x in about.get_all("Classifier") or () if x.startswith("License :: "))
    first_line = (about["License"] or "").partition("\n")[0]
    return about["License-Expression"] or next(classifiers, "") or first_line or "see its files"


def documents(root: Path, version: str) -> None:
    folder = root / "usr" / "share" / "doc" / NAME
    folder.mkdir(parents=True)
    lines = [f"{x['Name']} {x['Version']}: {licence(x)}" for x in metadata(root)]
    (folder / "copyright").write_text(
        "Kvasir is licensed under the Apache License, Version 2.0, which is in\n"
        "/usr/share/common-licenses/Apache-2.0.\n\n"
        "The package brings these Python packages along, under licenses of their own, whose\n"
        f"texts lie in /{SITE}/*.dist-info:\n\n" + "\n".join(lines) + "\n",
        encoding="utf-8",
    )
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(stamp()))
    said = CHANGES.format(name=NAME, version=version, maintainer=maintainer(), date=date)
    (folder / "changelog.gz").write_bytes(gzip.compress(said.encode(), 9, mtime=0))
    overrides = root / "usr" / "share" / "lintian" / "overrides"
    overrides.mkdir(parents=True)
    (overrides / NAME).write_text(OVERRIDES.format(name=NAME))


def control(root: Path, version: str) -> None:
    """The package's own files, once all others are there."""
    files = sorted(x for x in root.rglob("*") if x.is_file() and not x.is_symlink())
    folder = root / "DEBIAN"
    folder.mkdir()
    sums = (f"{hashlib.md5(x.read_bytes()).hexdigest()}  {x.relative_to(root)}\n" for x in files)
    (folder / "md5sums").write_text("".join(sums))
    size = sum(x.stat().st_size for x in files)
    text = CONTROL.format(
        name=NAME,
        version=version,
        maintainer=maintainer(),
        python=PYTHON,
        glibc=(os.confstr("CS_GNU_LIBC_VERSION") or "glibc 2.28").split()[1],
        kilobytes=size // 1024,
    )
    (folder / "control").write_text(text)
    for name, script in (("postinst", AFTER), ("prerm", BEFORE)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)


def modes(root: Path) -> None:
    """As Debian has them, whatever the umask here: read by all, run where it is a program."""
    for path in (root, *root.rglob("*")):
        if path.is_symlink():
            continue
        is_program = path.is_dir() or (path.parent.name in ("bin", "DEBIAN") and _is_script(path))
        path.chmod(0o755 if is_program else 0o644)
        os.utime(path, (stamp(), stamp()))


def _is_script(path: Path) -> bool:
    return path.read_bytes()[:2] == b"#!"


def main(arguments: list[str]) -> int:
    wheel, folder, *others = map(Path, arguments)
    root = folder / "deb"
    shutil.rmtree(root, ignore_errors=True)
    (root / SITE).mkdir(parents=True)
    install(root, wheel, others)
    version = wheel.name.split("-")[1]
    documents(root, version)
    control(root, version)
    modes(root)
    made = folder / f"{NAME}_{version}_amd64.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(made)]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(stamp())})
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
