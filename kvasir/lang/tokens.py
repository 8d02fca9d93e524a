"""Lines as token ids: what was drawn is never read and tokenized again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kvasir.core.errors import RequestError
from kvasir.lang.calls import Answer, Calling, Counts, ProgramLine
from kvasir.lang.expressions import Role, Select
from kvasir.lang.stopping import Stop
from kvasir.lang.turns import NO_TURNS, Message, TemplateTurns
from kvasir.tokenizer.spelling import TextPiece
from kvasir.validation.sampling import SamplingParams

Ids = tuple[int, ...]
NOBODY = -1


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    answer: Answer
    begins: tuple[int, ...] = ()
    """Where in the text each token begins (characters); told where ``needs_places`` says so."""
    kept: int = NOBODY
    """Whose keys and values others can go on from."""


@dataclass(frozen=True, slots=True)
class Scored:
    logprobs: tuple[tuple[float, ...], ...]
    """Of each choice, those of its tokens."""
    counts: Counts


class Tokens(Protocol):
    """A model for one program, in ids. Any thread; what computes waits, and raises KvasirError."""

    def encode(self, pieces: Sequence[TextPiece], is_first: bool, is_raw: bool) -> Ids:
        """Ids of the text that ``pieces`` make together. ``is_first``: nothing stands before it.
        ``is_raw``: no chat template has written any of it."""
        ...

    def render(self, messages: Sequence[Message], begins_answer: bool) -> str: ...

    def generate(self, ids: Ids, parent: int, calling: Calling) -> DrawnTokens:
        """``parent``: whoever is ``kept`` with the beginning of ``ids``; NOBODY: none."""
        ...

    def score(self, ids: Ids, parent: int, choices: Sequence[Ids], stop: Stop) -> Scored:
        """``choices`` after ``ids``. After no ids at all the first token has 0."""
        ...

    def keep(self, ids: Ids, parent: int, stop: Stop) -> tuple[int, Counts]:
        """Who is kept with all but the last of ``ids``, computed now where they are not yet."""
        ...

    def close(self) -> None:
        """Whoever is kept is so no more."""
        ...


@dataclass(frozen=True, slots=True)
class TokenLine:
    tokens: Tokens
    ids: Ids = ()
    pieces: tuple[TextPiece, ...] = ()
    """What was said behind ``ids``. It is tokenized when a call needs it, all at once."""
    turns: TemplateTurns = NO_TURNS
    text: str = ""
    kept: int = NOBODY
    n_kept: int = 0
    """Tokens that it is kept with."""

    def said(self, text: str) -> TokenLine:
        if self.turns.roles and not self.turns.is_open:
            raise RequestError(
                "text stands between two turns: say it inside one (system, user, assistant)"
            )
        return self._with(TextPiece(text, not self.turns.roles))

    def opened(self, role: Role) -> TokenLine:
        if not self.turns.roles and (self.ids or self.pieces):
            raise RequestError("a turn begins after text without turns: use one or the other")
        turns, text = self.turns.open(role, self.tokens.render)
        return replace(self._with(TextPiece(text, True)), turns=turns)

    def closed(self) -> TokenLine:
        return replace(self, turns=self.turns.close())

    def generate(self, calling: Calling) -> tuple[ProgramLine, Answer]:
        self._check_place()
        line = self._encoded()
        drawn = self.tokens.generate(line.ids, line.kept, calling)
        return line._after(drawn, calling.params), drawn.answer

    def select(self, select: Select, calling: Calling) -> tuple[ProgramLine, Answer]:
        self._check_place()
        line = self._encoded()
        if not line.ids:
            raise RequestError("choices are scored after a text: say something first")
        choices = [line._encode((TextPiece(text, False),)) for text in select.choices]
        if not all(choices):
            raise RequestError("a choice has no tokens")
        line, shared = line._kept(calling.stop)
        given = self.tokens.score(line.ids, line.kept, choices, calling.stop)
        parts = [shared, given.counts]
        alone: tuple[tuple[float, ...], ...] = ()
        if select.method.needs_unconditional:
            begin = self.tokens.encode((), True, True)
            without = self.tokens.score(begin, NOBODY, choices, calling.stop)
            parts.append(without.counts)
            alone = without.logprobs
        scores = select.method.scores(given.logprobs, alone)
        best = scores.index(max(scores))
        text, ids = select.choices[best], choices[best]
        answer = Answer(text, ids, "stop", None, _sum(parts), tuple(scores))
        return replace(line, ids=(*line.ids, *ids), text=line.text + text), answer

    def shared(self, stop: Stop) -> tuple[TokenLine, Counts]:
        line = self._encoded()
        return line._kept(stop)

    def close(self) -> None:
        self.tokens.close()

    def _with(self, piece: TextPiece) -> TokenLine:
        if not piece.text:
            return self
        return replace(self, pieces=(*self.pieces, piece), text=self.text + piece.text)

    def _check_place(self) -> None:
        if self.turns.roles and not (self.turns.is_open and self.turns.roles[-1] == "assistant"):
            raise RequestError("a call stands outside the turns of the assistant: say it in one")

    def _encode(self, pieces: Sequence[TextPiece]) -> Ids:
        return self.tokens.encode(pieces, not self.ids, not self.turns.roles)

    def _encoded(self) -> TokenLine:
        if not self.pieces and self.ids:
            return self
        return replace(self, ids=(*self.ids, *self._encode(self.pieces)), pieces=())

    def _kept(self, stop: Stop) -> tuple[TokenLine, Counts]:
        """All but its last token are computed."""
        if len(self.ids) - 1 <= self.n_kept:
            return self, Counts()
        kept, counts = self.tokens.keep(self.ids, self.kept, stop)
        return replace(self, kept=kept, n_kept=len(self.ids) - 1), counts

    def _after(self, drawn: DrawnTokens, params: SamplingParams) -> TokenLine:
        """With what was drawn: its tokens, without the one that only ended it. Of a token that a
        stop string cut, the text before the cut is text again."""
        answer, rest = drawn.answer, ""
        ids = answer.token_ids
        if isinstance(answer.stop_reason, str):
            n, begin = whole(drawn.begins, len(answer.text))
            ids, rest = ids[:n], answer.text[begin:]
        elif answer.finish_reason == "stop" and not _is_own_end(drawn, params):
            ids = ids[:-1]
        line = replace(self, ids=(*self.ids, *ids), text=self.text + answer.text)
        if drawn.kept != NOBODY:
            line = replace(line, kept=drawn.kept, n_kept=max(0, len(line.ids) - 1))
        return replace(line, pieces=(TextPiece(rest, False),)) if rest else line


def needs_places(params: SamplingParams) -> bool:
    """Whether it matters where in the text of an answer its tokens begin: a stop string may cut
    one, or the last may be no end."""
    return params.stop is not None or params.stop_regex is not None or _may_lack_end(params)


def _may_lack_end(params: SamplingParams) -> bool:
    """Whether an answer may end with its structure, where no end may be drawn."""
    return params.structured_outputs is not None and (params.ignore_eos or params.min_tokens > 0)


def _is_own_end(drawn: DrawnTokens, params: SamplingParams) -> bool:
    """Whether the last token belongs to the answer which it ends: an end has no text."""
    if not _may_lack_end(params) or drawn.answer.stop_reason is not None:
        return False
    return bool(drawn.begins) and drawn.begins[-1] < len(drawn.answer.text)


def whole(begins: Sequence[int], n_chars: int) -> tuple[int, int]:
    """How many tokens lie in the first ``n_chars`` characters, and where the last of them ends.
    ``begins``: where each begins, ascending, the first at 0."""
    at = bisect_left(begins, n_chars)
    if at < len(begins) and begins[at] == n_chars:
        return at, n_chars
    return at - 1, begins[at - 1]


def _sum(parts: Sequence[Counts]) -> Counts:
    return Counts(sum(x.n_prompt for x in parts), sum(x.n_cached for x in parts))
