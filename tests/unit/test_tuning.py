"""Which variants of kernels are chosen, and the file that keeps them."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Literal

import pytest

from kvasir import _native
from kvasir.cli.main import run_command
from kvasir.config.options import EngineOptions
from kvasir.engine.build import build_engine
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.packed import PackedCache
from kvasir.exec.cpu.sites import CLASS_ENDS, N_CLASSES, Site, class_name, row_class
from kvasir.exec.cpu.tuned import MAX_BYTES, VARIANTS, ChosenVariant, TunedFile, cpu_identity
from kvasir.exec.cpu.tuning import SAMPLES, Tuning
from tests import tiny
from tests.loading import load, sizes_for, whole_prompt

USUAL, FAR = VARIANTS[0], "far"
FILE_KEY = "0" * 32
CHOICES = {"q4m 96x64": {0: ChosenVariant(FAR, 0.1), 2: ChosenVariant(USUAL, 0.0)}}


def sites(n: int = 4, rows_of: str = "T") -> list[Site]:
    choices = (0, VARIANTS.index(FAR))
    return [Site(i, "q4m 96x64", rows_of, (i,), (choices,) * N_CLASSES) for i in range(n)]


class Machine:
    """Steps whose phases take as long as their variant says."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds
        self.chosen: dict[tuple[int, int], int] = {}

    def choose(self, weight: int, number: int, variant: int) -> None:
        self.chosen[weight, number] = variant

    def step(self, tuning: Tuning, n_tokens: int, n_logits: int = 1) -> bool:
        """Whether it was timed."""
        seconds = tuning.begin(n_tokens, n_logits)
        if seconds is None:
            return False
        for phase in range(len(seconds)):  # four layers
            variant = self.chosen.get((phase, row_class(n_tokens)), 0)
            seconds[phase] = self.seconds[variant] * (1 + 0.001 * phase)
        tuning.end()
        return True


def far(seconds: float) -> Machine:
    return Machine({0: 1.0, VARIANTS.index(FAR): seconds})


