"""A run that is killed is gone on with: the file has the same bytes, whatever the moment and the
number of threads."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError, ModelError
from kvasir.evaluation.calibrate import calibrated_by
from kvasir.quantize.factor import inverse_factor
from kvasir.quantize.methods import method_named
from kvasir.quantize.place import PartialOutput
from kvasir.quantize.quantize import quantize
from kvasir.weights.source import open_model
from tests import tiny
from tests.quantized_kinds import llama

MOMENTS = 20
INT8 = method_named("int8", None, None, None)
RUN = """
import os, sys, time
from pathlib import Path
from kvasir.config.options import EngineOptions
from kvasir.evaluation.calibrate import calibrated_by
from kvasir.quantize.methods import method_named
from kvasir.quantize.quantize import quantize

def told(done, n):
    time.sleep(0.002)  # of a model so small a run has hardly any moments

def run(threads):
    calibrate = calibrated_by(EngineOptions(threads=threads), "self", 2, told)
    how = method_named("gptq", 4, 32, None)
    quantize(origin, how, output, calibrate=calibrate, told=told)

origin, output, moments, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
for i in range(moments):
    child = os.fork()
    if not child:
        run(1 + i % 2)
        os._exit(0)
    time.sleep(float(seconds) * i / moments / 4)
    os.kill(child, 9)
    os.waitpid(child, 0)
    if output.exists():
        break
else:
    began = time.monotonic()
    run(2)
    print(time.monotonic() - began)
"""


def ran(origin: Path, output: Path, moments: int, seconds: float, n_threads: int) -> str:
    """What a script said that killed as many runs, and let one end."""
    words = [sys.executable, "-c", RUN, str(origin), str(output), str(moments), str(seconds)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(n_threads)}
    found = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return found.stdout


def stopping(limit: int) -> Callable[[int, int], None]:
    def told(done: int, n: int) -> None:
        if done == limit:
            raise KeyboardInterrupt

    return told


def told(done: int, n: int) -> None:
    return


def digest(folder: Path) -> str:
    return sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_twenty_kills(tmp_path: Path) -> None:
    """One after the other, each run going on with what the killed ones left."""
    origin = tiny.write_hf(tiny.llama(max_position_embeddings=32), tmp_path / "origin")
    seconds = float(ran(origin, tmp_path / "whole", 0, 0.0, 1))
    said = ran(origin, tmp_path / "made", MOMENTS, seconds, 2)
    assert digest(tmp_path / "made") == digest(tmp_path / "whole")
    assert not said or not (tmp_path / ".made.part").exists()


def test_what_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped behind each third tensor, with a torn line in the journal; other settings begin
    anew."""
    origin, how = (
        str(tiny.write_hf(llama(), tmp_path / "origin")),
        INT8,
    )
    n = len(open_model(Path(origin)).tensors)
    whole = quantize(origin, how, tmp_path / "whole")
    journal, counts = tmp_path / ".made.part/journal", []

    for limit in range(3, n, 12):
        with pytest.raises(KeyboardInterrupt):
            quantize(origin, how, tmp_path / "made", told=stopping(limit))
        counts.append(len(journal.read_bytes().split(b"\n")) - 2)
        with journal.open("ab") as stream:
            stream.write(b'"model.lay')
    assert counts == list(range(3, n, 12))
    made = quantize(origin, how, tmp_path / "made")
    assert made.n_before == counts[-1] and made.n_bytes == whole.n_bytes
    assert digest(tmp_path / "made") == digest(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        quantize(origin, how, tmp_path / "other", told=stopping(n - 1))
    other = quantize(origin, method_named("fp8", None, None, None), tmp_path / "other")
    assert other.n_before == 0
    assert json.loads((tmp_path / "other/config.json").read_text())["quantization_config"]


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tensors are there is kept, and gone on with; where there are none, nothing is left."""
    origin = str(tiny.write_hf(llama(), tmp_path / "origin"))
    quantize(origin, INT8, tmp_path / "whole")
    n_synced, sync = [], os.fsync

    def full(descriptor: int) -> None:
        n_synced.append(descriptor)
        if len(n_synced) > 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr("kvasir.quantize.filling.os.fsync", full)
    with pytest.raises(ModelError, match=r"No space left.*9 tensors that are done are kept in"):
        quantize(origin, INT8, tmp_path / "made")
    monkeypatch.undo()
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr("kvasir.quantize.quantize.shutil.disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match=r"0\.00 GB free.*kept in"):
        quantize(origin, INT8, tmp_path / "made")
    monkeypatch.undo()
    assert quantize(origin, INT8, tmp_path / "made").n_before == 9
    assert digest(tmp_path / "made") == digest(tmp_path / "whole")

    def none(descriptor: int, begin: int, n: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("kvasir.quantize.filling.os.posix_fallocate", none)
    with pytest.raises(OSError, match="No space left"):
        quantize(origin, INT8, tmp_path / "other")
    assert {x.name for x in tmp_path.iterdir()} == {"origin", "whole", "made"}


def test_one_process_writes(tmp_path: Path) -> None:
    """And what ends in an error leaves nothing."""
    place = PartialOutput(tmp_path / "made", {})
    with pytest.raises(ConfigError, match="another process is writing it"):
        PartialOutput(tmp_path / "made", {})
    place.close()
    PartialOutput(tmp_path / "made", {}).close()
    model = llama()
    model.tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.inf
    origin = tiny.write_hf(model, tmp_path / "origin")
    with pytest.raises(ModelError, match="not finite"):
        quantize(str(origin), INT8, tmp_path / "made")
    assert [x.name for x in tmp_path.iterdir()] == ["origin"]


@pytest.mark.parametrize("n", [1, 64, 65, 200])
def test_factors(n: int) -> None:
    """U^T U is the inverse, U is upper."""
    x = np.random.default_rng(n).standard_normal((n + 9, n))
    full = x.T @ x + np.eye(n)
    upper = inverse_factor(full.copy())
    assert np.array_equal(upper, np.triu(upper)) and (np.diagonal(upper) > 0).all()
    assert np.abs(upper.T @ upper @ full - np.eye(n)).max() < 1e-10 * n


def test_factors_have_the_same_bits_with_any_threads() -> None:
    code = """
import numpy as np
from hashlib import sha256
from kvasir.quantize.factor import inverse_factor
x = np.random.default_rng(0).standard_normal((900, 576))
x32 = x.astype(np.float32)
found = inverse_factor(x.T @ x), x32.T @ x32, x32[:300] @ (x32.T @ x32)
print([sha256(a.tobytes()).hexdigest() for a in found])
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OPENBLAS_NUM_THREADS": str(n)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for n in (1, 2)
    ]
    assert said[0] == said[1] and len(said[0]) > 190


