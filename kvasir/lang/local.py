"""Programs over an ``LLM`` of this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvasir.lang.calls import Answer, Calling, Counts
from kvasir.lang.stopping import Stop
from kvasir.lang.tokens import DrawnTokens, Ids, Scored, TokenLine, needs_places
from kvasir.lang.turns import Message
from kvasir.offline.batch import Growing
from kvasir.offline.llm import LLM
from kvasir.offline.prompts import Prompt
from kvasir.offline.session import Session, SessionRequest, Ticket
from kvasir.tokenizer.detokenize import Places
from kvasir.tokenizer.spelling import TextPiece
from kvasir.validation.sampling import SamplingParams

HOLD_SECONDS = 600.0
"""That a call's keys and values wait for the next one of its program, unless a running request
needs the memory; the end of the program gives them back."""
SCORE = SamplingParams(seed=0, max_tokens=0, prompt_logprobs=0)


class LocalBackend:
    """All programs that share it are computed together."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._session = llm.session()

    def begin(self) -> TokenLine:
        self._session.opened()
        return TokenLine(LocalTokens(self._session))


class LocalTokens:
    """Of one program."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: list[int] = []

    def encode(self, pieces: Sequence[TextPiece], is_first: bool, is_raw: bool) -> Ids:
        template = self._session.opened().template
        adds = is_first and is_raw
        return tuple(template.spell(pieces, add_special=adds, continues=not is_first))

    def render(self, messages: Sequence[Message], begins_answer: bool) -> str:
        return self._session.opened().template.render(messages, begins_answer)

    def generate(self, ids: Ids, parent: int, calling: Calling) -> DrawnTokens:
        asked = SessionRequest(
            prompt=Prompt(ids), params=calling.params, parent=parent, hold_seconds=HOLD_SECONDS
        )
        ticket = self._session.submit(asked, calling.listen)
        self._kept.append(ticket.number)
        growing = self._ended(ticket, calling.stop)
        output = growing.output(0)
        tokens = tuple(output.token_ids)
        counts = Counts(len(ids), growing.n_cached, len(tokens))
        answer = Answer(output.text, tokens, output.finish_reason, output.stop_reason, counts)
        return DrawnTokens(answer, self._begins(tokens, calling.params), ticket.number)

    def score(self, ids: Ids, parent: int, choices: Sequence[Ids], stop: Stop) -> Scored:
        tickets = [
            self._session.submit(
                SessionRequest(
                    prompt=Prompt((*ids, *choice)),
                    params=SCORE,
                    parent=parent,
                    n_scored=max(0, len(ids) - 1),
                )
            )
            for choice in choices
        ]
        found: list[tuple[float, ...]] = []
        n_cached = 0
        for ticket, choice in zip(tickets, choices, strict=True):
            growing = self._ended(ticket, stop)
            logprobs = [item.logprob for item in growing.prompt_logprobs]
            found.append((*[0.0] * (len(choice) - len(logprobs)), *logprobs))
            n_cached += growing.n_cached
        n_prompt = sum(len(ids) + len(choice) for choice in choices)
        return Scored(tuple(found), Counts(n_prompt, n_cached))

    def keep(self, ids: Ids, parent: int, stop: Stop) -> tuple[int, Counts]:
        asked = SessionRequest(
            prompt=Prompt(ids),
            params=SCORE,
            parent=parent,
            hold_seconds=HOLD_SECONDS,
            n_scored=len(ids) - 2,
        )
        ticket = self._session.submit(asked)
        self._kept.append(ticket.number)
        growing = self._ended(ticket, stop)
        return ticket.number, Counts(len(ids) - 1, growing.n_cached)

    def close(self) -> None:
        kept, self._kept = self._kept, []
        if kept:
            self._session.release(kept)

    def _begins(self, tokens: Ids, params: SamplingParams) -> tuple[int, ...]:
        if not needs_places(params):
            return ()
        tokenizer = self._session.opened().tokenizer
        places = Places(tokenizer, params.skip_special_tokens, continues=True)
        return tuple(map(places.next, tokens))

    def _ended(self, ticket: Ticket, stop: Stop) -> Growing:
        cancel = partial(self._session.cancel, ticket)
        with stop.watching(cancel):
            try:
                growing = ticket.ended.result(stop.seconds_left)
            except TimeoutError:
                cancel()
                raise stop.timeout() from None
        if growing.failure is not None:
            raise growing.failure
        return growing
