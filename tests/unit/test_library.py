"""Names, choices, pulls, links and what is made of a Modelfile: over a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.cli.fit import fits_here
from kvasir.cli.main import run_command
from kvasir.cli.named import present
from kvasir.config.advice import advise
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ModelError
from kvasir.doctor.finding import Scene
from kvasir.doctor.model import place_of
from kvasir.exec.cpu.backend import CPU
from kvasir.formats.gguf import open_gguf
from kvasir.library.headers import fetched_header
from kvasir.library.hub import Hub, HubRepo, open_hub
from kvasir.library.links import link, outside
from kvasir.library.names import HubName, hub_name
from kvasir.library.pull import Puller, Told
from kvasir.library.quants import HubFile, Quant
from kvasir.library.shelf import Shelf
from kvasir.library.stored import StoredModel
from kvasir.weights.source import open_model
from tests import tiny
from tests.hub_standin import COMMIT, StandIn, serving
from tests.tiny import write_gguf_model, write_hf

REPO, FOLDER = "org/tiny-GGUF", "org/tiny"


@cache
def gguf(format: str, folder: Path) -> bytes:
    return write_gguf_model(tiny.llama(), folder / f"{format}.gguf", format).read_bytes()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("made")
    hf = write_hf(tiny.llama(), folder / "hf")
    parts = {f"tiny-F16-0000{i}-of-00002.gguf": b"GGUF" for i in (1, 2)}
    return {
        REPO: {
            "README.md": b"# tiny",
            "tiny.Q4_0.gguf": gguf("Q4_0", folder),
            "tiny.Q8_0.gguf": gguf("Q8_0", folder),
            "mmproj-tiny.gguf": b"GGUF",
            **parts,
        },
        FOLDER: {path.name: path.read_bytes() for path in hf.iterdir()},
        "org/pickled": {"config.json": b"{}", "pytorch_model.bin": b"x"},
        "org/other": {"x.Q4_K_M.gguf": b"GGUF" + bytes(100)},
    }


def quant(tag: str, n_bytes: int) -> Quant:
    return Quant(tag, HubFile(f"x.{tag}.gguf", n_bytes, ""), n_bytes)


@pytest.fixture
def hub(
    files: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn]:
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(StandIn(files)) as stand_in:
        monkeypatch.setenv("HF_ENDPOINT", stand_in.url)
        yield stand_in


def pull(stand_in: StandIn, name: str, *, force: bool = False) -> StoredModel:
    asked = hub_name(name)
    assert asked is not None
    told = Told(lambda found, fits, taken: None, lambda file: lambda done, total: None)
    return Puller(Shelf(), Hub(stand_in.url), fits_here, told).pull(asked, force=force)


def test_a_model_of_one_file(hub: StandIn) -> None:
    model = pull(hub, f"{REPO}:q4_0")
    shelf = Shelf()
    assert model.name == f"{REPO}:Q4_0" and shelf.is_whole(model)
    assert shelf.path(model).read_bytes() == hub.files[REPO]["tiny.Q4_0.gguf"]
    assert model.revision == COMMIT and model.source == f"hf.co/{REPO}"
    for name in (REPO, f"{REPO}:Q4_0", f"hf.co/{REPO}", f"{REPO}:tiny.Q4_0.gguf"):
        found = shelf.find(name)
        assert found == model, name
    assert shelf.find(f"{REPO}:Q8_0") is None
    assert open_model(f"{REPO}:Q4_0").name == "tiny.Q4_0"


def test_a_folder(hub: StandIn) -> None:
    model = pull(hub, FOLDER)
    assert model.name == FOLDER and model.main == ""
    assert {file.name for file in model.files} >= {"config.json", "tokenizer.json"}
    assert open_model(FOLDER).kind == "hf" and open_model(FOLDER).name == "tiny"


def test_the_largest_that_fits_without_a_tag(hub: StandIn) -> None:
    assert pull(hub, REPO).name == f"{REPO}:Q8_0"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("org/none", "has no org/none"),
        (f"{REPO}@other", "has no revision other"),
        (f"{REPO}:Q3_K", r"has no Q3_K; it has .*Q4_0 \("),
        (f"{REPO}:F16", "is in 2 files, and one is read here"),
        (f"{FOLDER}:Q4_0", "has no GGUF files, so no Q4_0"),
        ("org/pickled", "has pickled weights alone"),
        ("org/other", r"x.Q4_K_M.gguf: GGUF .* is not supported"),
    ],
)
def test_what_is_refused_before_anything_is_fetched(hub: StandIn, name: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        pull(hub, name)
    assert not Shelf().models()
    assert hub.sent < 2 << 20


def test_weights_that_are_larger_than_memory(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.library.pull.free_memory", lambda: 1000)
    with pytest.raises(ModelError, match=r"1000 B of memory are free. Nothing was fetched"):
        pull(hub, FOLDER)
    assert pull(hub, FOLDER, force=True).name == FOLDER


def test_consent_and_tokens(hub: StandIn) -> None:
    hub.gated = True
    with pytest.raises(ModelError, match=r"agree at .*HF_TOKEN"):
        pull(hub, REPO)
    hub.gated, hub.token = False, "secret"
    with pytest.raises(ModelError, match="private one needs a token"):
        pull(hub, REPO)
    told = Told(lambda found, fits, taken: None, lambda file: lambda done, total: None)
    puller = Puller(Shelf(), Hub(hub.url, "secret"), fits_here, told)
    assert puller.pull(HubName(REPO, "Q4_0")).name == f"{REPO}:Q4_0"


def test_the_environment_of_a_hub() -> None:
    assert open_hub({"HF_ENDPOINT": " http://mirror/\n", "HF_TOKEN": " t "}) == Hub(
        "http://mirror", "t"
    )
    assert open_hub({}) == Hub("https://huggingface.co")
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        open_hub({"HF_HUB_OFFLINE": "1"})
    for wrong in ("mirror", "https://", "ftp://mirror", "https://mirror:99999", "https://[mirror"):
        with pytest.raises(ModelError, match=r"no address of a hub: set it to one .* or unset it"):
            open_hub({"HF_ENDPOINT": wrong})
    for wrong in ("https://a mirror", "https://mirror?a=b", "https://me:p@ss@mirror:99999"):
        with pytest.raises(ModelError, match="no address of a hub") as caught:
            open_hub({"HF_ENDPOINT": wrong})
        assert "p@ss" not in caught.value.message


@pytest.mark.parametrize("first", [64, 4096, 1 << 20])
def test_a_header_is_read_without_the_weights(
    hub: StandIn, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvasir.library.headers.FIRST_BYTES", first)
    data = hub.files[REPO]["tiny.Q8_0.gguf"]
    file = HubFile("tiny.Q8_0.gguf", len(data), "")
    source = Hub(hub.url).source(HubRepo(REPO, COMMIT, (file,)), file)
    with fetched_header(source, file, tmp_path) as (path, n_header):
        found = open_model(path)
        assert 0 < n_header < len(data) and path.stat().st_size == len(data)
        assert {name: x.shape for name, x in found.tensors.items()} == {
            name: x.shape for name, x in open_model(_written(tmp_path, data)).tensors.items()
        }
    assert not path.exists()


def _written(folder: Path, data: bytes) -> Path:
    place = folder / "whole.gguf"
    place.write_bytes(data)
    return place


def test_what_would_fit(hub: StandIn, tmp_path: Path) -> None:
    """From one header: for all quantizations, as loading the file itself says."""
    place = _written(tmp_path, hub.files[REPO]["tiny.Q8_0.gguf"])
    n_bytes = place.stat().st_size
    read = quant("Q8_0", n_bytes)
    found = fits_here(place, 1000, read, [quant("Q4_0", n_bytes // 2), read, quant("X", 1 << 50)])
    assert not found["Q8_0"].refusal and found["Q8_0"].n_tokens > 0
    slow, fast = found["Q8_0"].tokens_per_second, found["Q4_0"].tokens_per_second
    assert slow is not None and fast is not None and fast > 1.5 * slow > 0
    assert "memory" in found["X"].refusal or "weights" in found["X"].refusal


@pytest.mark.parametrize("free", [1 << 20, 3 << 20, 16 << 20, 1 << 32])
def test_what_is_told_is_what_a_start_finds(
    free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the header of one quantization, for each of four: whether it starts, and how many
    tokens it has room for."""
    monkeypatch.setattr("kvasir.config.hardware.free_memory", lambda *_: free)
    formats = ("Q4_0", "Q4_1", "Q8_0", "F32")
    paths = {x: write_gguf_model(tiny.llama(), tmp_path / f"{x}.gguf", x) for x in formats}
    found = [quant(x, path.stat().st_size) for x, path in paths.items()]
    header = open_gguf(paths["Q8_0"]).data_start
    told = fits_here(paths["Q8_0"], header, found[2], found)
    for tag, path in paths.items():
        facts = model_facts(load_model(str(path)))
        advice = advise(EngineOptions(), facts, CPU.probe(), CPU.settings)
        assert bool(told[tag].refusal) == bool(advice.refusal), (tag, told[tag], advice)
        if advice.room is not None:
            assert told[tag].n_tokens == pytest.approx(advice.room.n_tokens, rel=0.05)


