"""Which of some choices a model finds likeliest: three ways to weigh the log probabilities of their
tokens. They have the names and the meanings of SGLang's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum

Logprobs = Sequence[Sequence[float]]
"""Of each choice, the natural-log probability of each of its tokens."""


@dataclass(frozen=True, slots=True)
class ChoiceMethod:
    name: str
    scores: Callable[[Logprobs, Logprobs], list[float]]
    """Of the choices, from their tokens after what the program said and, where that is needed,
    after nothing. The first of the highest is chosen."""
    needs_unconditional: bool = False


def _means(given: Logprobs, alone: Logprobs) -> list[float]:
    return [fsum(tokens) / len(tokens) for tokens in given]


def _greedy(given: Logprobs, alone: Logprobs) -> list[float]:
    """At each token those stay that are likeliest there; a choice that has ended goes on with its
    mean. The score is the number of tokens that a choice stays for."""
    means, left = _means(given, alone), list(range(len(given)))
    scores = [0.0] * len(given)
    for at in range(max(map(len, given))):
        found = {i: given[i][at] if at < len(given[i]) else means[i] for i in left}
        best = max(found.values())
        left = [i for i in left if found[i] == best]
        for i in left:
            scores[i] += 1.0
        if len(left) == 1:
            break
    return scores


def _gains(given: Logprobs, alone: Logprobs) -> list[float]:
    pairs = zip(given, alone, strict=True)
    return [(fsum(tokens) - fsum(without)) / len(tokens) for tokens, without in pairs]


token_length_normalized = ChoiceMethod("token_length_normalized", _means)
"""The mean over its tokens."""
greedy_token_selection = ChoiceMethod("greedy_token_selection", _greedy)
"""The choice that greedy decoding among the choices would come to."""
unconditional_likelihood_normalized = ChoiceMethod(
    "unconditional_likelihood_normalized", _gains, needs_unconditional=True
)
"""The mean over its tokens of what they are likelier by than without what the program said; the
first token of a choice that nothing at all stands before counts nothing there."""
