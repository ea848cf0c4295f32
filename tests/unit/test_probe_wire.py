"""What of a callable's requests was the endpoint's."""

import pytest

from occupancy.analysis.samples import Ending, Round, Sample
from occupancy.call import Call
from occupancy.probe.wire import with_wire_times


def call(sent_ms: float, wait_ms: float, receive_ms: float) -> Call:
    last_ns = round((sent_ms + wait_ms + receive_ms) * 1e6)
    return Call(last_byte_ns=last_ns, wait_ns=round(wait_ms * 1e6), receive_ns=round(receive_ms * 1e6))


def one_at_a_time(*seconds: tuple[float, float], workers: int = 1, wire_s: float | None = None) -> Round:
    samples = [
        Sample(number=number, start_s=start_s, end_s=end_s, ending=Ending.OK, wire_s=wire_s)
        for number, (start_s, end_s) in enumerate(seconds)
    ]
    return Round(workers=workers, samples=tuple(samples))


def wires(measured: Round) -> list[float | None]:
    return [sample.wire_s for sample in measured.samples]


def test_only_what_is_on_the_wire_is_the_endpoints() -> None:
    # The first request makes one call; the second, an agent's, three, of which two overlap; the third none we see.
    calls = [call(5010, 70, 10), call(5120, 30, 0), call(5130, 40, 0), call(5190, 5, 5), call(5990, 20, 0)]
    measured = one_at_a_time((0.0, 0.1), (0.1, 0.2), (0.2, 0.3))
    assert wires(with_wire_times(measured, calls, 5.0)) == [pytest.approx(0.08), pytest.approx(0.06), None]


def test_a_call_that_did_not_end_is_left_out() -> None:
    assert wires(with_wire_times(one_at_a_time((0.0, 1.0)), [Call(wait_ns=5)], 0.0)) == [None]
    assert wires(with_wire_times(one_at_a_time((0.0, 1.0)), [], 0.0)) == [None]


def test_what_is_known_or_cannot_be_told_apart_stays() -> None:
    calls = [call(10, 70, 10)]
    known = one_at_a_time((0.0, 0.1), wire_s=0.09)
    assert with_wire_times(known, calls, 0.0) == known
    several = one_at_a_time((0.0, 0.1), (0.0, 0.1), workers=2)
    assert with_wire_times(several, calls, 0.0) is several
