"""Where an option's value comes from: file, environment, command line, in this order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir.cli.main import run_command
from kvasir.config.options import EngineOptions
from kvasir.config.serving import ServeOptions
from kvasir.config.settings import Settings, Sources
from kvasir.core.errors import ConfigError
from tests.e2e.toy_model import write_toy_model

TEXT = """\
# What this machine serves.
port = 9000
max-requests = 10
kv_memory = "64MiB"
max_batch_size = 3
strict = true
"""


def read(tmp_path: Path, text: str = TEXT, **given: dict[str, object]) -> Settings:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    variables = {name: str(value) for name, value in given.get("variables", {}).items()}
    return Sources(path, variables, given.get("flags", {})).read(EngineOptions, ServeOptions)


def test_the_last_source_wins_and_is_named(tmp_path: Path) -> None:
    variables: dict[str, object] = {"KVASIR_PORT": "9001", "KVASIR_MAX_REQUESTS": "11"}
    settings = read(tmp_path, variables=variables, flags={"port": 9002})
    serve, engine = settings.of(ServeOptions), settings.of(EngineOptions)
    assert (serve.port, serve.max_requests, serve.strict) == (9002, 11, True)
    assert (engine.kv_memory, engine.max_num_seqs) == ("64MiB", 3)
    said = {name: setting.said for name, setting in settings.by_name.items()}
    file = tmp_path / "serve.toml"
    assert said["port"] == "--port"
    assert said["max_requests"] == "KVASIR_MAX_REQUESTS"
    assert (said["kv_memory"], said["strict"]) == (f"{file}:4", f"{file}:6")
    assert (said["max_num_seqs"], said["host"]) == (f"{file}:5", "default")
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port = 'x'\n", r"serve\.toml:1: port is 'x': needs a whole number"),
        ("\nport = 8.5\n", r"serve\.toml:2: port is 8\.5: needs a whole number"),
        ("port = 70000", r"serve\.toml:1: port is 70000: can be 65535 at most"),
        ("strict = 1", r"serve\.toml:1: strict is 1: needs true or false"),
        ("prot = 1", r"serve\.toml:1: 'prot' is no option: did you mean port\?"),
        ("[serve]\nport = 1", r"serve\.toml:1: 'serve' is no option"),
        ("max_num_seqs = 1\nmax_batch_size = 2", r"serve\.toml:1 and .*:2 both set max_num_seqs"),
        ("port = \n", r"serve\.toml: .*line 1"),
        ("port = 1\nport = 2\n", r"serve\.toml: .*line 2"),
    ],
)
def test_a_bad_file_names_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, text)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Sources(tmp_path / "none.toml").read(ServeOptions)
    with pytest.raises(ConfigError, match="Is a directory"):
        Sources(tmp_path).read(ServeOptions)
    large = tmp_path / "large.toml"
    large.write_text("#" * 2**21)
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        Sources(large).read(ServeOptions)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"port = \xff")
    with pytest.raises(ConfigError, match="no UTF-8 text at byte 7"):
        Sources(binary).read(ServeOptions)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("KVASIR_PORT", "x", "KVASIR_PORT: port is 'x': needs a whole number"),
        ("KVASIR_STRICT", "maybe", "KVASIR_STRICT: strict is 'maybe': needs true or false"),
        ("KVASIR_DTYPE", "int3", "KVASIR_DTYPE: dtype is 'int3': use one of"),
        ("KVASIR_GPU_MEMORY_UTILIZATION", "2", "a number above 0, at most 1"),
    ],
)
def test_a_bad_variable_is_named(variable: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Sources(None, {variable: text}).read(EngineOptions, ServeOptions)


def test_variables_have_the_types_of_their_options() -> None:
    variables = {
        "KVASIR_STRICT": "On",
        "KVASIR_KV_MEMORY": "1048576",
        "KVASIR_GPU_MEMORY_UTILIZATION": "0.5",
        "KVASIR_ENABLE_PREFIX_CACHING": "0",
        "KVASIR_CPU_AFFINITY": "0",
        "KVASIR_HOST": "",
        "OTHER": "1",
    }
    settings = Sources(None, variables).read(EngineOptions, ServeOptions)
    engine, serve = settings.of(EngineOptions), settings.of(ServeOptions)
    assert (engine.kv_memory, engine.gpu_memory_utilization) == (1048576, 0.5)
    assert (engine.enable_prefix_caching, engine.cpu_affinity) == (False, "0")
    assert (serve.strict, serve.host, settings.warnings) == (True, "127.0.0.1", ())


def test_a_variable_that_is_no_option_is_told_and_those_of_kubernetes_are_no_options() -> None:
    variables = {
        "KVASIR_PRT": "1",
        "KVASIR_CACHE": "/c",
        "KVASIR_CONFIG": "/c",
        "KVASIR_PORT": "tcp://10.0.0.7:8000",
        "KVASIR_SERVICE_HOST": "10.0.0.7",
        "KVASIR_SERVICE_PORT_HTTP": "8000",
        "KVASIR_PORT_8000_TCP_ADDR": "10.0.0.7",
    }
    settings = Sources(None, variables).read(EngineOptions, ServeOptions)
    assert settings.of(ServeOptions).port == 8000
    service, mistake = settings.warnings
    assert "which Kubernetes sets for a Service" in service and "enableServiceLinks" in service
    assert mistake == (
        "KVASIR_PRT has no effect, there is no such option: did you mean KVASIR_PORT?"
    )


def test_config_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_toy_model(tmp_path / "toy")
    path = tmp_path / "serve.toml"
    path.write_text('port = 9000\nmax_requests = 5\napi_key = "se3ret"\n')
    monkeypatch.setenv("KVASIR_MAX_REQUESTS", "7")
    monkeypatch.setenv("KVASIR_CONFIG", str(path))
    args = ["config", str(model), "--executor", "reference", "--port", "9001"]
    assert run_command(args) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line.split(None, 2)[1:] for line in shown.splitlines()}
    assert rows["port"] == ["9001", "--port"]
    assert rows["max_requests"] == ["7", "KVASIR_MAX_REQUESTS"]
    assert rows["model"] == [str(model), "MODEL"]
    assert rows["dtype"] == ["float32", "computed: the weights are float32"]
    assert rows["max_model_len"] == ["4096", "computed: the model's context"]
    assert rows["host"] == ["127.0.0.1", "default"]
    assert "not shown)" in shown and "se3ret" not in shown


def test_serve_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("max_body_bytes = 2\nmax_body_memory = 1\n")
    command = [sys.executable, "-m", "kvasir", "serve", "m", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ})
    assert done.returncode == 2
    assert "max_body_bytes is 2, max_body_memory 1" in done.stderr
