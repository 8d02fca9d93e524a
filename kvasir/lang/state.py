"""What a program sees of its run: text that grows, and variables."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import overload

from kvasir.lang.branch import (
    BeginTurn,
    Branch,
    CallStep,
    EndTurn,
    ForkStep,
    RunSettings,
    SayStep,
    Variable,
)
from kvasir.lang.calls import Answer, ProgramLine
from kvasir.lang.expressions import Expression, Gen, Role, Select, SpokenTurn, Words, parts_of

MAX_BRANCHES = 1024
"""Of one fork."""


class Branches:
    """All branches of one program."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._all: list[Branch] = []

    def new(self, path: tuple[int, ...], line: ProgramLine | None) -> Branch:
        branch = Branch(self.settings, path, line)
        with self._lock:
            self._all.append(branch)
        return branch

    def wait(self) -> None:
        """Until all steps of all of them have run."""
        for branch in tuple(self._all):
            branch.wait()

    def check(self) -> None:
        """Raises the first error that nobody was told of."""
        for branch in self._all:
            if not branch.is_told:
                branch.check()


class ProgramState:
    """One branch of a program. ``state += text`` and ``state += gen(…)`` return at once; to read a
    variable waits for it, and raises what went wrong before it."""

    def __init__(
        self, branches: Branches, branch: Branch, variables: Mapping[str, Variable] | None = None
    ) -> None:
        self._branches = branches
        self._branch = branch
        self._variables = dict(variables or {})
        self._n_calls = 0
        self._n_forks = 0

    def __iadd__(self, said: object) -> ProgramState:
        for part in parts_of(said):
            self._add(part)
        return self

    def __getitem__(self, name: str) -> str:
        """The text of a variable."""
        return self.answer(name).text

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def answer(self, name: str) -> Answer:
        """Text, token ids, finish reason and counts of a variable. Raises KeyError for a name that
        no call has."""
        return self._variable(name).answer()

    def value(self, name: str) -> object:
        """A variable as its ``dtype``, JSON value or pydantic object. Raises ValueError where the
        text is none, because it was cut."""
        return self._variable(name).value()

    def text(self) -> str:
        """All that the branch said so far, with its calls and what the chat template wrote."""
        return self._branch.text()

    def fork(self, n: int = 1) -> Forks:
        """Branches that go on from here, each with the variables so far."""
        if not 1 <= n <= MAX_BRANCHES:
            raise ValueError(f"fork({n}): needs 1 to {MAX_BRANCHES} branches")
        number, self._n_forks = self._n_forks, self._n_forks + 1
        path = self._branch.path
        branches = tuple(self._branches.new((*path, number, i), None) for i in range(n))
        self._branch.add(ForkStep(branches))
        return Forks([ProgramState(self._branches, branch, self._variables) for branch in branches])

    def system(self) -> _TurnBlock:
        """``with state.system():`` is a turn of the system; what is added meanwhile is its text."""
        return _TurnBlock(self, "system")

    def user(self) -> _TurnBlock:
        return _TurnBlock(self, "user")

    def assistant(self) -> _TurnBlock:
        return _TurnBlock(self, "assistant")

    def cancel(self) -> None:
        """Ends all calls of the program."""
        self._branches.settings.stop.cancel()

    def __enter__(self) -> ProgramState:
        return self

    def __exit__(self, *error: object) -> None:
        """A branch ends with its program."""

    def wait(self) -> None:
        """Until all that was added has run. Raises what went wrong."""
        self._branch.wait()
        self._branch.check()

    def begin_turn(self, role: Role) -> None:
        self._branch.add(BeginTurn(role))

    def end_turn(self) -> None:
        self._branch.add(EndTurn())

    def _add(self, part: Expression) -> None:
        if isinstance(part, Words):
            self._branch.add(SayStep(part.text))
        elif isinstance(part, SpokenTurn):
            with _TurnBlock(self, part.role):
                for inner in part.parts:
                    self._add(inner)
        elif isinstance(part, Gen | Select):
            self._call(part)

    def _call(self, call: Gen | Select) -> None:
        variable = Variable(self._branch, call.form.read if isinstance(call, Gen) else str)
        place = (*self._branch.path, self._n_calls)
        self._n_calls += 1
        if call.name is not None:
            self._variables[call.name] = variable
        self._branch.add(CallStep(call, self._branch.settings, place, variable))

    def _variable(self, name: str) -> Variable:
        try:
            return self._variables[name]
        except KeyError:
            known = ", ".join(self._variables) or "none"
            raise KeyError(f"{name!r} is no variable of this state; it has {known}") from None


class _TurnBlock:
    def __init__(self, state: ProgramState, role: Role) -> None:
        self._state = state
        self._role = role

    def __enter__(self) -> ProgramState:
        self._state.begin_turn(self._role)
        return self._state

    def __exit__(self, *error: object) -> None:
        self._state.end_turn()


class Forks(Sequence[ProgramState]):
    """Branches of one fork."""

    def __init__(self, states: Sequence[ProgramState]) -> None:
        self._states = tuple(states)

    @overload
    def __getitem__(self, at: int) -> ProgramState: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[ProgramState]: ...

    def __getitem__(self, at: int | slice) -> ProgramState | Sequence[ProgramState]:
        return self._states[at]

    def __setitem__(self, at: int, state: ProgramState) -> None:
        """What ``forks[i] += text`` ends with. Raises ValueError for another state."""
        if self._states[at] is not state:
            raise ValueError("branches of a fork stay what they are: add to them")

    def __len__(self) -> int:
        return len(self._states)

    def __iadd__(self, said: object) -> Forks:
        """The same to each."""
        for state in self._states:
            state += said
        return self

    def join(self) -> Forks:
        """Waits for all of them. Raises the first error."""
        for state in self._states:
            state.wait()
        return self

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *error: object) -> None:
        """As of a state."""


def fork(state: ProgramState) -> ProgramState:
    """One branch that goes on from here: ``with fork(s) as f:``."""
    return state.fork(1)[0]
