"""What a client asks for, whatever its dialect: read from JSON, not yet checked against a model."""

from __future__ import annotations

import msgspec

from kvasir.core.request import ALIKE, Standing
from kvasir.serve.pieces import Mixed
from kvasir.serve.protocol.thinking import ThinkingWish
from kvasir.serve.resolved import Ids, Json
from kvasir.serve.tools import ToolWish
from kvasir.tokenizer.messages import ChatMessage
from kvasir.toolcalls.reading import Thoughts
from kvasir.validation.names import OWN, Names
from kvasir.validation.sampling import SamplingParams

Prompt = str | Ids | Mixed


class Truncation(msgspec.Struct, frozen=True):
    """What is left of a text that is too long."""

    limit: int | None = None
    """Tokens; None: as many as the context holds."""
    keeps_end: bool = False


class PoolWish(msgspec.Struct, frozen=True, kw_only=True):
    """``prompts`` are texts to be made vectors of; or, where they are compared, ``n_queries`` of
    them and the documents behind."""

    pooling: str | None = None
    """None: as the model was trained."""
    prompt_name: str | None = None
    """Of what stands before each text; None: as the model's file says."""
    dimensions: int | None = None
    truncation: Truncation | None = None
    """None: a text that is too long is refused."""
    method: str | None = None
    """How texts are compared, of METHODS; None where they are not."""
    n_queries: int = 0
    classifies: bool = False
    """The labels of each text are wanted."""
    instruction: str | None = None
    """What the judge of pairs is told to look for."""


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer has to do with others, before it and after."""

    is_stored: bool
    is_background: bool = False
    """Nobody waits for it."""
    previous: str | None = None
    """The id of the answer that it goes on from."""
    n_instructions: int = 0
    """Messages at the beginning that are of this request alone."""
    conversation: str | None = None
    """The id of what it goes on with, and is added to."""
    is_resumable: bool = False
    """It is computed whoever listens, and told again from anywhere."""
    metadata: Json = msgspec.field(default_factory=dict)
    """Texts by which it is found."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Either ``prompts`` or ``messages``; with both, the prompts are for models without a chat
    template."""

    dialect: str
    params: SamplingParams
    prompts: tuple[Prompt, ...] = ()
    messages: tuple[ChatMessage, ...] = ()
    before: Ids = ()
    """Of what was said before the messages, in the model's own form."""
    drops_turns: bool = False
    """Whether the oldest messages may be left out until the others fit."""
    drops_start: bool = False
    """Whether a prompt loses its first tokens until it leaves room for the answer."""
    room: int | None = None
    """Tokens that prompt and answer may have together; None leaves it to the model."""
    add_special: bool = True
    """Whether the tokenizer adds the special tokens with which texts begin."""
    add_generation_prompt: bool = True
    continues_last: bool = False
    """The answer goes on with the last message."""
    model: str | None = None
    names: Names = OWN
    """What its errors call the fields."""
    salt: str = ""
    session: str = ""
    """Its requests are answered one after another."""
    standing: Standing = ALIKE
    """Without the time limits, which are in ``params`` and count from the arrival."""
    length_penalty: float | None = None
    """Of a beam search; None draws."""
    early_stopping: bool = False
    stream: bool = False
    gathers: bool = False
    """Whether the end of its stream says everything again."""
    stream_interval: int = 1
    """As in ``Resolved``."""
    ping: int = 0
    """As in ``Resolved``."""
    echoes: bool = False
    """Whether the answer gives the prompts back."""
    scores_from: int = 0
    """The first token of each prompt whose log probability is wanted, where any is."""
    warnings: tuple[str, ...] = ()
    pool: PoolWish | None = None
    """Vectors of the texts are wanted instead of continuations, or what texts have in common."""
    tools: ToolWish | None = None
    tells_pieces: bool = False
    """Whether the dialect tells reasoning and calls from content; else all is one text."""
    prediction: str = ""
    """What much of the answer is expected to be."""
    variables: Json = msgspec.field(default_factory=dict)
    """Of the chat template."""
    thinking: ThinkingWish | None = None
    """When reasoning shall end; None: when the model ends it."""
    thoughts: Thoughts | None = None
    """Where reasoning is told; None: as the server has it."""
    keep: Keep | None = None
    """Of dialects whose answers may be stored."""
    show: Json = msgspec.field(default_factory=dict)
    """As in ``Resolved``."""


class LoadWish(msgspec.Struct, frozen=True):
    """A model is asked to be there, or to go, and nothing else."""

    model: str | None
    goes: bool
    """Whether its memory is wanted back."""
    said: Json
    """What the answer holds in the place of text."""
    warnings: tuple[str, ...] = ()
