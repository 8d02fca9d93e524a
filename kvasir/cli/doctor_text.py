"""What ``kvasir doctor`` says, and the bundle for a bug report."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvasir.config.options import EngineOptions, describe
from kvasir.config.serving import ServeOptions
from kvasir.doctor.finding import Scene
from kvasir.doctor.table import CHECKS, Diagnosis
from kvasir.library.shelf import Shelf

OURS = ("KVASIR_", "HF_", "XDG_", "PYTHON", "OMP_", "OPENBLAS_")
OTHERS = ("PATH", "LANG", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_USER = re.compile(r"//[^/@\s]+@")
"""In an address."""
REDACTED = "(redacted)"


def found_text(found: Sequence[Diagnosis]) -> str:
    """What blocks first; one line where nothing is found."""
    if not found:
        return f"nothing is wrong ({len(CHECKS)} checks)\n"
    lines = []
    for each in sorted(found, key=lambda each: each.finding.level != "blocks"):
        said = each.finding
        mark = "✗" if said.level == "blocks" else "!"
        lines += [f"{mark} {said.what}", f"    found  {said.how}", f"    cost   {said.cost}"]
        lines += [f"    cure   {said.cure}"]
    n_blocking = sum(each.finding.level == "blocks" for each in found)
    lines.append(f"{len(found)} problems, {n_blocking} of them block")
    return "\n".join(lines) + "\n"


def found_json(found: Sequence[Diagnosis]) -> str:
    said = [{"check": x.check, **msgspec.structs.asdict(x.finding)} for x in found]
    return msgspec.json.format(msgspec.json.encode(said), indent=2).decode() + "\n"


def write_report(path: Path, scene: Scene, found: Sequence[Diagnosis]) -> None:
    """One JSON file, readable by its owner alone. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(bundle(scene, found)), indent=1))


def bundle(scene: Scene, found: Sequence[Diagnosis]) -> dict[str, Any]:
    """Without values of what is secret, and without the user's own folder."""
    shelf = Shelf(scene.cache / "library")
    said: dict[str, Any] = {
        "problems": [{"check": x.check, **msgspec.structs.asdict(x.finding)} for x in found],
        "environment": _environment(),
        "variables": variables(scene.variables),
        "models": [
            {"name": x.name, "bytes": x.n_bytes, "is_whole": shelf.is_whole(x)}
            for x in shelf.models()
        ],
    }
    home = str(Path.home())
    encoded = msgspec.json.encode(said).decode()
    plain = encoded.replace(home, "~") if len(home) > 1 else encoded
    shown: dict[str, Any] = msgspec.json.decode(_USER.sub("//", plain))
    return shown


def variables(source: Mapping[str, str]) -> dict[str, str]:
    """Those that matter here."""
    secrets = {
        f"KVASIR_{info.name.upper()}"
        for kind in (EngineOptions, ServeOptions)
        for info in describe(kind)
        if info.is_secret
    }
    return {
        name: REDACTED if name in secrets or _SECRET.search(name) else _without_user(name, value)
        for name, value in sorted(source.items())
        if name.startswith(OURS) or name in OTHERS
    }


def _without_user(name: str, value: str) -> str:
    """A proxy may be named without http://, and a password may have any sign."""
    if not name.lower().endswith(("_proxy", "_endpoint")):
        return value
    user, at, place = value.rpartition("@")
    scheme, colon, _ = user.partition("://")
    return f"{scheme}{colon}{place}" if at and colon else place


def _environment() -> dict[str, Any]:
    """Machine and versions; why not, where the native core does not load."""
    try:
        # Imported now: it brings the native core, which may be what is broken.
        from kvasir.bench.fingerprint import fingerprint

        return fingerprint()
    except ImportError as error:
        return {"missing": str(error)}
