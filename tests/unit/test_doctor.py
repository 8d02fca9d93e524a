"""Each problem is found where it is, with its cure; a clean machine is silent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvasir.cli.doctor_text import REDACTED, bundle, found_text, variables
from kvasir.cli.main import run_command
from kvasir.doctor.cache import UNFINISHED
from kvasir.doctor.finding import DiskSize, Scene, port_is_free
from kvasir.doctor.table import CHECKS, examine
from kvasir.exec.cpu import packed
from kvasir.library.shelf import Shelf
from kvasir.library.stored import StoredFile, StoredModel
from tests import tiny
from tests.hub_standin import StandIn, serving
from tests.tiny import write_gguf_model, write_hf

FLAGS = "fpu sse4_2 ssse3 popcnt avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl avx512_vnni"
CLEAN = {
    "proc/cpuinfo": "".join(f"processor : {i}\nflags : {FLAGS}\n" for i in range(4)),
    "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\nSwapTotal: 0 kB\n"
    "SwapFree: 0 kB\n",
    "proc/stat": "cpu  100 0 100 1000 0 0 0 0 0 0\n",
    "proc/loadavg": "0.10 0.10 0.10 1/100 1\n",
    "sys/fs/cgroup/cpu.max": "max 100000\n",
    "sys/fs/cgroup/memory.max": "max\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil\n",
}


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def clean(tmp_path: Path) -> Scene:
    root = tmp_path / "root"
    for name, text in CLEAN.items():
        write(root, name, text)
    (root / "dev/shm").mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    return Scene(
        root=root,
        variables={},
        cache=tmp_path / "cache",
        disk=lambda path: DiskSize(1 << 40, 1 << 39),
        pause=lambda seconds: None,
        port_is_free=lambda host, port: True,
        n_files=lambda: 1 << 20,
        levels=lambda: ("scalar", "avx2", "avx512", "avx512_vnni"),
    )


def found(place: Scene) -> list[str]:
    return [each.check for each in examine(place)]


def test_a_clean_machine_is_silent(clean: Scene) -> None:
    began = time.perf_counter()
    assert found(clean) == []
    assert time.perf_counter() - began < 3
    assert found_text([]) == f"nothing is wrong ({len(CHECKS)} checks)\n"


def file(name: str, text: str) -> Callable[[Scene, Path], Scene]:
    def inject(place: Scene, tmp: Path) -> Scene:
        write(place.root, name, text)
        return place

    return inject


def changed(**fields: object) -> Callable[[Scene, Path], Scene]:
    return lambda place, tmp: msgspec.structs.replace(place, **fields)


def variable(**named: str) -> Callable[[Scene, Path], Scene]:
    return changed(variables=named)


def steals(place: Scene, tmp: Path) -> Scene:
    def pause(seconds: float) -> None:
        write(place.root, "proc/stat", "cpu  150 0 100 1040 0 0 0 10 0 0\n")

    return msgspec.structs.replace(place, pause=pause)


def no_shm(place: Scene, tmp: Path) -> Scene:
    (place.root / "dev/shm").rmdir()
    return place


def stored(place: Scene, *, link: bool = False, data: bytes = b"") -> StoredModel:
    shelf = Shelf(place.cache / "library")
    model = StoredModel(
        "org/m:Q4_0", "m", (StoredFile("m.gguf", 5, "sha256:" + "0" * 64),), "m.gguf"
    )
    shelf.keep(model)
    target = shelf.files / "m" / "m.gguf"
    target.parent.mkdir(parents=True)
    if link:
        target.symlink_to("/nowhere")
    if data:
        target.write_bytes(data)
    return model


def partial(place: Scene, tmp: Path) -> Scene:
    stored(place)
    return place


def gone(place: Scene, tmp: Path) -> Scene:
    stored(place, link=True)
    return place


def wrong_hash(place: Scene, tmp: Path) -> Scene:
    model = stored(place, data=write_gguf_model(tiny.llama(), tmp / "x.gguf", "Q8_0").read_bytes())
    return msgspec.structs.replace(place, model=model.name)


def orphan(place: Scene, tmp: Path) -> Scene:
    write(place.cache, "library/files/x/y.gguf", "lost")
    return place


def unfinished(place: Scene, tmp: Path) -> Scene:
    write(place.cache, f"packed/x{UNFINISHED}", "old")
    os.utime(place.cache / "packed" / f"x{UNFINISHED}", (0, 0))
    return place


def model(make: Callable[[Path], Path]) -> Callable[[Scene, Path], Scene]:
    return lambda place, tmp: msgspec.structs.replace(place, model=str(make(tmp)))


def cut(tmp: Path) -> Path:
    path = write_gguf_model(tiny.llama(), tmp / "m.gguf", "Q8_0")
    path.write_bytes(path.read_bytes()[:-1000])
    return path


def pointer(tmp: Path) -> Path:
    path = tmp / "m.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    return path


def shard_missing(tmp: Path) -> Path:
    folder = write_hf(tiny.llama(), tmp / "m")
    index = '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def no_tokenizer(tmp: Path) -> Path:
    folder = write_hf(tiny.llama(), tmp / "m")
    (folder / "tokenizer.json").unlink()
    return folder


def no_core() -> list[str]:
    raise ImportError("undefined symbol")


PROBLEMS: dict[str, tuple[str, str, Callable[[Scene, Path], Scene]]] = {
    "old CPU": ("cpu", "x86-64-v2", file("proc/cpuinfo", "processor : 0\nflags : fpu\n")),
    "no AVX2": (
        "cpu",
        "AVX2",
        file("proc/cpuinfo", "processor : 0\nflags : sse4_2 ssse3 popcnt\n"),
    ),
    "KVASIR_ISA": ("isa", "unset KVASIR_ISA", variable(KVASIR_ISA="avx2")),
    "part of a CPU": ("cpu-quota", "1.5 of 4", file("sys/fs/cgroup/cpu.max", "150000 100000\n")),
    "limit": ("memory-limit", "MemoryMax", file("sys/fs/cgroup/memory.max", "268435456\n")),
    "no memory": ("memory", "free", file("proc/meminfo", "MemAvailable: 100000 kB\n")),
    "swapped": (
        "swap",
        "swapoff",
        file(
            "proc/meminfo",
            "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n"
            "SwapTotal: 4000000 kB\nSwapFree: 0 kB\n",
        ),
    ),
    "stolen": ("stolen", "10%", steals),
    "others": ("load", "9.0 processes", file("proc/loadavg", "9.0 1 1 1/1 1\n")),
    "governor": (
        "governor",
        "cpupower",
        file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
    ),
    "huge pages": (
        "huge-pages",
        "madvise",
        file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
    ),
    "no shm": ("shared-memory", "mount", no_shm),
    "threads": ("threads", "KVASIR_THREADS", variable(KVASIR_THREADS="64")),
    "files": ("files", "ulimit", changed(n_files=lambda: 256)),
    "clock": ("clock", "set-ntp", changed(now=lambda: 1e9)),
    "no core": ("core", "undefined symbol", changed(levels=no_core)),
    "core of a better CPU": ("core", "can run", changed(levels=lambda: ())),
    "core of another CPU": ("core", "make env", changed(levels=lambda: ("scalar", "avx2"))),
    "bytecode": ("bytecode", "unset", variable(PYTHONDONTWRITEBYTECODE="1")),
    "owner": ("cache-owner", "chown", changed(may_write=lambda folder: False)),
    "space": ("cache-space", "prune", changed(disk=lambda path: DiskSize(1 << 40, 1 << 20))),
    "partial": ("partial-models", "kvasir pull org/m:Q4_0", partial),
    "gone": ("partial-models", "kvasir import", gone),
    "orphan": ("orphans", "prune", orphan),
    "unfinished": ("packed", "rm ", unfinished),
    "option": ("options", "correct it", variable(KVASIR_PORT="many")),
    "port": ("port", "--port 8001", changed(port_is_free=lambda host, port: False)),
    "open": ("open-address", "KVASIR_API_KEY", variable(KVASIR_HOST="0.0.0.0")),
    "no model": ("model-missing", "kvasir list", changed(model="nothing")),
    "pointer": ("model-pointer", "git lfs pull", model(pointer)),
    "shard": ("model-shards", "00001-of-00002", model(shard_missing)),
    "cut": ("model-file", "cut short", model(cut)),
    "wrong hash": ("model-hash", "kvasir rm org/m:Q4_0", wrong_hash),
    "no tokenizer": ("model-tokenizer", "tokenizer.json", model(no_tokenizer)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_found(name: str, clean: Scene, tmp_path: Path) -> None:
    check, says, inject = PROBLEMS[name]
    said = {each.check: each for each in examine(inject(clean, tmp_path))}
    assert check in said
    assert says in found_text([said[check]])


def test_a_model_that_is_well_is_silent(clean: Scene, tmp_path: Path) -> None:
    path = write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0")
    assert found(msgspec.structs.replace(clean, model=str(path))) == []


def test_no_fit(clean: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0")
    monkeypatch.setattr("kvasir.config.hardware.free_memory", lambda *path: 1 << 10)
    said = list(examine(msgspec.structs.replace(clean, model=str(path))))
    assert [each.check for each in said] == ["model-fit"]
    assert "kvasir plan memory" in said[0].finding.cure


def test_the_hub(clean: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(**named: str) -> list[str]:
        said = {"HF_ENDPOINT": stand_in.url, **named}
        return found(msgspec.structs.replace(clean, model="org/m", variables=said))

    with serving(StandIn({"org/m": {}})) as stand_in:
        assert asked() == ["model-missing"]
        assert asked(HF_HUB_OFFLINE="1") == ["model-missing", "hub-offline"]
        stand_in.gated = True
        assert asked() == ["model-missing", "hub-gate"]
    assert asked()[:2] == ["model-missing", "hub"]
    assert found(msgspec.structs.replace(clean, asks=False, model=None)) == []


def test_what_is_packed_now_ends_as_the_check_thinks() -> None:
    assert packed.UNFINISHED == UNFINISHED


def test_a_port_that_is_taken() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not port_is_free("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(OSError):
        port_is_free("203.0.113.9", 8000)


def test_a_check_that_fails_hides_no_other(
    clean: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(place: Scene) -> None:
        raise ValueError("oops")

    monkeypatch.setitem(CHECKS, "cpu", broken)  # type: ignore[arg-type]
    assert found(orphan(clean, tmp_path)) == ["cpu", "orphans"]


SECRETS = {
    "HF_TOKEN": "hf_abc",
    "KVASIR_API_KEY": "sk-1",
    "KVASIR_ADMIN_KEY": "sk-2",
    "https_proxy": "http://me:secret@proxy:3128",
    "HTTPS_PROXY": "me:bare@proxy:3129",
    "http_proxy": "http://me:with/slash@proxy:3130",
    "HF_ENDPOINT": "https://me:p@ss/word@mirror",
    "AWS_SECRET_ACCESS_KEY": "aws",
}


def test_a_report_has_no_secrets(clean: Scene) -> None:
    place = msgspec.structs.replace(clean, variables=SECRETS)
    text = msgspec.json.encode(bundle(place, [])).decode()
    for secret in (
        "hf_abc",
        "sk-1",
        "sk-2",
        "secret@",
        "bare",
        "slash",
        "word",
        "aws",
        str(Path.home()) + "/",
    ):
        assert secret not in text or secret == "//", secret
    assert variables(SECRETS)["KVASIR_API_KEY"] == REDACTED
    assert all(f'proxy:{port}"' in text for port in (3128, 3129, 3130))
    assert '"https://mirror"' in text


@pytest.mark.parametrize("proxy", ["http://me:secret@host:abc", "me:secret@host:abc"])
def test_a_proxy_that_is_none_is_told_without_its_user(clean: Scene, proxy: str) -> None:
    said = {"HF_ENDPOINT": "http://127.0.0.1:1", "HTTPS_PROXY": proxy}
    place = msgspec.structs.replace(clean, model="org/m", variables=said)
    cures = [x.finding.cure for x in examine(place) if x.check == "hub"]
    assert cures == ["check HTTPS_PROXY=host:abc, or unset it"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert (
        run_command(["doctor", str(tmp_path / "none.gguf"), "--json", "--report", str(report)]) == 1
    )
    said = msgspec.json.decode(capsys.readouterr().out)
    assert "model-missing" in [each["check"] for each in said]
    assert report.stat().st_mode & 0o777 == 0o600
    assert {"problems", "environment", "variables", "models"} <= msgspec.json.decode(
        report.read_bytes()
    ).keys()
