"""What the user says about a call: the step it belongs to, and the agent run."""

import itertools
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Self

from occupancy.caller.blocks import Block, Entry, RunSpan, chain, checked_name
from occupancy.errors import InputError

_label: ContextVar[Entry | None] = ContextVar("occupancy_label", default=None)
_run: ContextVar[Entry | None] = ContextVar("occupancy_run", default=None)
_run_numbers = itertools.count(1)

new_run_span: Callable[[str, str, RunSpan | None], RunSpan | None] | None = None
"""Makes the span of a run that begins, of its name, its id and the span of the run around it; see `run_spans`."""


def current_label() -> str | None:
    """Give the innermost label, or None outside of one."""
    entry = _label.get()
    return None if entry is None else entry.value


def current_after() -> tuple[str, ...]:
    """Give the labels that the innermost label says it depends on; empty where it says nothing, or there is none."""
    entry = _label.get()
    return () if entry is None else entry.after


def current_run() -> str | None:
    """Give the id of the innermost agent run, as `research#3`, or None outside of one."""
    entry = _run.get()
    return None if entry is None else entry.value


def run_span_above(current: Any) -> Any:
    """Give the span of the innermost agent run where it lies above this code, else None.

    Args:
        current: The span that OpenTelemetry says is current.
    """
    entry = _run.get()
    return None if entry is None or entry.span is None else entry.span.above(current)


class label(Block):  # noqa: N801 - reads as a statement
    """Name the step that calls belong to: `with occupancy.label("plan"): ...`, or `@occupancy.label("plan")`.

    The innermost label counts. New tasks and `asyncio.to_thread` inherit it; plain threads do not.

    Args:
        name: What the step is called.
        after: Names of the steps whose results this one needs, as one name or several.

    Raises:
        InputError: A name is no string, or is empty.
    """

    _variable = _label

    def __init__(self, name: str, *, after: str | Iterable[str] = ()) -> None:
        super().__init__(name, _checked_names(after))


class agent_run(Block):  # noqa: N801 - reads as a statement
    """Mark one run of an agent: `with occupancy.agent_run("research"): ...`, or `@occupancy.agent_run("research")`.

    Each entry is a run of its own, with the id `research#3`: two users inside the same block are two runs. The
    innermost run counts. Numbers are unique in the process. Where our own provider exports spans the run is one, above
    those of its calls, from its first call on.

    Args:
        name: What the agent is called.

    Raises:
        InputError: The name is no string, or is empty.
    """

    _variable = _run

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._spans: list[RunSpan] = []
        """Those of the entries by `with` that have not been left."""

    def __enter__(self) -> Self:
        entry = self._new_entry()
        if entry.span is not None:
            self._spans.append(entry.span)
        self._variable.set(entry)
        return self

    def __exit__(self, *exception: Any) -> None:
        span = self._span_to_leave() if self._spans else None
        super().__exit__(*exception)
        if span is not None and span in self._spans:
            self._spans.remove(span)
            span.__exit__(*exception)

    def _span_to_leave(self) -> RunSpan | None:
        """That of the entry which is left now; in another context the only one that is open, or it is not known."""
        for entry in chain(self._variable.get()):
            if entry.owner is self:
                return entry.span
        return self._spans[0] if len(self._spans) == 1 else None

    def _for_one_entry(self) -> Self:
        return type(self)(self._name)  # so that its entry is known in whatever context it is left

    def _value(self) -> str:
        return f"{self._name}#{next(_run_numbers)}"

    def _new_span(self, value: str, outer: Entry | None) -> RunSpan | None:
        if new_run_span is None:
            return None
        return new_run_span(self._name, value, None if outer is None else outer.span)


def _checked_names(after: object) -> tuple[str, ...]:
    """Return one name or several as a tuple, or raise `InputError` that shows the value."""
    where = "label(after=...)"
    if isinstance(after, str):
        return (checked_name(after, where),)
    if not isinstance(after, Iterable):
        raise InputError(f"{where} needs a name or several, and got {after!r}")
    return tuple(checked_name(name, where) for name in after)
