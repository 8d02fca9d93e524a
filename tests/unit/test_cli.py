"""The command line: instant help, derived options, one clear line for every error."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvasir import _native
from kvasir.cli.foreign import COMMANDS as FOREIGN_COMMANDS
from kvasir.cli.foreign import OPTIONS as FOREIGN_OPTIONS
from kvasir.cli.main import COMMANDS, cli, run_command
from kvasir.cli.options import take, with_options
from kvasir.cli.run import _split
from kvasir.cli.sampling import take_sampling, with_sampling
from kvasir.config.options import EngineOptions, describe
from kvasir.config.serving import ServeOptions
from kvasir.core.errors import ConfigError
from kvasir.engine.build import build_engine
from kvasir.exec.backends import BACKENDS
from kvasir.formats.types import FORMATS
from kvasir.library.shelf import Shelf
from kvasir.library.stored import StoredModel
from kvasir.validation.sampling import SamplingParams

ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "starlette", "uvicorn", "tokenizers", "jinja2", "rich", "kvasir._native")

ENGINE = ("numpy", "jinja2", "kvasir._native", "kvasir.engine.engine", "kvasir.offline.llm")


def test_help_lists_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom kvasir.cli.main import run_command\nstatus = run_command(['--help'])\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules], status)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in COMMANDS)
    assert "HEAVY [] 0" in done.stdout


@pytest.mark.parametrize("name", ["chat", "why", "ps", "top"])
def test_words_of_who_asks_a_server_are_completed_without_an_engine(name: str) -> None:
    """Nor is there one behind its help."""
    code = (
        "import sys\nfrom kvasir.cli.main import COMMANDS\nCOMMANDS[sys.argv[1]][0]()\n"
        f"print([name for name in {ENGINE!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_serve_offers_every_option_once() -> None:
    shown = CliRunner().invoke(cli, ["serve", "--help"]).output
    for info in (*describe(EngineOptions), *describe(ServeOptions)):
        if info.name != "model":
            assert len(re.findall(rf"\n  (?:-\w+, )?{info.flag}[ ,\n]", shown)) == 1, info


def test_flags_of_other_servers_are_known_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--tensor-parallel-size", "2", "--enable-chunked-prefill", "--batching-type", "static"]
    assert run_command(["serve", "nothing.gguf", "--swap-space", "4", *flags]) != 0
    told = capsys.readouterr().err
    assert "tensor_parallel_size=2 has no effect: the model runs in one process" in told
    assert "batching_type='static' has no effect: requests join and leave in every step" in told
    assert "enable_chunked_prefill" not in told
    assert run_command(["serve", "--no-such-flag"]) == 2


def test_what_computes_is_one_of_the_backends(capsys: pytest.CaptureFixture[str]) -> None:
    """Their table alone knows them: a new entry is a new word."""
    names = [*BACKENDS]
    shown = CliRunner().invoke(cli, ["serve", "--help"]).output
    assert f"--executor [{'|'.join(names)}]" in shown
    assert run_command(["serve", "--executor", "nonsense"]) == 2
    told = capsys.readouterr().err
    assert "'nonsense' is not one of" in told and all(f"'{name}'" in told for name in names)
    with pytest.raises(ConfigError, match="executor is 'nonsense': use one of cpu, reference, "):
        build_engine(EngineOptions(executor="nonsense"))


def test_the_default_brings_no_backend_along() -> None:
    """A start needs what computes in the engine's process alone."""
    script = """
import sys, click
from kvasir.cli.options import with_options
from kvasir.config.options import EngineOptions
command = click.Command("command", callback=lambda **values: print(values["executor"]))
with_options(EngineOptions)(command).main([], standalone_mode=False)
print("kvasir.exec.backends" in sys.modules)
command.main(["--executor", "fake"], standalone_mode=False)
print("kvasir.exec.backends" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["cpu", "False", "fake", "True"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--version"], ["inspect", "model", "nothing.gguf"]])
def test_what_cannot_be_written_is_a_failure_like_others(arguments: list[str]) -> None:
    """Python has a status of its own, 120, where it cannot flush what is left."""
    command = [sys.executable, "-m", "kvasir", *arguments]
    buffered = {name: x for name, x in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stderr=full, stdout=full, env=buffered, check=False)
    assert done.returncode == 1


def options_from(args: list[str]) -> EngineOptions:
    taken: list[EngineOptions] = []

    @click.command()
    @with_options(EngineOptions)
    def command(**values: object) -> None:
        taken.append(take(EngineOptions, values))

    command.main(args, standalone_mode=False)
    return taken[0]


def test_options_arrive_with_their_types() -> None:
    args = "m.gguf --max-num-seqs 8 --kv-memory 1GiB --no-async-scheduling --dtype float32"
    assert options_from(args.split()) == EngineOptions(
        model="m.gguf",
        max_num_seqs=8,
        kv_memory="1GiB",
        async_scheduling=False,
        dtype="float32",
    )


def test_the_model_may_be_an_option() -> None:
    assert options_from(["--model", "m.gguf"]) == EngineOptions(model="m.gguf")
    with pytest.raises(ConfigError, match=r"MODEL is a\.gguf and --model b\.gguf: give one"):
        options_from(["a.gguf", "--model", "b.gguf"])


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (None, "nothing listens there: start a server (kvasir serve)"),
        (b"SSH-2.0-x\r\n", "it does not speak HTTP"),
        (b"", "it does not speak HTTP"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "is the root of the API"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "check that the address is"),
    ],
)
def test_what_is_no_server_is_told(
    reply: bytes | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(reply or b"")

        thread = threading.Thread(target=answer)
        if reply is None:
            listener.close()
        else:
            thread.start()
        assert run_command(["chat", "--url", f"http://127.0.0.1:{port}"]) == 1
        if reply is not None:
            thread.join()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvasir: ") and says in line


def test_a_hub_name_says_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["inspect", "model", "org/some-model"]) == 1
    assert "kvasir pull org/some-model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serv"], "did you mean serve?"),
        (["ls"], "kvasir list"),
        (["generate", "x"], "kvasir run"),
        (["model.gguf"], "kvasir chat model.gguf"),
        (["serve", "--no-such"], "--no-such"),
        (["serve", "--max-model-lenn", "1"], "--max-model-len"),
        (["serve", "-ngl", "99"], "no such option -ngl: there is no GPU"),
        (["serve", "--ctx-size", "4096"], "--max-model-len"),
        (["serve", "-c", "4096"], "--max-model-len"),
        (["serve", "--parallel=4"], "--max-num-seqs"),
        (["run", "--temp", "0", "x"], "--temperature"),
        (["run", "--num-predict", "5", "x"], "--max-tokens"),
        (["chat", "-hf", "org/repo"], "MODEL is an argument"),
        (["serve", "-m", "x.gguf"], "MODEL is an argument"),
    ],
)
def test_words_of_other_programs_are_answered_with_ours(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("word", FOREIGN_COMMANDS)
def test_a_command_of_others(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([word]) == 2
    assert FOREIGN_COMMANDS[word] in capsys.readouterr().err


@pytest.mark.parametrize("word", FOREIGN_OPTIONS)
def test_an_option_of_others(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["serve", word, "1"]) == 2
    said = capsys.readouterr().err
    assert f"no such option {word}: {FOREIGN_OPTIONS[word]}" in said


def test_what_is_answered_is_there() -> None:
    """No word of ours is called another's, and what is named instead takes it."""
    assert not {*FOREIGN_COMMANDS} & {*COMMANDS}
    flags: set[str] = set()
    for name in ("serve", "run", "chat", "bench"):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        flags |= {flag for param in command.params for flag in param.opts}
    named = {
        word for text in FOREIGN_OPTIONS.values() for word in re.findall(r"--[a-z][a-z-]+", text)
    }
    assert named - flags - {"--version", "--output"} == set()
    assert not {*FOREIGN_OPTIONS} & flags - {"-m"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_told_how_to_complete(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["completion", shell]) == 0
    assert "_KVASIR_COMPLETE" in capsys.readouterr().out


def test_words_are_completed(tmp_path: Path) -> None:
    """Commands, options, and models of the library."""
    shelf = Shelf(tmp_path / "library")
    shelf.keep(StoredModel("org/tiny:Q4_0", "x", ()))
    variables = {**os.environ, "KVASIR_CACHE": str(tmp_path), "_KVASIR_COMPLETE": "zsh_complete"}

    def completed(words: str, n: int) -> str:
        more = {"COMP_WORDS": words, "COMP_CWORD": str(n)}
        command = [sys.executable, "-m", "kvasir"]
        done = subprocess.run(
            command, env=variables | more, capture_output=True, text=True, check=False
        )
        return done.stdout

    assert "serve" in completed("kvasir se", 1)
    assert "--max-model-len" in completed("kvasir serve --max-m", 2)
    assert "org/tiny:Q4_0" in completed("kvasir chat org", 2)


def test_the_package_index_shows_no_dead_link() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / project["readme"]).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if "://" not in link] == []


