"""The dialects by their names, and where they are spoken."""

from __future__ import annotations

from kvasir.serve.answer import Dialect
from kvasir.serve.dialects import ollama_embed, rank, vectors
from kvasir.serve.dialects.chat import CHAT
from kvasir.serve.dialects.completions import COMPLETIONS
from kvasir.serve.dialects.kserve import KSERVE_GENERATE, KSERVE_INFER, KSERVE_STREAM
from kvasir.serve.dialects.llama_server import LLAMA_COMPLETION, LLAMA_INFILL
from kvasir.serve.dialects.messages import MESSAGES, MESSAGES_TO_COUNT
from kvasir.serve.dialects.ollama import OLLAMA_CHAT, OLLAMA_GENERATE
from kvasir.serve.dialects.responses import RESPONSES
from kvasir.serve.dialects.sagemaker import INVOCATIONS
from kvasir.serve.dialects.tgi import TGI, TGI_STREAM
from kvasir.serve.dialects.vertex import VERTEX

GENERATES: dict[str, Dialect] = {
    "/v1/completions": COMPLETIONS,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/api/generate": OLLAMA_GENERATE,
    "/api/chat": OLLAMA_CHAT,
    "/completion": LLAMA_COMPLETION,
    "/infill": LLAMA_INFILL,
    "/generate": TGI,
    "/generate_stream": TGI_STREAM,
    "/v2/models/{model}/infer": KSERVE_INFER,
    "/v2/models/{model}/generate": KSERVE_GENERATE,
    "/v2/models/{model}/generate_stream": KSERVE_STREAM,
    "/invocations": INVOCATIONS,
    "/vertex": VERTEX,
    **vectors.DIALECTS,
    **ollama_embed.DIALECTS,
    **rank.DIALECTS,
}
"""Paths that take a request and answer it."""
DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in reversed(list(GENERATES.values()))
}
"""Of those of one name the first."""
COUNTS: dict[str, Dialect] = {
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/responses/input_tokens": RESPONSES,
    "/v1/messages/count_tokens": MESSAGES_TO_COUNT,
}
"""Paths that take the same and count the tokens of its prompt."""
RENDERS: dict[str, Dialect] = {
    "/v1/completions/render": COMPLETIONS,
    "/v1/chat/completions/render": CHAT,
}
"""Paths that take the same and give its prompts as the model would see them."""
