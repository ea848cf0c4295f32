"""Calls as bars: where each begins and ends, how its phases split it, and which bars belong together."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING, Columns
from occupancy.analysis.distribution import number
from occupancy.analysis.steps import Int64, closed_end, counted, is_open
from occupancy.analysis.summary import PHASES, failed
from occupancy.call import Outcome
from occupancy.views.timeline import NO_LABEL

REST = "not told apart"
"""The part of a call of which no phase is known."""
SEGMENTS = (*PHASES[:-1], REST, PHASES[-1])
"""The parts of a bar from left to right: a gap in what is known lies between the request sent and the headers."""
COLOURS = {
    "client": "#7F7F7F",
    "gate": "#E69F00",
    "pool": "#F5E663",
    "connect": "#009E73",
    "tls": "#F3DCE9",
    "send": "#222222",
    "wait": "#79BCE6",
    REST: "#D9D9D9",
    "receive": "#0072B2",
}
"""Okabe and Ito's colours, made lighter and darker by turns: neighbours differ in greyscale too."""
HATCHES = {"gate": "////", "pool": "\\\\\\\\"}
"""Where the program's own queues hold a call back, a pattern says so without colour."""
FAILURE = "#D55E00"
"""Vermilion of the same palette."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CallBars:
    """The calls that can be drawn; all times are ns from the first start of a call that lasts."""

    place: Int64
    """Where the call is in the columns it came from, shape (n,)."""
    run: NDArray[np.object_]
    label: NDArray[np.object_]
    outcome: NDArray[np.object_]
    status: Int64
    """`MISSING` where there was none."""
    start_ns: Int64
    end_ns: Int64
    """With an end for open calls, shape (n,)."""
    edges_ns: Int64
    """Edges of the segments, shape (`len(SEGMENTS)` + 1, n): from the start up to the end, never falling."""
    first_byte_ns: Int64
    """`MISSING` where there was none, shape (n,)."""
    is_open: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    n_dropped: int
    """Calls that have no bar: they end before they start, or lack a stamp."""

    @classmethod
    def of(cls, columns: Columns, until_ns: int | None = None) -> "CallBars":
        """Take the calls that count; open ones end as `closed_end` says.

        Args:
            columns: The calls.
            until_ns: For a live log the time now, ns on the calls' clock.
        """
        mask, end_ns = counted(columns), closed_end(columns, until_ns)
        used = mask & (columns["start_ns"] != MISSING) & (end_ns >= columns["start_ns"])
        kept = {name: columns[name][used] for name in _NEEDED}
        end_ns = end_ns[used]
        origin_ns = _origin(kept["start_ns"], end_ns)
        first_byte_ns = kept["first_byte_ns"]
        return cls(
            place=np.flatnonzero(used),
            run=kept["run"],
            label=kept["label"],
            outcome=kept["outcome"],
            status=kept["status"],
            start_ns=kept["start_ns"] - origin_ns,
            end_ns=end_ns - origin_ns,
            edges_ns=_edges(kept, end_ns) - origin_ns,
            first_byte_ns=np.where(first_byte_ns == MISSING, MISSING, first_byte_ns - origin_ns),
            is_open=is_open(kept),
            failed=failed(kept),
            n_dropped=int(np.count_nonzero(mask) - np.count_nonzero(used)),
        )

    @property
    def n(self) -> int:
        """How many bars there are."""
        return int(self.start_ns.size)

    def take(self, which: Int64 | NDArray[np.bool_] | slice) -> "CallBars":
        """Some of the bars, by place, mask or slice, on the same axis of time."""
        return dataclasses.replace(self, **{name: getattr(self, name)[..., which] for name in _ARRAYS})

    def grouped(self) -> "CallBars":
        """The same bars by run, then by label, then by start; runs and labels in the order of their first start."""
        by_start = self.take(np.lexsort((self.end_ns, self.start_ns)))
        _, run = number(by_start.run)
        _, label = number(zip(run.tolist(), by_start.label, strict=True))
        return by_start.take(np.lexsort((label, run)))

    def longest(self, n: int) -> "CallBars":
        """The n bars that last longest, in their order; all when there are no more."""
        if self.n <= n:
            return self
        return self.take(np.sort(np.argsort(self.start_ns - self.end_ns, kind="stable")[:n]))

    def note(self, bar: int) -> str:
        """How a call ended where that was not `ok`: a status of 400 or more, else the outcome; empty for `ok`."""
        status, outcome = int(self.status[bar]), str(self.outcome[bar])
        if outcome == Outcome.OK and status < 400:
            return ""
        told = [str(status)] if status >= 400 else []
        told += [outcome.replace("_", " ")] if outcome not in (Outcome.OK, Outcome.HTTP_ERROR) or not told else []
        return " ".join(told)


_ARRAYS = tuple(field.name for field in dataclasses.fields(CallBars) if field.name != "n_dropped")
_NEEDED = ("run", "label", "kind", "outcome", "status", "start_ns", "headers_ns", "first_byte_ns", "end_ns",
           *(f"{name}_ns" for name in PHASES))  # fmt: skip


def _origin(start_ns: Int64, end_ns: Int64) -> int:
    lasting = start_ns[end_ns > start_ns]
    first = lasting if lasting.size else start_ns
    return int(first.min()) if first.size else 0


def _edges(columns: Columns, end_ns: Int64) -> Int64:
    """Lay the phases one behind the other from the start; receiving begins at the headers, and ends at the end."""
    edges = np.empty((len(SEGMENTS) + 1, end_ns.size), dtype=np.int64)
    edges[0], edges[-1] = columns["start_ns"], end_ns
    for at, name in enumerate(PHASES[:-1]):
        np.add(edges[at], np.maximum(columns[f"{name}_ns"], 0), out=edges[at + 1])  # MISSING is below 0
        np.minimum(edges[at + 1], end_ns, out=edges[at + 1])
    received = end_ns - np.maximum(columns["receive_ns"], 0)
    receive = np.where(columns["headers_ns"] == MISSING, received, columns["headers_ns"])
    edges[-2] = np.clip(receive, edges[-3], end_ns)
    return edges


def printable(text: str) -> str:
    """Replace what no font shows (line breaks, controls, lone surrogates) by `?`."""
    return "".join(char if char.isprintable() else "?" for char in text)


def label_name(label: str | None) -> str:
    """Name a label so that it can be drawn."""
    return NO_LABEL if label is None else printable(label)