def test_the_fastest_is_kept() -> None:
    machine = far(0.8)
    tuning = Tuning(sites(), machine.choose, 4)
    timed = [machine.step(tuning, 3) for _ in range(20)]
    assert timed == [False, *[True] * (SAMPLES // 2), *[False] * (19 - SAMPLES // 2)]
    assert tuning.choices["q4m 96x64"].keys() == {1}
    choice = tuning.choices["q4m 96x64"][1]
    assert (choice.variant, round(choice.gain, 2)) == (FAR, 0.2)
    assert {machine.chosen[i, 1] for i in range(4)} == {VARIANTS.index(FAR)}
    assert tuning.is_settled(2, 1) and not tuning.is_settled(1, 1)
    assert "1 of 1 measured" in tuning.describe() and "20 % less time" in tuning.describe()


def test_a_gain_that_noise_could_be_is_none() -> None:
    machine = far(0.99)
    tuning = Tuning(sites(), machine.choose, 4)
    while machine.step(tuning, 70) or not tuning.is_settled(70, 1):
        pass
    assert tuning.choices["q4m 96x64"][N_CLASSES - 1] == ChosenVariant(USUAL, 0.0)
    assert {machine.chosen[i, N_CLASSES - 1] for i in range(4)} == {0}
    assert "the fastest everywhere" in tuning.describe()


def test_rows_of_another_number_are_compared_by_row() -> None:
    """A variant that happened to get the long steps is not slower for that."""
    machine = far(0.5)
    tuning = Tuning(sites(1), machine.choose, 1)
    for i in range(60):
        seconds = tuning.begin(100 if i % 2 else 200, 1)
        if seconds is not None:
            variant = machine.chosen[0, N_CLASSES - 1]
            seconds[0] = machine.seconds[variant] * (100 if i % 2 else 200)
            tuning.end()
    assert tuning.choices["q4m 96x64"][N_CLASSES - 1] == ChosenVariant(FAR, 0.5)


def test_a_head_without_rows_is_not_measured() -> None:
    machine = far(0.5)
    tuning = Tuning(sites(1, "R"), machine.choose, 1)
    assert not any(machine.step(tuning, 64, 0) for _ in range(5))
    assert machine.step(tuning, 64, 1) is False  # the first of its class
    assert machine.step(tuning, 64, 1) is True


def test_off_and_cached_measure_nothing(tmp_path: Path) -> None:
    file = TunedFile(tmp_path, FILE_KEY)
    file.store(CHOICES)
    machine = far(0.5)
    tuning = Tuning(sites(), machine.choose, 4, file, measures=False)
    assert not any(machine.step(tuning, 1) for _ in range(30))
    assert tuning.n_found == 2
    assert {machine.chosen[i, 0] for i in range(4)} == {VARIANTS.index(FAR)}


def test_classes_of_rows() -> None:
    names = [class_name(i) for i in range(N_CLASSES)]
    assert names == ["1", "2-4", "5-8", "9-16", "17-64", "65-"]
    assert [row_class(n) for n in (1, 2, 4, 5, 8, 9, 16, 17, 64, 65, 9000)] == [
        0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5,
    ]  # fmt: skip
    assert CLASS_ENDS == _native.ROW_CLASS_ENDS


def test_a_file_is_found_again(tmp_path: Path) -> None:
    file = TunedFile(tmp_path / "new", FILE_KEY)
    assert file.load() is None
    file.store(CHOICES)
    assert file.load() == CHOICES
    assert file.path.stat().st_size < MAX_BYTES
    assert [path.name for path in file.folder.iterdir()] == [f"{FILE_KEY}.tuned"]


def test_damaged_and_foreign_files_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = TunedFile(tmp_path, FILE_KEY)
    file.store(CHOICES)
    good = file.path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 4
    TunedFile(tmp_path, "1" * 32).store(CHOICES)
    other = (tmp_path / f"{'1' * 32}.tuned").read_bytes()
    digest = TunedFile(tmp_path, "2" * 32)
    deep = good.partition(b"\n")[2].replace(b"0.1", b"0.1," + b"[" * 9000 + b"]" * 9000)
    deep = hashlib.blake2b(deep, digest_size=16).hexdigest().encode() + b"\n" + deep
    changed = good.replace(b"0.1", b"0.2")  # still JSON: its digest alone tells
    damaged = (b"", b"\n", good[:-3], bytes(flipped), changed, b"\xff\n{")
    for bad in (*damaged, other, good + b" " * MAX_BYTES, deep):
        file.path.write_bytes(bad)
        caplog.clear()
        assert file.load() is None
        assert "measured again" in caplog.text
    assert digest.load() is None
    file.path.unlink()
    file.path.mkdir()
    assert file.load() is None


def test_what_the_file_has_of_another_dtype_stays(tmp_path: Path) -> None:
    file = TunedFile(tmp_path, FILE_KEY)
    file.store({"f32 96x64": CHOICES["q4m 96x64"]})
    machine = far(0.5)
    tuning = Tuning(sites(), machine.choose, 4, file)
    while machine.step(tuning, 3) or not tuning.is_settled(3, 1):
        pass
    kept = file.load()
    assert kept is not None and kept.keys() == {"f32 96x64", "q4m 96x64"}
    assert kept["f32 96x64"] == CHOICES["q4m 96x64"]


def test_what_is_measured_again_stays_until_it_is(tmp_path: Path) -> None:
    """``kvasir tune`` that is too short loses nothing."""
    file = TunedFile(tmp_path, FILE_KEY)
    file.store(CHOICES)
    machine = Machine({0: 1.0, VARIANTS.index(FAR): 1.5})
    tuning = Tuning(sites(), machine.choose, 4, file)
    tuning.again(SAMPLES)
    while machine.step(tuning, 1) or not tuning.is_settled(1, 1):
        pass
    again = {**CHOICES["q4m 96x64"], 0: ChosenVariant(USUAL, 0.0)}
    assert file.load() == {"q4m 96x64": again}
    assert tuning.choices["q4m 96x64"].keys() == {0}, "told is what was measured"


def test_a_machine_is_more_than_a_name_that_others_have(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    zen = "vendor_id\t: AuthenticAMD\ncpu family\t: {}\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n"
    found = []
    for family, size in (("25", "32768K"), ("26", "32768K"), ("26", "98304K")):
        info.write_text(zen.format(family) + zen.format("99"))
        folder = tmp_path / size / "index3"
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in (("level", "3"), ("type", "Unified"), ("size", size)):
            (folder / name).write_text(f"{value}\n")
        found.append(cpu_identity(info, folder.parent))
    assert len(set(found)) == 3
    assert found[0][0] == "AMD EPYC" and found[0][-1] == "3 Unified 32768K"
    assert cpu_identity(tmp_path / "none", tmp_path / "none")[1:] == ("",) * 6


def test_names_of_another_table_are_left_out(tmp_path: Path) -> None:
    file = TunedFile(tmp_path, FILE_KEY)
    odd = {
        0: ChosenVariant("of tomorrow", 0.5),
        99: ChosenVariant(FAR, 0.5),
        1: ChosenVariant("panel", 0.5),
    }
    file.store({"q4m 96x64": odd, "elsewhere": {0: ChosenVariant(FAR, 0.5)}})
    machine = far(0.5)
    tuning = Tuning(sites(), machine.choose, 4, file)
    assert tuning.n_found == 0 and not machine.chosen


def test_a_folder_that_takes_no_file_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    TunedFile(tmp_path / "file", FILE_KEY).store(CHOICES)
    assert "are not kept" in caplog.text
    caplog.clear()
    many = {f"q4m {i}x64": {n: ChosenVariant(FAR, 0.123) for n in range(6)} for i in range(400)}
    TunedFile(tmp_path, FILE_KEY).store(many)
    assert "more than" in caplog.text
    assert not list(tmp_path.glob("*.tuned*"))
    caplog.clear()
    machine = far(0.5)
    tuning = Tuning(sites(), machine.choose, 4, TunedFile(tmp_path / "file", FILE_KEY))
    for n in (1, 3):
        while machine.step(tuning, n) or not tuning.is_settled(n, 1):
            pass
    assert len(caplog.records) == 2, "it cannot be read, and not be written, once each"


def test_keys_differ_by_all_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(content: str = "a", threads: int = 2, level: str = "avx2") -> str:
        return TunedFile.of(Path("x"), content, threads, level).key

    keys = [key(), key("b"), key(threads=3), key(level="scalar")]
    monkeypatch.setattr("kvasir.exec.cpu.tuned.cpu_identity", lambda: ("another", "0x1"))
    keys.append(key())
    monkeypatch.setattr("kvasir.exec.cpu.tuned._build", lambda: "another")
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_a_model_is_measured_and_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first executor measures as it computes; the second begins with what it found."""
    caplog.set_level(logging.INFO, "kvasir.tuning")
    model = load(tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q4_0"), "auto")
    cache = PackedCache(tmp_path / "packed", 1 << 30, min_bytes=0)
    settings = CpuSettings(1, _native.levels()[-1], packed_cache=cache, tuning="auto")

    def make() -> CpuExecutor:
        return CpuExecutor(model.program, model.binding, sizes_for(model.config), settings)

    executor = make()
    plan = whole_prompt(tuple(range(3)), n_groups=1)
    n = 0
    while not executor.tuning.is_settled(3, 3):
        executor.run(plan)
        n += 1
        assert n < 400
    shapes = executor.tuning.choices.keys()
    assert any(shape.startswith("q4z") for shape in shapes)
    executor.close()
    again = make()
    assert again.tuning.is_settled(3, 3)
    assert again.tuning.n_found == len([x for x in shapes])
    again.close()
    assert len(list(cache.folder.glob("*.tuned"))) == 1


def test_a_head_is_not_measured_in_rows_that_no_call_has(tmp_path: Path) -> None:
    """Its logits are computed in tiles of rows."""
    model = load(tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q4_0"), "auto")
    settings = CpuSettings(1, _native.levels()[-1], tuning="auto")
    executor = CpuExecutor(model.program, model.binding, sizes_for(model.config), settings)
    numbers = {site.rows_of: len(site.variants[-1]) for site in executor.tuning.sites}
    executor.close()
    assert numbers["R"] == 1 < numbers["T"]


def test_steps_that_end_early_are_not_measured(tmp_path: Path) -> None:
    """What did not run took no time with whichever kernels."""
    model = load(tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q4_0"), "auto")
    settings = CpuSettings(1, _native.levels()[-1], tuning="auto")
    executor = CpuExecutor(model.program, model.binding, sizes_for(model.config), settings)
    plan = whole_prompt(tuple(range(3)), n_groups=1)
    for _ in range(60):
        executor.run(plan, until=1)
    assert not any(executor.tuning.choices.values())
    executor.close()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Classes that no step of the engine is of are not waited for; what is not kept is not said to
    be."""
    path = str(tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q4_0"))
    words = ["tune", path, "--max-num-batched-tokens", "12", "--threads", "1"]
    assert run_command([*words, "--packed-cache", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "too short" not in said and "kept nowhere" in said
    names = [class_name(i) for i in range(N_CLASSES)]
    assert [name for name in names if f" {name} " in said] == names[:4]


def test_option(tmp_path: Path) -> None:
    path = str(tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q4_0"))
    said = {}
    modes: tuple[Literal["off", "cached", "auto"], ...] = ("off", "cached", "auto")
    for mode in modes:
        options = EngineOptions(model=path, packed_cache=str(tmp_path), tuning=mode)
        built = build_engine(options)
        built.engine.close()
        said[mode] = built.config.reasons["tuning"]
        assert "nothing is measured yet" in built.config.reasons["kernels"]
    assert [mode for mode, text in said.items() if text.startswith(mode)] == list(said)