def test_every_requirement_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[><=]", line)[0].replace("-", "_") for line in project["dependencies"]}
    text = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "kvasir").rglob("*.py"))
    unused = {name for name in names if not re.search(rf"(?m)^\s*(import|from) {name}\b", text)}
    assert unused == set()


def test_no_options_are_the_defaults() -> None:
    assert options_from([]) == EngineOptions()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["serve", "--max-num-seqs", "0"], "--max-num-seqs"),
        (["serve", "--dtype", "int3"], "--dtype"),
        (["serve", "--no-such-option"], "--no-such-option"),
        (["no-such-command"], "no-such-command"),
        (["run"], "PROMPT"),
    ],
)
def test_misuse_exits_with_2(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(args) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["inspect", "model", "no-such-file.gguf"], 1),
        (["run", "no-such-file.gguf", "hello"], 1),
        (["run", "a", "b", "c"], 2),
        (["run", "--raw", "--system", "s", "hello"], 2),
        (["chat", "--url", "ftp://x"], 2),
        (["chat", "--url", "127.0.0.1:1", "--threads", "2"], 2),
        (["chat", "--url", "http://127.0.0.1:1"], 1),
        (["chat", "--url", "http://127.0.0.1:70000"], 2),
        (["inspect", "timeline", "--url", "http://127.0.0.1:1"], 1),
        (["run", "org/name", "hello"], 1),
        (["run", "--model", "a", "b", "c"], 2),
        (["bench", "latency", "--executor", "fake"], 2),
    ],
)
def test_an_error_is_one_line(
    args: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(args) == status
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("kvasir: ")


def test_debug_shows_where_it_happened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="arguments"):
        run_command(["--debug", "run", "a", "b", "c"])


