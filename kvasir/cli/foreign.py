"""What people type who come from llama.cpp and Ollama, and what it is here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import click

COMMANDS = {
    "start": "kvasir serve",
    "server": "kvasir serve",
    "stop": "end the server with Ctrl-C or SIGTERM, or systemctl stop kvasir",
    "push": "nothing is pushed: models stay on this machine",
    "search": "search on the hub's site, then kvasir pull ORG/REPO",
    "download": "kvasir pull",
    "get": "kvasir pull",
    "remove": "kvasir rm",
    "delete": "kvasir rm",
    "ls": "kvasir list",
    "models": "kvasir list",
    "copy": "kvasir cp",
    "info": "kvasir show, kvasir inspect model",
    "generate": "kvasir run",
    "complete": "kvasir run --raw",
    "cli": "kvasir chat",
    "benchmark": "kvasir bench",
    "convert": "folders of safetensors are read as they are",
    "check": "kvasir doctor",
    "stats": "kvasir top",
    "version": "kvasir --version",
    "help": "kvasir --help",
}
"""Words of other programs that are no command here."""
_MODEL = "MODEL is an argument: kvasir serve MODEL"
_HUB = "MODEL is an argument, of the hub too: kvasir serve ORG/REPO:QUANT"
_NO_GPU = "there is no GPU: leave it out"
_ALWAYS = "it is always so: leave it out"
OPTIONS = {
    "-m": _MODEL,
    "-hf": _HUB,
    "--hf-repo": _HUB,
    "-hfr": _HUB,
    "--hf-file": _HUB,
    "-c": "--max-model-len",
    "--ctx-size": "--max-model-len",
    "--num-ctx": "--max-model-len",
    "-n": "--max-tokens",
    "--predict": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--num-predict": "--max-tokens",
    "-t": "--threads",
    "-tb": "--threads",
    "--threads-batch": "--threads",
    "-np": "--max-num-seqs",
    "--parallel": "--max-num-seqs",
    "-b": "--max-num-batched-tokens",
    "--batch-size": "--max-num-batched-tokens",
    "-ub": "--max-num-batched-tokens",
    "--ubatch-size": "--max-num-batched-tokens",
    "-ngl": _NO_GPU,
    "--n-gpu-layers": _NO_GPU,
    "--gpu-layers": _NO_GPU,
    "--num-gpu": _NO_GPU,
    "--main-gpu": _NO_GPU,
    "--split-mode": _NO_GPU,
    "-fa": _ALWAYS,
    "--flash-attn": _ALWAYS,
    "-cb": _ALWAYS,
    "--cont-batching": _ALWAYS,
    "--jinja": _ALWAYS,
    "--mlock": "weights are mapped: leave it out",
    "--no-mmap": "weights are mapped: leave it out",
    "-ctk": "--kv-cache-dtype, for keys and values together",
    "-ctv": "--kv-cache-dtype, for keys and values together",
    "--cache-type-k": "--kv-cache-dtype, for keys and values together",
    "--cache-type-v": "--kv-cache-dtype, for keys and values together",
    "--temp": "--temperature",
    "--repeat-penalty": "--repetition-penalty",
    "-s": "--seed",
    "-p": 'the prompt is an argument: kvasir run "…"',
    "--prompt": 'the prompt is an argument: kvasir run "…"',
    "-f": 'a prompt of standard input is "-": kvasir run - < FILE',
    "-i": "kvasir chat",
    "-cnv": "kvasir chat",
    "--interactive": "kvasir chat",
    "-sys": "--system",
    "--system-prompt": "--system",
    "--alias": "--served-model-name",
    "-a": "--served-model-name",
    "--verbose": "--log-level debug; of bench, answers are in --output",
    "-v": "--log-level debug; kvasir --version shows the version",
    "--keepalive": "models stay: --sleep-idle-seconds gives their memory back",
    "--slot-save-path": "--kv-disk DIR",
    "--chat-template": "the template of the model's file is used: put another one into the file",
    "--lora": "adapters are not supported: merge it into the model",
    "--rope-scaling": "it follows from the model's file: leave it out",
    "--metrics": _ALWAYS,
    "--slots": _ALWAYS,
    "--embedding": "a model that makes vectors is served as any other: leave it out",
    "--reranking": "a model that ranks is served as any other: leave it out",
}
"""Options of llama.cpp's programs and Ollama's that are none here."""


def command_hint(name: str, commands: Iterable[str]) -> str:
    """What was meant by a command that there is not."""
    if name in COMMANDS:
        return f"no such command {name!r}: {COMMANDS[name]}"
    if name.endswith(".gguf") or "/" in name:
        return f"{name!r} is a model, and a command is missing: kvasir chat {name}"
    near = difflib.get_close_matches(name, list(commands), 1, 0.5)
    meant = f"did you mean {near[0]}?" if near else "kvasir --help lists those that there are"
    return f"no such command {name!r}: {meant}"


def explained(error: click.ClickException, words: Sequence[str]) -> click.ClickException:
    """``error``, or what an option of another program is here. ``words``: of the command line."""
    if not isinstance(error, click.NoSuchOption):
        return error
    said = error.option_name
    typed = (word.split("=")[0] for word in words)
    name = next((x for x in typed if x in OPTIONS and _may_be(x, said)), said)
    if name not in OPTIONS:
        return error
    return click.NoSuchOption(name, f"no such option {name}: {OPTIONS[name]}", ctx=error.ctx)


def _may_be(typed: str, said: str) -> bool:
    """Whether click says ``said`` of ``typed``: it takes -hf for -h and -f."""
    is_short = said[:2] != "--" and typed[:2] != "--"
    return typed == said or (is_short and said.strip("-") in typed)
