"""What of a callable's requests was the endpoint's: read from the trace of its HTTP calls."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from occupancy.analysis.samples import Round, Sample
from occupancy.analysis.steps import steps
from occupancy.call import Call

NS = 1e9


def with_wire_times(measured: Round, calls: Sequence[Call], origin_s: float) -> Round:
    """Give the requests of a single worker their `wire_s`: the time with at least one HTTP call on the wire.

    An SDK's own work, or an agent's between its calls, is then no part of the endpoint's.

    Args:
        measured: A round; one of several workers, whose calls cannot be told apart, is given back as it is.
        calls: The trace of the sweep.
        origin_s: Second 0 of the samples on the monotonic clock.
    """
    if measured.workers != 1:
        return measured
    wires_ns = np.array([wire for wire in map(_wire_ns, calls) if wire is not None], dtype=np.int64).reshape(-1, 2)
    samples = [_with_wire_time(sample, wires_ns, origin_s) for sample in measured.samples]
    return dataclasses.replace(measured, samples=tuple(samples))


def _wire_ns(call: Call) -> tuple[int, int] | None:
    """Give when the request had been sent, and when the last byte came; None where it is not known."""
    if call.last_byte_ns is None or call.wait_ns is None or call.receive_ns is None:
        return None
    return call.last_byte_ns - call.wait_ns - call.receive_ns, call.last_byte_ns


def _with_wire_time(
    sample: Sample, wires_ns: "np.ndarray[tuple[int, int], np.dtype[np.int64]]", origin_s: float
) -> Sample:
    if sample.wire_s is not None:
        return sample
    from_ns, to_ns = (round((origin_s + at_s) * NS) for at_s in (sample.start_s, sample.end_s))
    own = wires_ns[(wires_ns[:, 0] >= from_ns) & (wires_ns[:, 1] <= to_ns)]
    busy_ns = steps(own[:, 0], own[:, 1]).busy_ns
    return dataclasses.replace(sample, wire_s=busy_ns / NS) if busy_ns else sample