def test_run_takes_a_model_or_none() -> None:
    assert _split(("hello",)) == (None, "hello")
    assert _split(("m.gguf", "hello")) == ("m.gguf", "hello")


def test_sampling_options_become_params() -> None:
    taken: list[SamplingParams] = []

    @click.command()
    @with_sampling(temperature=0.5)
    def command(**values: object) -> None:
        taken.append(take_sampling(values))
        assert values == {}

    command.main(["--seed", "7", "--stop", "a", "--stop", "b"], standalone_mode=False)
    command.main([], standalone_mode=False)
    assert taken == [
        SamplingParams(temperature=0.5, seed=7, stop=["a", "b"], max_tokens=None),
        SamplingParams(temperature=0.5, max_tokens=None),
    ]


def test_formats_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["inspect", "formats"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    levels = len(_native.all_levels())
    assert rows[0][-4:] == ["avx512", "avx512_vnni", "avx512_bf16", "amx*"]
    assert rows[-1][4:] == ", ".join(_native.levels()).split()
    how = {row[0]: row[6:] for row in rows if row[0] in FORMATS}
    assert rows[5][:6] == ["Q4_1", "32", "20", "5", "q4m", "5"]
    assert how["Q4_K"] == ["decoded", *["native"] * levels]
    assert how["IQ2_XXS"] == ["decoded", *["native"] * levels]
    assert how["F16"] == ["decoded", *["native"] * levels]
    assert len(how) == len(FORMATS) == 48


def test_env_reads_the_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVASIR_ISA", "scalar")
    assert run_command(["inspect", "env"]) == 0
    assert '"isa": "scalar"' in capsys.readouterr().out
