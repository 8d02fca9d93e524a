"""The model itself as a judge: whether a document answers a query, by the odds of "yes" and "no".

The words are those with which Qwen3-Reranker was trained; any model that follows instructions
understands them.
"""

from __future__ import annotations

from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.tokenizer import Tokenizer

TASK = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
ANSWERS = ("yes", "no")


def question(query: str, document: str, instruction: str | None) -> list[dict[str, object]]:
    """A conversation that ends where the model says yes or no. Queries come first, so that all
    documents of one share what is cached of it."""
    asked = (
        f"<Instruct>: {instruction or INSTRUCTION}\n\n<Query>: {query}\n\n<Document>: {document}"
    )
    return [{"role": "system", "content": TASK}, {"role": "user", "content": asked}]


def answer_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Of "yes" and "no", where each is one token; else none."""
    spelled = [tokenizer.encode(word, add_special=False) for word in ANSWERS]
    return tuple(ids[0] for ids in spelled) if all(len(ids) == 1 for ids in spelled) else ()


def judging_problem(tokenizer: Tokenizer, template: ChatTemplate) -> str | None:
    """Why a model cannot judge; None where it can."""
    if template.problem is not None:
        return template.problem
    if not answer_ids(tokenizer):
        return "this model spells yes and no in more than one token and cannot judge by them"
    return None
