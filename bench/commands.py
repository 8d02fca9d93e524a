"""How long commands take that a person waits for, and a pull beside curl.

    python -m bench.commands times --output bench/results/commands-2cores.json
    python -m bench.commands kills --output bench/results/pull-kills.json

``times``: help, completion and ``doctor`` as processes, from their start to their end; a file
fetched by what ``kvasir pull`` fetches with and by curl, in turns, from a server on this machine
that sends as fast as it can, and from one that sends 50 MiB a second over all connections. curl
neither syncs nor checks what it wrote, so it is also measured with sha256sum behind it. ``kills``:
a pull that is killed at moments all over its file, and goes on; bytes that were sent twice.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.serving.file_server import FileServer, serving_file
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write
from kvasir.library.hub import Hub, HubRepo
from kvasir.library.quants import HubFile
from kvasir.library.shelf import Shelf
from kvasir.library.stored import StoredModel
from kvasir.library.transfer import fetch_file

PROGRAM = "python -m bench.commands"
N_RUNS, N_PAIRS, N_KILLS = 15, 5, 20
N_MODELS = 20
N_BYTES = 256 << 20
LINES = (("pull", N_BYTES, 0, N_PAIRS), ("pull of a line", 128 << 20, 50 << 20, 2))
"""(name, bytes of the file, bytes a second of the server, turns)."""
NAME = "m.gguf"
FETCH = "import sys; from bench.commands import fetch; fetch(*sys.argv[1:])"


def fetch(url: str, place: str, n_bytes: str, digest: str) -> None:
    """As ``kvasir pull`` fetches one file."""
    file = HubFile(NAME, int(n_bytes), digest)
    source = Hub(url).source(HubRepo("org/m", "0" * 40, (file,)), file)
    fetch_file(source, file, Path(place), lambda done, total: None)


def metered(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it gives, and the share of the machine that others took."""
    with Meter() as meter:
        result = part()
    return result | {"foreign": meter.foreign}


def commands(folder: Path) -> dict[str, Any]:
    """Milliseconds of each as a process, in turns."""
    shelf = Shelf(folder / "library")
    for i in range(N_MODELS):
        shelf.keep(StoredModel(f"org/model-{i}:Q4_K_M", f"m{i}", ()))
    known = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    known["KVASIR_CACHE"] = str(folder)
    tab = {"_KVASIR_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    asked: dict[str, tuple[list[str], dict[str, str]]] = {
        "--help": (["--help"], {}),
        "serve --help": (["serve", "--help"], {}),
        "completion of a command": ([], tab | {"COMP_WORDS": "kvasir se", "COMP_CWORD": "1"}),
        "completion of an option": ([], tab | {"COMP_WORDS": "kvasir serve --max-m"}),
        "completion of a model": ([], tab | {"COMP_WORDS": "kvasir chat org"}),
        "doctor": (["doctor"], {}),
    }
    kvasir = Path(sys.executable).with_name("kvasir")
    taken: dict[str, list[float]] = {name: [] for name in asked}
    for i in range(N_RUNS + 1):
        for name, (words, variables) in asked.items():
            began = time.perf_counter()
            subprocess.run(
                [kvasir, *words], env=known | variables, capture_output=True, check=False
            )
            if i:  # the first writes bytecode
                taken[name].append(1e3 * (time.perf_counter() - began))
    return {
        name: {"median_ms": round(statistics.median(x), 1), "max_ms": round(max(x), 1)}
        for name, x in taken.items()
    }


def beside_curl(server: FileServer, folder: Path, n_pairs: int) -> dict[str, Any]:
    """Seconds of a pull and of curl, in turns; and rates of curl's over the pull's time."""
    place = folder / NAME
    url = f"{server.url}/org/m/resolve/main/{NAME}"

    def pull() -> None:
        fetch(server.url, str(place), str(server.n_bytes), server.digest)

    def curl() -> None:
        subprocess.run(["curl", "-sS", "-o", str(place), url], check=True)

    def checked() -> None:
        curl()
        subprocess.run(["sha256sum", str(place)], check=True, stdout=subprocess.DEVNULL)

    arms: dict[str, Callable[[], None]] = {"pull": pull, "curl": curl, "curl, sha256sum": checked}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(n_pairs):
        for name, arm in arms.items():
            began = time.perf_counter()
            arm()
            seconds[name].append(round(time.perf_counter() - began, 3))
            place.unlink()
            os.sync()
    over = {
        name: round(statistics.median(b / a for a, b in zip(seconds["pull"], x, strict=True)), 3)
        for name, x in seconds.items()
        if name != "pull"
    }
    return {"bytes": server.n_bytes, "seconds": seconds, "speed_over": over}


def times(folder: Path) -> dict[str, Any]:
    """Each with what others took meanwhile: the system writes back what came for a while."""
    result = {"commands": metered(lambda: commands(folder))}
    for name, n_bytes, rate, n_pairs in LINES:
        with serving_file(folder / "served", n_bytes, rate) as server:
            result[name] = metered(partial(beside_curl, server, folder, n_pairs))
    return result


def kills(folder: Path) -> dict[str, Any]:
    """Of each moment: bytes that were sent when the process died, and how many came again."""
    draw, place, lost = random.Random(18), folder / NAME, []
    with serving_file(folder / "served", N_BYTES) as server:
        words = [server.url, str(place), str(N_BYTES), server.digest]
        command = [sys.executable, "-c", FETCH, *words]
        for i in range(N_KILLS):
            before = server.sent()
            moment = int((i + draw.random()) / N_KILLS * N_BYTES)
            with subprocess.Popen(command) as process:
                while server.sent() - before < moment and process.poll() is None:
                    time.sleep(0.001)
                process.send_signal(signal.SIGKILL)
            at_death = server.sent() - before
            subprocess.run(command, check=True)  # who is killed has checked no hash, this one has
            lost.append({"sent": at_death, "twice": server.sent() - before - N_BYTES})
            place.unlink()
    twice = [each["twice"] for each in lost]
    return {"bytes": N_BYTES, "kills": lost, "twice_most": max(twice)}


PARTS = {"times": times, "kills": kills}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        result = PARTS[args.part](Path(folder).absolute())
    told = {
        "kind": f"commands-{args.part}",
        "command": command_line(PROGRAM),
        "machine": fingerprint(),
        "results": result,
    }
    write(told, args.output)


if __name__ == "__main__":
    main()
