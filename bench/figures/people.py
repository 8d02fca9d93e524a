"""What was wanted of the page, and of what is told of slow answers."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.figures.blocks import Blocks
from bench.figures.results import RESULTS, load
from bench.figures.serving import counted, most, results
from bench.figures.target import Read, Target, table

PAGE, WHYS, WATCHED = "page-2cores", "whys-2cores", "watched-2cores"
COMMANDS, KILLS = "commands-2cores", "pull-kills"
FOLDER = "../bench/results/"


def named(document: dict[str, Any]) -> float:
    """Of the causes that were done to it; where nothing was done is told apart."""
    found = [x for name, x in document["results"]["causes"].items() if name != "nothing"]
    return float(sum(x["named"] for x in found) / sum(x["runs"] for x in found))


def silent(document: dict[str, Any]) -> float:
    nothing = document["results"]["causes"]["nothing"]
    return float(nothing["named"] / nothing["runs"])


def taken(command: str) -> Read:
    """The median of its milliseconds."""
    return results("commands", command, "median_ms")


PEOPLE = (
    counted("page, first load: bytes as they are sent", PAGE, results("load", "bytes"), 80_000,
            "{:,.0f}"),
    most("the same: until it is painted", PAGE, results("load", "first_paint_ms"), 300,
         "{:.0f} ms"),
    most("the same: until models are listed", PAGE, results("load", "ready_ms"), 300, "{:.0f} ms"),
    most("a conversation of 2,000 messages is opened", PAGE, results("conversation", "opened"),
         500, "{:.0f} ms"),
    most("10,000 tokens at 400 a second in it: script of a frame, p95", PAGE,
         results("conversation", "p95"), 8, "{:.1f} ms"),
    most("the same, twice: tasks above 50 ms", PAGE, results("conversation", "over_50_ms"), 0,
         "{:.0f}"),
    Target("causes of slow answers, done to real servers: named", WHYS, named, 0.95, "{:.0%}"),
    Target("the same: seconds within a tenth of the client's", WHYS, results("within"), 0.95,
           "{:.0%}"),
    Target("nothing done: nothing named", WHYS, silent, 0.95, "{:.0%}"),
    Target("64 streams, 8 dashboards and 2 `kvasir top` behind them, over none: tokens a second",
           WATCHED, results("median", "behind", "tokens_per_second"), 0.99, "{:.3f}x"),
    most("the same: p99 of the gaps between tokens", WATCHED,
         results("median", "behind", "gap_p99_ms"), 1.05, "{:.3f}x"),
    Target("those who look are the server's equals on its two cores: tokens a second", WATCHED,
           results("median", "beside", "tokens_per_second"), 0.99, "{:.3f}x"),
    most("the same: p99 of the gaps between tokens", WATCHED,
         results("median", "beside", "gap_p99_ms"), 1.05, "{:.3f}x"),
    most("one `kvasir top`, of a core", WATCHED, results("shares", "top_share"), 0.03, "{:.1%}"),
    most("`kvasir --help`", COMMANDS, taken("--help"), 80, "{:.0f} ms"),
    most("completion of a command", COMMANDS, taken("completion of a command"), 120, "{:.0f} ms"),
    most("completion of an option of `serve`", COMMANDS, taken("completion of an option"), 120,
         "{:.0f} ms"),
    most("completion of a model of 20, for `chat`", COMMANDS, taken("completion of a model"), 120,
         "{:.0f} ms"),
    most("`kvasir doctor`", COMMANDS, taken("doctor"), 3000, "{:.0f} ms"),
    Target("a pull beside curl, from a server without a limit", COMMANDS,
           results("pull", "speed_over", "curl"), 0.9),
    Target("the same, curl with `sha256sum` behind it", COMMANDS,
           results("pull", "speed_over", "curl, sha256sum"), 0.9),
    Target("the same, 50 MiB a second, curl alone", COMMANDS,
           results("pull of a line", "speed_over", "curl"), 0.9),
    counted("pulls of 256 MiB killed at 20 moments: MiB that came twice, the most", KILLS,
            lambda d: d["results"]["twice_most"] / (1 << 20), 32, "{:.1f}"),
)  # fmt: skip


def causes() -> str:
    """What was told of each."""
    head = [
        "| done to the server | runs | named | seconds within a tenth | median error | worst |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    rows = []
    for name, x in load(WHYS)["results"]["causes"].items():
        errors = [f"{x[key]:+.1%}" if key in x else "" for key in ("median_error", "worst_error")]
        row = (f"`{name}`", x["runs"], x["named"], x.get("within", ""), *errors)
        rows.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join([*head, *rows]) + "\n"


def watched() -> str:
    """What turns gave that somebody looks at, and turns without."""
    found = load(WATCHED)["results"]
    turns = {"nobody": found["plain"], **found["watched"]}
    head = [
        "| who looks | turns | tokens a second | API process, CPU of a token | with the engine |",
        "|---|--:|--:|--:|--:|",
    ]
    rows = []
    for name, each in turns.items():
        speeds = [x["tokens_per_second"] for x in each]
        api, server = (median([x[key] for x in each]) for key in ("api_us", "server_us"))
        speed = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
        rows.append(f"| {name} | {len(each)} | {speed} | {api:.0f} µs | {server:,.0f} µs |")
    return "\n".join([*head, *rows]) + "\n"


def linked() -> str:
    """The table of targets that there are results of, as a page of docs links to them."""
    there = [x for x in PEOPLE if (RESULTS / f"{x.result}.json").exists()]
    return table(there, FOLDER)


PEOPLE_BLOCKS: Blocks = {"people": linked, "causes": causes, "watched": watched}
