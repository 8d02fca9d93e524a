"""Programs over language models: Python functions whose text grows by calls of a model.

The language is that of SGLang's frontend (Zheng et al. 2023, "SGLang: Efficient Execution of
Structured Language Model Programs"); docs/lang.md says what differs.
"""

from kvasir.lang.calls import Answer
from kvasir.lang.defaults import set_default_backend
from kvasir.lang.expressions import assistant, gen, select, system, user
from kvasir.lang.openai import OpenAIServer
from kvasir.lang.program import ProgramFunction, ProgramStream, function
from kvasir.lang.remote import KvasirServer
from kvasir.lang.scoring import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from kvasir.lang.state import Forks, ProgramState, fork
from kvasir.lang.stopping import ProgramCancelled, ProgramTimeout
from kvasir.lang.trace import Trace

__all__ = [
    "Answer",
    "Forks",
    "KvasirServer",
    "OpenAIServer",
    "ProgramCancelled",
    "ProgramFunction",
    "ProgramState",
    "ProgramStream",
    "ProgramTimeout",
    "Trace",
    "assistant",
    "fork",
    "function",
    "gen",
    "greedy_token_selection",
    "select",
    "set_default_backend",
    "system",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
]
