"""The systemd unit of a server."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

UNIT_FOLDER = Path("/etc/systemd/system")
HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
COMMON = """\
[Unit]
Description=Kvasir, a server of language models
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
WatchdogSec=60
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
TimeoutStartSec=600
TimeoutStopSec=120
LimitNOFILE=65536
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
SystemCallArchitectures=native
"""
SYSTEM = """\
DynamicUser=yes
CacheDirectory=kvasir
StateDirectory=kvasir
Environment=KVASIR_CACHE=/var/cache/kvasir HF_HUB_OFFLINE=1
BindReadOnlyPaths={read_only}
ProtectSystem=strict
ProtectHome=tmpfs
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers=yes
PrivateMounts=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
RemoveIPC=yes
KeyringMode=private
DevicePolicy=closed
CapabilityBoundingSet=
AmbientCapabilities=
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
{addresses}
[Install]
WantedBy=multi-user.target
"""
USER = """\
Environment=HF_HUB_OFFLINE=1

[Install]
WantedBy=default.target
"""
CREDENTIAL = "keys"
LOOPBACK_ONLY = "IPAddressDeny=any\nIPAddressAllow=localhost\n"
"""The kernel drops all else."""


def unit_text(
    command: Sequence[str], model: Path, *, is_user: bool, keys: Path | None = None
) -> str:
    """A service that runs ``command`` and reads ``model``. The hub is not asked: all is here.
    ``keys``: a file of keys that its owner alone reads; systemd hands it over."""
    words = " ".join(map(_quoted, command))
    given = ""
    if keys is not None:
        words += f" --api-key-file %d/{CREDENTIAL}"
        given = f"LoadCredential={CREDENTIAL}:{_quoted(str(keys))}\n"
    head = COMMON.format(command=words) + given
    if is_user:
        return head + USER
    seen = [*_folders(model), *(x for x in _installed() if any(map(x.is_relative_to, HOMES)))]
    places = " ".join(_quoted(str(path)) for path in dict.fromkeys(seen))
    return head + SYSTEM.format(
        read_only=places, addresses=LOOPBACK_ONLY if _is_local(command) else ""
    )


def user_folder(variables: Mapping[str, str]) -> Path:
    base = variables.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "systemd" / "user"


def _is_local(command: Sequence[str]) -> bool:
    return not any(word.split("=")[0] in ("--host", "--allowed-media-domains") for word in command)


def _folders(model: Path) -> list[Path]:
    """Where its files lie, those too that are links to elsewhere."""
    folder = model if model.is_dir() else model.parent
    files = folder.iterdir() if model.is_dir() else (model,)
    return [folder, *(file.resolve().parent for file in sorted(files))]


def _installed() -> list[Path]:
    """What the interpreter reads."""
    package = Path(__file__).resolve().parents[2]
    return [Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), package]


def _quoted(word: str) -> str:
    """As systemd.service(5) reads it: % and $ are signs of its own."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if not text or any(x in text for x in " \t'\";") else text