def test_commands(hub: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{REPO}:Q4_0"
    assert run_command(["pull", name]) == 0
    said = capsys.readouterr()
    assert f"kvasir chat {name}" in said.out and "Q8_0" in said.err and "tok/s" in said.err
    n_asked = len(hub.asked)
    assert run_command(["pull", name]) == 0 and len(hub.asked) == n_asked
    assert run_command(["cp", name, "mine"]) == 0
    assert run_command(["cp", name, "mine"]) == 1
    assert "kvasir rm mine first" in capsys.readouterr().err
    assert run_command(["list"]) == 0
    listing = capsys.readouterr().out
    assert name in listing and "mine" in listing and "whole" in listing
    assert run_command(["show", "mine"]) == 0
    assert COMMIT in capsys.readouterr().out
    assert run_command(["inspect", "model", "mine"]) == 0
    assert run_command(["rm", name]) == 0
    assert Shelf().is_whole(Shelf().known("mine"))
    assert run_command(["rm", "mine"]) == 0
    assert not Shelf().orphans() and not list(Shelf().files.iterdir())
    assert run_command(["rm", "mine"]) == 1
    assert "no model is called mine" in capsys.readouterr().err


def test_progress_in_ollamas_words(hub: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["pull", "--json", f"{REPO}:Q4_0"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"status": "pulling manifest"} and lines[-1] == {"status": "success"}
    total = len(hub.files[REPO]["tiny.Q4_0.gguf"])
    assert any(x.get("completed") == x.get("total") == total for x in lines)
    assert {"status": "verifying sha256 digest"} in lines


def test_a_partial_model_is_listed_and_removed(
    hub: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults.flips = True
    with pytest.raises(ModelError, match="hash"):
        pull(hub, f"{REPO}:Q4_0", force=True)
    assert run_command(["list"]) == 0
    assert "partial" in capsys.readouterr().out
    assert run_command(["inspect", "model", f"{REPO}:Q4_0"]) == 1
    assert run_command(["prune"]) == 0
    assert not Shelf().models() and not list(Shelf().files.iterdir())


def test_a_pulled_model_asks_no_network(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    pull(hub, f"{REPO}:Q4_0")
    n_asked = len(hub.asked)
    monkeypatch.setattr("socket.socket.connect", None)
    assert open_model(REPO).name == "tiny.Q4_0"
    assert run_command(["inspect", "model", f"{REPO}:Q4_0"]) == 0
    assert len(hub.asked) == n_asked


def test_a_folder_that_is_no_model_hides_no_name(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / REPO).mkdir(parents=True)
    (here / "mine").mkdir()
    monkeypatch.chdir(here)
    options = EngineOptions(model=REPO)
    with pytest.raises(ModelError, match=r"config\.json"):
        open_model(REPO)
    assert present(options)[0] == options and hub.asked == []
    path = Shelf().path(pull(hub, REPO, force=True))
    run_command(["cp", REPO, "mine"])
    for name in (REPO, "mine"):
        assert open_model(name).path == path
        assert present(EngineOptions(model=name))[0].model == str(path)
        assert place_of(Scene(name, cache=tmp_path / "cache")) == path
    (here / "Modelfile").write_text("FROM mine\n")
    assert run_command(["create", "made"]) == 0
    write_hf(tiny.llama(), here / "mine")
    assert open_model("mine").kind == "hf"
    assert present(EngineOptions(model="mine"))[0].model == "mine"


def test_options_that_are_read_again_fetch_nothing(hub: StandIn) -> None:
    """A server's event loop waits for them."""
    options = EngineOptions(model=f"{REPO}:Q4_0")
    assert present(options, pulls=False)[0] == options and hub.asked == []
    assert pull(hub, f"{REPO}:Q4_0", force=True).name == options.model
    found = present(options, pulls=False)[0].model
    assert found is not None and found.endswith("tiny.Q4_0.gguf")


def test_links(hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "outside.gguf"
    place.write_bytes(hub.files[REPO]["tiny.Q4_0.gguf"])
    assert run_command(["import", str(place)]) == 0
    assert run_command(["import", str(place), "--name", "org/x:Q4_0"]) == 0
    assert open_model("outside").name == "outside" and open_model("org/x:Q4_0").kind == "gguf"
    assert run_command(["import", str(tmp_path / "none.gguf")]) == 1
    folder = write_hf(tiny.llama(), tmp_path / "folder")
    assert run_command(["import", str(folder)]) == 0
    assert open_model("folder").kind == "hf"
    assert run_command(["rm", "outside", "folder"]) == 0
    assert place.exists() and (folder / "config.json").exists()
    place.unlink()
    capsys.readouterr()
    assert run_command(["list"]) == 0 and "gone" in capsys.readouterr().out


def test_models_of_others_are_found(
    hub: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = hub.files[REPO]["tiny.Q4_0.gguf"]
    snapshot = tmp_path / ".cache/huggingface/hub/models--org--tiny/snapshots/abc"
    blobs = tmp_path / ".ollama/models/blobs"
    manifest = tmp_path / ".ollama/models/manifests/registry.ollama.ai/library/tiny/latest"
    studio = tmp_path / ".lmstudio/models/org/tiny"
    for folder in (snapshot, blobs, manifest.parent, studio):
        folder.mkdir(parents=True)
    (snapshot / "tiny.Q4_0.gguf").write_bytes(data)
    (studio / "tiny.Q8_0.gguf").write_bytes(data)
    (blobs / "sha256-abc").write_bytes(data)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abc"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    (manifest.parent / "broken").write_text("{")
    (manifest.parent / "deep").write_text("[" * 100_000)
    for name, digest in {"nul": "sha256:a\0b", "up": "../blobs/sha256-abc", "dots": ".."}.items():
        lies = {**layer, "digest": digest}
        (manifest.parent / name).write_text(json.dumps({"layers": [lies]}))
    for place in (manifest.parents[3] / "flat", manifest.parents[2] / "flat"):
        place.write_text(json.dumps({"layers": [layer]}))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    assert run_command(["import"]) == 0
    assert "org/tiny:tiny.Q4_0" in capsys.readouterr().out
    found = outside({}, tmp_path)
    assert [(each.program, each.name) for each in found] == [
        ("hub", "org/tiny:tiny.Q4_0"),
        ("lm-studio", "org/tiny:tiny.Q8_0"),
        ("ollama", "tiny"),
    ]
    shelf = Shelf()
    made = link(shelf, found[0].path, found[0].name, found[0].program)
    assert run_command(["import", "tiny"]) == 0
    assert run_command(["import", "--all"]) == 0
    assert f"{made.name} is there already" in capsys.readouterr().out
    for each in found:
        assert open_model(each.name).kind == "gguf"


def test_a_model_is_made_of_another(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file = tmp_path / "m.gguf", tmp_path / "Modelfile"
    place.write_bytes(hub.files[REPO]["tiny.Q4_0.gguf"])
    for base in (f"{REPO}:Q4_0", "./m.gguf"):
        file.write_text(f"FROM {base}\nSYSTEM be brief\nPARAMETER temperature 0\n")
        assert run_command(["create", "mine", "-f", str(file)]) == 0
        made = Shelf().known("mine")
        assert made.defaults.system == "be brief" and open_model("mine").kind == "gguf"
    file.write_text("FROM mine\nPARAMETER top_k 5\n")
    assert run_command(["create", "other", "-f", str(file)]) == 0
    said = Shelf().known("other").defaults
    assert said.system == "be brief" and said.parameters == {"temperature": 0.0, "top_k": 5}
    file.write_text("FROM nothing\n")
    assert run_command(["create", "x", "-f", str(file)]) == 1
    assert "FROM nothing: there is no such file" in capsys.readouterr().err


def test_the_default_model_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kvasir list shows it."""
    path = write_gguf_model(tiny.llama(), tmp_path / "Default.Q4_1.gguf", "Q8_0")
    monkeypatch.setattr("kvasir.weights.source.cached_default_model", lambda: path)
    assert open_model("Default.Q4_1").path == path
    monkeypatch.setattr("kvasir.cli.library_text.cached_default_model", lambda: path)
    assert run_command(["rm", "Default.Q4_1"]) == 0 and not path.exists()
