"""langchain-openai."""

from __future__ import annotations

import asyncio

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from .asked import KEY, MODEL, QUESTION, URL

ASKED = {"base_url": URL + "/v1", "api_key": KEY, "model": MODEL, "max_retries": 0}


def test_chat_streamed_equals_whole():
    chat = ChatOpenAI(**ASKED, temperature=0, max_tokens=16, stream_usage=True)
    whole = chat.invoke(QUESTION)
    parts = list(chat.stream(QUESTION))
    assert "".join(part.content for part in parts) == whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    assert [answer.content for answer in chat.batch([QUESTION] * 3)] == [whole.content] * 3


def test_responses():
    chat = ChatOpenAI(**ASKED, temperature=0, max_tokens=16, use_responses_api=True)
    plain = ChatOpenAI(**ASKED, temperature=0, max_tokens=16)
    assert chat.invoke(QUESTION).text == plain.invoke(QUESTION).text
    assert "".join(part.text for part in chat.stream(QUESTION)) == plain.invoke(QUESTION).text


def test_async():
    chat = ChatOpenAI(**ASKED, temperature=0, max_tokens=8)

    async def ask():
        return "".join([part.content async for part in chat.astream(QUESTION)])

    assert asyncio.run(ask()) == chat.invoke(QUESTION).content


def test_embeddings():
    made = OpenAIEmbeddings(
        base_url=URL + "/v1", api_key=KEY, model=MODEL, check_embedding_ctx_length=False
    )
    assert len(made.embed_documents(["one", "two"])) == 2
