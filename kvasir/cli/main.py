"""The ``kvasir`` command. Each command is imported when it is called: help is instant."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click

from kvasir.cli.foreign import command_hint, explained
from kvasir.cli.terminal import show
from kvasir.core.errors import ConfigError, KvasirError, RequestError, printable

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def _serve() -> click.Command:
    from kvasir.cli.serve import serve

    return serve


def _config() -> click.Command:
    from kvasir.cli.config import config

    return config


def _chat() -> click.Command:
    from kvasir.cli.chat import chat

    return chat


def _run() -> click.Command:
    from kvasir.cli.run import run

    return run


def _bench() -> click.Command:
    from kvasir.cli.bench import bench

    return bench


def _inspect() -> click.Command:
    from kvasir.cli.inspect import inspect

    return inspect


def _plan() -> click.Command:
    from kvasir.cli.plan import plan

    return plan


def _keys() -> click.Command:
    from kvasir.cli.keys import keys

    return keys


def _doctor() -> click.Command:
    from kvasir.cli.doctor import doctor

    return doctor


def _top() -> click.Command:
    from kvasir.cli.top import top

    return top


def _service() -> click.Command:
    from kvasir.cli.service import service

    return service


def _completion() -> click.Command:
    from kvasir.cli.completion import completion

    return completion


def _profile() -> click.Command:
    from kvasir.cli.profile import profile

    return profile


def _evaluate() -> click.Command:
    from kvasir.cli.evaluate import evaluate

    return evaluate


def _tune() -> click.Command:
    from kvasir.cli.tune import tune

    return tune


def _quantize() -> click.Command:
    from kvasir.cli.quantize import quantize

    return quantize


def _imatrix() -> click.Command:
    from kvasir.cli.imatrix import imatrix

    return imatrix


def _advise() -> click.Command:
    from kvasir.cli.advise import advise

    return advise


def _why() -> click.Command:
    from kvasir.cli.why import why

    return why


def _library(name: str) -> Callable[[], click.Command]:
    def load() -> click.Command:
        from kvasir.cli import library

        found: click.Command = vars(library)[name]
        return found

    return load


COMMANDS: dict[str, tuple[Callable[[], click.Command], str]] = {
    "serve": (_serve, "Serve a model over HTTP, as OpenAI's API does."),
    "config": (_config, "Show what the options of serve come to, and why."),
    "chat": (_chat, "Talk to a model, here or on a server."),
    "run": (_run, "Answer one prompt on standard output."),
    "bench": (_bench, "Measure latency, throughput and the machine's ceilings."),
    "profile": (_profile, "What bounds a model here: memory, arithmetic, or neither."),
    "advise": (_advise, "Which format of a model to take here, for a load."),
    "quantize": (_quantize, "Make a smaller model of a model."),
    "imatrix": (_imatrix, "What matters of each matrix, for K-quants."),
    "tune": (_tune, "Measure which kernels are fastest here for a model."),
    "evaluate": (_evaluate, "Perplexity of a model, and its divergence from another."),
    "pull": (_library("pull"), "Fetch a model from the Hugging Face hub."),
    "list": (_library("list_command"), "Show the models of this machine."),
    "show": (_library("show"), "Show what is known of one of them."),
    "rm": (_library("rm"), "Remove models, whole or partial."),
    "cp": (_library("cp"), "Give a model another name."),
    "import": (_library("import_command"), "Link a model that is on this machine already."),
    "create": (_library("create"), "Make a model of a Modelfile."),
    "prune": (_library("prune"), "Remove what interrupted pulls left."),
    "ps": (_library("ps"), "Show the models of a running server."),
    "doctor": (_doctor, "Look for what is wrong, and say the cure."),
    "top": (_top, "Watch a running server."),
    "why": (_why, "What made an answer of a server slow."),
    "keys": (_keys, "Make and end the API keys of a server."),
    "plan": (_plan, "What would fit into memory, and what helps."),
    "inspect": (_inspect, "Show a model, its program, the formats, a timeline or the environment."),
    "service": (_service, "Have systemd keep a server."),
    "completion": (_completion, "Complete words of kvasir in a shell."),
}


class LazyGroup(click.Group):
    """Knows the commands by name and one line of help; loads the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return COMMANDS[cmd_name][0]() if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that ``args`` begin with. Raises UsageError with the nearest one."""
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(command_hint(args[0], COMMANDS))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="kvasir-llm", prog_name="kvasir")
def cli(debug: bool) -> None:
    """Kvasir serves large language models. Without MODEL a small default model is used."""


def run_command(args: Sequence[str], command: click.Command = cli, name: str = "kvasir") -> int:
    """Run ``command args`` and give the exit status: 0, 1 failed, 2 misused, 130 interrupted."""
    try:
        result = command.main(list(args), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        explained(error, args).show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("kvasir: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except KvasirError as error:
        if "--debug" in args:
            raise
        show(f"kvasir: {error.message}\n", sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError | RequestError) else EXIT_FAILED
    except OSError as error:
        if "--debug" in args:
            raise
        _tell(error)
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def _tell(error: OSError) -> None:
    """One line; none when nobody reads what is written any more."""
    if not isinstance(error, BrokenPipeError):
        where = "" if error.filename is None else f"{printable(str(error.filename))}: "
        print(f"kvasir: {where}{error.strerror or error}", file=sys.stderr)
