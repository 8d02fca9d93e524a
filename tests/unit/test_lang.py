"""Programs: what runs at the same time, what they share, where errors and time limits end them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

import kvasir.lang as sgl
from kvasir.core.errors import KvasirError, RequestError
from kvasir.lang.calls import Answer, Calling, Counts
from kvasir.lang.expressions import Role, Select
from kvasir.lang.seeds import seed_of
from kvasir.lang.stopping import Stop
from kvasir.validation.sampling import SamplingParams

PATIENCE = 30.0


@dataclass(frozen=True)
class ScriptedLine:
    """A model that answers what ``reply`` says to the text so far."""

    reply: Callable[[str, Calling], str]
    text: str = ""

    def begin(self) -> ScriptedLine:
        return self

    def said(self, text: str) -> ScriptedLine:
        return replace(self, text=self.text + text)

    def opened(self, role: Role) -> ScriptedLine:
        return self.said(f"<{role}>")

    def closed(self) -> ScriptedLine:
        return self.said("<end>")

    def generate(self, calling: Calling) -> tuple[ScriptedLine, Answer]:
        text = self.reply(self.text, calling)
        if calling.listen is not None:
            for char in text:
                calling.listen(char)
        return self.said(text), Answer(text, counts=Counts(len(self.text), 1, len(text)))

    def select(self, select: Select, calling: Calling) -> tuple[ScriptedLine, Answer]:
        return self.said(select.choices[0]), Answer(select.choices[0])

    def shared(self, stop: Stop) -> tuple[ScriptedLine, Counts]:
        return self, Counts()

    def close(self) -> None:
        pass


def upper(text: str, calling: Calling) -> str:
    return text[-1:].upper()


@sgl.function
def one_call(s: sgl.ProgramState, text: str) -> None:
    s += text + sgl.gen("answer")


def test_a_program_says_and_reads() -> None:
    state = one_call.run("abc", backend=ScriptedLine(upper))
    assert (state["answer"], state.text()) == ("C", "abcC")
    assert "answer" in state and "other" not in state
    with pytest.raises(KeyError, match="'other' is no variable of this state; it has answer"):
        state["other"]


def test_a_result_is_what_the_function_returns() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> dict[str, str]:
        s += "x"
        s += sgl.gen("y")
        return {"y": s["y"]}

    assert program.run(backend=ScriptedLine(upper)) == {"y": "X"}


def test_calls_are_lazy() -> None:
    """The program goes on while the model has not answered."""
    goes_on = threading.Event()

    def reply(text: str, calling: Calling) -> str:
        assert goes_on.wait(PATIENCE)
        return "late"

    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += sgl.gen("a") + sgl.gen("b")
        goes_on.set()

    state = program.run(backend=ScriptedLine(reply))
    assert state.text() == "latelate"


def test_branches_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)

    def reply(text: str, calling: Calling) -> str:
        meeting.wait(PATIENCE)
        return text[-1]

    @sgl.function
    def program(s: sgl.ProgramState) -> str:
        s += "begin "
        forks = s.fork(3)
        for fork, letter in zip(forks, "abc", strict=True):
            fork += letter
            fork += sgl.gen("x")
        forks.join()
        for fork in reversed(forks):
            s += fork["x"]
        return s.text()

    assert program.run(backend=ScriptedLine(reply)) == "begin cba"


def test_branches_to_which_nothing_is_added_are_joined() -> None:
    """While what they go on from is still computed."""
    waits, joined = threading.Event(), threading.Event()

    def reply(text: str, calling: Calling) -> str:
        assert waits.wait(PATIENCE)
        time.sleep(0.1)
        return "late"

    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += sgl.gen("a")
        forks = s.fork(2)
        waits.set()
        forks.join()
        joined.set()

    threading.Thread(
        target=program.run, kwargs={"backend": ScriptedLine(reply)}, daemon=True
    ).start()
    assert joined.wait(PATIENCE / 6)


def test_nothing_is_added_to_a_program_that_has_ended() -> None:
    """And nobody waits for what never comes."""
    state = one_call.run("abc", backend=ScriptedLine(upper))
    for said in ("more", sgl.gen("late")):
        with pytest.raises(RuntimeError, match="has the program ended"):
            state += said
    with pytest.raises(RuntimeError, match="has the program ended"):
        state.answer("late")
    assert state.text() == "abcC"


def test_a_call_of_another_program_is_a_part() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        one_call(s, "z")
        s += "!" + sgl.select("c", ["d"])

    assert program.run(backend=ScriptedLine(upper)).text() == "zZ!d"


def test_turns_are_values_and_blocks() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += sgl.system("a") + sgl.user("b")
        with s.assistant():
            s += sgl.gen("c")
        s += sgl.assistant("d" + sgl.gen("e"))

    state = program.run(backend=ScriptedLine(lambda text, calling: "x"))
    assert state.text() == ("<system>a<end><user>b<end><assistant>x<end><assistant>dx<end>")


def test_seeds_follow_from_the_place_in_the_program() -> None:
    assert seed_of(0, (0,)) == 1041621211125469266 == seed_of(2**64, (0,))
    assert len({seed_of(0, (0,)), seed_of(1, (0,)), seed_of(0, (1,)), seed_of(0, (0, 0, 0))}) == 4

    def seeds(order: int) -> list[str]:
        @sgl.function
        def program(s: sgl.ProgramState) -> list[str]:
            forks = s.fork(2)
            for fork in forks[::order]:
                fork += sgl.gen("x") + sgl.gen("y")
            s += sgl.gen("z") + sgl.gen("own", seed=5)
            return [*(fork[name] for fork in forks for name in "xy"), s["z"], s["own"]]

        seed = ScriptedLine(lambda text, calling: str(calling.params.seed))
        return list(program.run(backend=seed, seed=9))

    assert seeds(1) == seeds(-1)
    assert seeds(1) == [
        *(str(seed_of(9, (0, fork, call))) for fork in (0, 1) for call in (0, 1)),
        str(seed_of(9, (0,))),
        "5",
    ]


def test_an_error_is_raised_where_a_variable_is_read() -> None:
    def reply(text: str, calling: Calling) -> str:
        if text.endswith("!"):
            raise RequestError("too loud")
        return "ok"

    seen: list[str] = []

    @sgl.function
    def program(s: sgl.ProgramState) -> str:
        quiet, loud = s.fork(2)
        quiet += "a" + sgl.gen("x")
        loud += "a!" + sgl.gen("x") + sgl.gen("after")
        for name in ("x", "after"):
            try:
                seen.append(loud[name])
            except RequestError as error:
                seen.append(error.message)
        return quiet["x"]

    assert program.run(backend=ScriptedLine(reply)) == "ok"
    assert seen == ["too loud", "too loud"]
    with pytest.raises(RequestError, match="too loud"):  # nobody read it
        one_call.run("a!", backend=ScriptedLine(reply))


def test_a_program_of_a_batch_that_fails_hurts_no_other() -> None:
    def reply(text: str, calling: Calling) -> str:
        if text == "bad":
            raise RequestError("no")
        return f"{text}:{calling.params.seed}"

    arguments = [{"text": "a"}, {"text": "bad"}, {"text": "c"}]
    line = ScriptedLine(reply)
    a, bad, c = one_call.run_batch(arguments, backend=line, seed=4, return_exceptions=True)
    assert a["answer"] == one_call.run("a", backend=line, seed=4)["answer"]
    assert c["answer"] == one_call.run("c", backend=line, seed=6)["answer"]
    assert isinstance(bad, RequestError) and bad.message == "no"
    with pytest.raises(RequestError, match="no"):
        one_call.run_batch(arguments, backend=line)
    assert one_call.run_batch([], backend=line) == []


def test_a_batch_has_bounded_threads() -> None:
    lock, n_now, n_most = threading.Lock(), 0, 0

    @sgl.function
    def program(s: sgl.ProgramState) -> int:
        nonlocal n_now, n_most
        with lock:
            n_now += 1
            n_most = max(n_most, n_now)
        time.sleep(0.01)
        with lock:
            n_now -= 1
        return 1

    assert sum(program.run_batch([{}] * 12, backend=ScriptedLine(upper), num_threads=3)) == 12
    assert n_most <= 3


def waiting(text: str, calling: Calling) -> str:
    """A model that answers nothing until its call is cancelled or late."""
    cancelled = threading.Event()
    with calling.stop.watching(cancelled.set):
        if not cancelled.wait(calling.stop.seconds_left or PATIENCE):
            raise calling.stop.timeout()
        raise KvasirError("cut off")


def test_a_timeout_ends_all_calls() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> str:
        for fork in s.fork(3):
            fork += sgl.gen("x")
        s += sgl.gen("x")
        return s["x"]

    began = time.monotonic()
    with pytest.raises(sgl.ProgramTimeout, match=r"longer than its timeout of 0\.05 s"):
        program.run(backend=ScriptedLine(waiting), timeout=0.05)
    assert time.monotonic() - began < PATIENCE


def test_an_error_of_the_program_cancels_its_calls() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += sgl.gen("x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program.run(backend=ScriptedLine(waiting))


def test_a_program_may_cancel_itself() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> str:
        s += sgl.gen("x")
        s.cancel()
        return s["x"]

    with pytest.raises(sgl.ProgramCancelled):
        program.run(backend=ScriptedLine(waiting))


def test_a_stream_tells_texts_as_they_come() -> None:
    line = ScriptedLine(lambda text, calling: "abc")
    stream = one_call.stream("t", backend=line)
    assert list(stream) == [("answer", "a"), ("answer", "b"), ("answer", "c")]
    assert stream.result.text() == "tabc"
    assert list(stream) == []
    failing = one_call.stream("t", backend=ScriptedLine(waiting), timeout=0.05)
    with pytest.raises(sgl.ProgramTimeout):
        list(failing)
    closed = one_call.stream("t", backend=ScriptedLine(waiting))
    closed.close()
    with pytest.raises(sgl.ProgramCancelled):
        list(closed)


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="unknown arguments: temprature"):
        sgl.gen("x", temprature=1)
    with pytest.raises(TypeError, match="a state takes texts and calls, not int"):
        one_call.run(3, backend=ScriptedLine(upper))
    with pytest.raises(ValueError, match="regex and dtype exclude each other"):
        sgl.gen("x", regex="a", dtype=int)
    with pytest.raises(ValueError, match="choices must be texts"):
        sgl.select("x", [])
    with pytest.raises(ValueError, match="leave out temperature"):
        sgl.gen("x", choices=["a"], temperature=0)
    with pytest.raises(TypeError, match="parameter 'seed', which is an option of run"):
        sgl.function(lambda s, seed: None)
    with pytest.raises(ValueError, match="cannot say n, seed"):
        params = SamplingParams(n=2, seed=1)
        one_call.run("a", backend=ScriptedLine(upper), sampling_params=params)
    with pytest.raises(ValueError, match=r"fork\(0\)"):
        sgl.function(lambda s: s.fork(0)).run(backend=ScriptedLine(upper))