def test_a_folder_of_somebody_else_stays(tmp_path: Path) -> None:
    """Also behind a link, whoever put that there."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/journal").write_text("dear")
    (tmp_path / ".one.part").symlink_to(tmp_path / "theirs")
    (tmp_path / ".other.part").mkdir()
    (tmp_path / ".other.part/data").write_text("dear")
    for name in ("one", "other"):
        with pytest.raises(ConfigError, match="is in the way"):
            PartialOutput(tmp_path / name, {})
    assert (tmp_path / "theirs/journal").exists() and (tmp_path / ".other.part/data").exists()


def test_another_text_begins_anew(tmp_path: Path) -> None:
    origin = str(tiny.write_hf(tiny.llama(max_position_embeddings=32), tmp_path / "origin"))
    how, rng = method_named("gptq", 4, 32, None), np.random.default_rng(5)
    one, other = (
        calibrated_by(EngineOptions(threads=1), rng.integers(1, 99, (2, 32)).tolist(), None, told)
        for _ in range(2)
    )
    quantize(origin, how, tmp_path / "whole", calibrate=other)
    with pytest.raises(KeyboardInterrupt):
        quantize(origin, how, tmp_path / "made", calibrate=one, told=stopping(9))
    assert quantize(origin, how, tmp_path / "made", calibrate=other).n_before == 0
    assert digest(tmp_path / "made") == digest(tmp_path / "whole")


def lose_weights(part: Path) -> None:
    (part / "made/model.safetensors").unlink()


def cut_weights(part: Path) -> None:
    os.truncate(part / "made/model.safetensors", 5000)


def spoil_journal(part: Path) -> None:
    with (part / "journal").open("ab") as stream:
        stream.write(b"\0\0\0\n")


def spoil_settings(part: Path) -> None:
    (part / "settings").write_bytes(b"\xff\xfe")


def spoil_text(part: Path) -> None:
    (part / "text").write_bytes(b"\0\0\n12\n")


def far_tokens(part: Path) -> None:
    """Beyond the embeddings."""
    lines = (part / "text").read_bytes().split(b"\n")[:-1]
    chunks = [[*json.loads(line)[:-1], 10**6] for line in lines]
    (part / "text").write_bytes(b"".join(json.dumps(x).encode() + b"\n" for x in chunks))


HARM = [lose_weights, cut_weights, spoil_journal, spoil_settings, spoil_text, far_tokens]


@pytest.mark.parametrize("harm", HARM)
def test_what_somebody_else_touched_is_made_again(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    origin = str(tiny.write_hf(tiny.llama(max_position_embeddings=32), tmp_path / "origin"))
    how = method_named("gptq", 4, 32, None)
    calibrate = calibrated_by(EngineOptions(threads=1), "self", 2, told)
    quantize(origin, how, tmp_path / "whole", calibrate=calibrate)
    with pytest.raises(KeyboardInterrupt):
        quantize(origin, how, tmp_path / "made", calibrate=calibrate, told=stopping(9))
    harm(tmp_path / ".made.part")
    quantize(origin, how, tmp_path / "made", calibrate=calibrate)
    assert digest(tmp_path / "made") == digest(tmp_path / "whole")
