"""The programs of a tutorial on SGLang, as they stand there but for the import."""

from __future__ import annotations

import json
from typing import Any

import kvasir.lang as sgl


@sgl.function
def extract_info(s: Any, text: str) -> dict[str, str]:
    s += "Extract information from: " + text + "\n\n"
    s += "Name: "
    s += sgl.gen("name", stop="\n")
    s += "Age: "
    s += sgl.gen("age", stop="\n", regex=r"\d+")
    s += "Email: "
    s += sgl.gen("email", stop="\n", regex=r"[\w\.-]+@[\w\.-]+\.\w+")
    return {"name": s["name"], "age": s["age"], "email": s["email"]}


@sgl.function
def json_generation(s: Any, schema: dict[str, Any]) -> Any:
    s += "Generate a JSON object matching this schema:\n"
    s += str(schema) + "\n\n"
    s += sgl.gen("json", json_schema=schema, max_tokens=500)
    return json.loads(s["json"])


@sgl.function
def multi_perspective(s: Any, question: str) -> str:
    s += f"Question: {question}\n\n"
    fork_results = []
    perspectives = ["optimist", "pessimist", "realist"]
    for perspective in perspectives:
        with sgl.fork(s) as fork:
            fork += f"Answer as a {perspective}:\n"
            fork += sgl.gen(f"answer_{perspective}", max_tokens=100)
            fork_results.append(fork[f"answer_{perspective}"])
    s += "\nSynthesis of all perspectives:\n"
    for p, r in zip(perspectives, fork_results, strict=True):
        s += f"- {p}: {r}\n"
    s += "\nFinal balanced answer:\n"
    s += sgl.gen("final", max_tokens=200)
    return str(s["final"])


@sgl.function
def everything(s: Any, words: str) -> None:
    """Turns, a stop string, forms, branches and scored choices."""
    s += sgl.system("Be good.")
    s += sgl.user(words)
    with s.assistant():
        s += "Well: "
        s += sgl.gen("first", max_tokens=12, stop="e")
        s += " so" + sgl.gen("number", dtype=int)
        forks = s.fork(3)
        for i, fork in enumerate(forks):
            fork += f" way {i}:"
            fork += sgl.gen("way", max_tokens=6)
        for fork in reversed(forks):
            s += fork["way"]
        s += sgl.select("choice", ["yes", "no", "perhaps not"])
        s += sgl.select("other", ["a", "bc"], sgl.greedy_token_selection)
        s += sgl.select("third", ["de", "f"], sgl.unconditional_likelihood_normalized)
    s += sgl.user("And?") + sgl.assistant(sgl.gen("last", max_tokens=8))
