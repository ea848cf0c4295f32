"""What overlap would gain, against hand-made programs and a critical path by brute force."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy.analysis.columns import columns_of
from occupancy.analysis.critical_path import Basis, Depends, Node, SerialGroup, Step, critical_path, stages_of
from occupancy.analysis.overlap import MOST_CALLS, Overlap, RunOverlap, find_overlap
from occupancy.call import Call, Frame, Kind

MS = 1_000_000
LINES = {"plan": 10, "tool_search": 11, "tool_fetch": 12, "recap": 13}


def step(label: str, start_ms: float, end_ms: float, **fields: object) -> Call:
    values = {
        "label": label,
        "kind": Kind.TOOL if label.startswith("tool") else Kind.GENERATE,
        "start_ns": int(start_ms * MS),
        "end_ns": int(end_ms * MS),
        "outcome": "ok",
        "run": "agent#1",
        "thread": "MainThread",
        "call_stack": (Frame("/home/me/agent.py", LINES.get(label, 1), "run"),),
    }
    return Call(**(values | fields))  # type: ignore[arg-type]


def agent(**after: str) -> list[Call]:
    """The reference agent, serial, with what its labels declare."""
    times = {"plan": (0, 200), "tool_search": (200, 550), "tool_fetch": (550, 900), "recap": (900, 1100)}
    return [step(label, *span, after=after.get(label)) for label, span in times.items()]


def overlap_of(calls: list[Call], depends: Depends | None = None) -> Overlap:
    return find_overlap(columns_of(calls), depends=depends)


def only(overlap: Overlap) -> RunOverlap:
    [run] = overlap.runs
    return run


def test_the_reference_agent_without_any_label_declared() -> None:
    run = only(overlap_of(agent()))
    assert (run.run, run.n, run.wall_ms, run.bound_ms, run.gain_ms) == ("agent#1", 4, 1100, 750, 350)
    [group] = run.groups
    assert (group.labels, group.basis, group.n) == (("tool_search", "tool_fetch"), Basis.POSSIBLE, 2)
    assert [site.line for site in group.call_sites] == [11, 12]
    assert (group.serial_ms, group.overlapped_ms, group.gain_ms) == (700, 350, 350)


def test_what_is_declared_is_certain() -> None:
    run = only(overlap_of(agent(tool_search="plan", tool_fetch="plan", recap="tool_search\ntool_fetch")))
    assert (run.bound_ms, run.groups[0].basis) == (750, Basis.DECLARED)


def test_what_is_declared_to_depend_gains_nothing() -> None:
    overlap = overlap_of(agent(tool_fetch="tool_search"))
    assert (only(overlap).gain_ms, only(overlap).groups, overlap.best) == (0, (), None)


def test_a_declared_step_needs_nothing_else() -> None:
    run = only(overlap_of(agent(recap="plan")))
    assert run.bound_ms == 550  # plan, then search, fetch and recap at once
    assert run.groups[0].labels == ("tool_search", "tool_fetch", "recap")


def test_a_declared_step_that_was_never_seen_tells_nothing_of_the_ones_before() -> None:
    calls = [step("plan", 0, 100), step("write", 100, 200, after="research")]
    assert only(overlap_of(calls)).bound_ms == 200


def test_a_step_needs_the_latest_of_its_declared_label() -> None:
    calls = [step("plan", 0, 100), step("x", 100, 200, after="plan"), step("plan", 200, 300),
             step("x", 300, 400, after="plan")]  # fmt: skip
    assert only(overlap_of(calls)).bound_ms == 400


def test_what_is_shown_goes_before_what_is_usual() -> None:
    shown = only(overlap_of(agent(), {("tool_search", "tool_fetch"): True}))
    assert (shown.gain_ms, shown.groups) == (0, ())
    independent = only(overlap_of(agent(), {("tool_search", "tool_fetch"): False}))
    assert (independent.gain_ms, independent.groups[0].basis) == (350, Basis.SHOWN)


def looked_at(calls: list[Call], **needs: str) -> list[Call]:
    """The calls, numbered, with what their requests show: `fetch="search"`."""
    number_of = {call.label: number for number, call in reversed(list(enumerate(calls, start=1)))}
    for number, call in enumerate(calls, start=1):
        call.logical_id, call.needs = number, number_of.get(needs.get(str(call.label)), 0)
    return calls


def test_what_a_request_shows_goes_before_what_is_usual() -> None:
    run = only(overlap_of(looked_at(agent(), tool_fetch="tool_search")))
    assert (run.gain_ms, run.groups) == (0, ())
    assert [(later.label, earlier.label) for later, earlier in run.needs] == [("tool_fetch", "tool_search")]


def test_that_a_request_shows_nothing_proves_nothing() -> None:
    run = only(overlap_of(looked_at(agent())))
    assert (run.gain_ms, run.groups[0].basis, run.needs) == (350, Basis.NO_SIGN, ())
    calls = looked_at(agent())
    calls[2].needs = None
    assert only(overlap_of(calls)).groups[0].basis is Basis.POSSIBLE


def test_a_need_of_a_call_outside_a_stage_parts_none_of_it() -> None:
    run = only(overlap_of(looked_at(agent(), tool_search="plan", tool_fetch="plan", recap="tool_fetch")))
    assert (run.gain_ms, run.groups[0].basis) == (350, Basis.NO_SIGN)


def test_a_declared_step_needs_what_it_shows_besides() -> None:
    declared = only(overlap_of(agent(recap="plan")))
    shown = only(overlap_of(looked_at(agent(recap="plan"), recap="tool_fetch")))
    assert (declared.bound_ms, shown.bound_ms) == (550, 750)


def test_what_is_shown_once_holds_each_time() -> None:
    first, second = looked_at(agent(), tool_fetch="tool_search"), agent()
    for call in second:
        call.run = "agent#2"
    found = overlap_of(first + second)
    assert [(run.run, run.gain_ms) for run in found.runs] == [("agent#1", 0), ("agent#2", 0)]


def test_calls_of_one_label_are_told_apart_by_their_lines() -> None:
    calls = looked_at(agent())
    for call in calls:
        call.label, call.kind = "llm", Kind.TOOL
    calls[0].kind = Kind.GENERATE
    calls[3].needs = 3
    run = only(overlap_of(calls))
    assert (run.bound_ms, [group.call_sites[0].line for group in run.groups]) == (750, [11])
    [(later, earlier)] = run.needs
    assert (later.frame, earlier.frame) == (calls[3].call_site, calls[2].call_site)


def test_a_loop_that_is_shown_to_carry_something_gains_nothing() -> None:
    calls = looked_at([step("ask", 100 * number, 100 * number + 90) for number in range(4)])
    calls[2].needs = 2
    assert only(overlap_of(calls)).gain_ms == 0


def test_a_need_of_a_call_that_the_log_has_dropped_or_another_process_made() -> None:
    calls = looked_at(agent())
    calls[2].needs = 99
    assert only(overlap_of(calls)).gain_ms == 350
    calls[2].needs, calls[1].pid, calls[1].run = 2, 8, "a" * 32
    for call in calls:
        call.run = "a" * 32
    assert all(run.needs == () for run in overlap_of(calls).runs)


def test_models_on_different_lines_are_a_chain() -> None:
    calls = [
        step("plan", 0, 100),
        step("write", 100, 200, call_stack=(Frame("a.py", 2, "f"),)),
        step("recap", 200, 300),
    ]
    assert only(overlap_of(calls)).gain_ms == 0


def test_the_turns_of_a_loop_are_possibly_independent() -> None:
    calls = [step("ask", 100 * number, 100 * number + 90) for number in range(4)]
    run = only(overlap_of(calls))
    assert run.bound_ms == pytest.approx(90 + 30)  # the program's own 10 ms between the calls stay
    assert (run.groups[0].n, run.groups[0].labels) == (4, ("ask",))


def test_tools_without_a_model_are_independent_on_one_line_only() -> None:
    tools = [step(f"tool_{n}", 100 * n, 100 * n + 100, call_stack=(Frame("a.py", n, "f"),)) for n in range(3)]
    assert only(overlap_of(tools)).gain_ms == 0
    assert only(overlap_of([step("tool_x", 100 * n, 100 * n + 100) for n in range(3)])).gain_ms == 200


def test_calls_without_a_stack_are_no_loop() -> None:
    assert only(overlap_of([step("ask", 0, 100, call_stack=()), step("ask", 100, 200, call_stack=())])).gain_ms == 0


def test_an_agent_of_two_turns() -> None:
    first, second = agent(), agent()
    for call in second:
        call.start_ns += 1100 * MS
        call.end_ns = (call.end_ns or 0) + 1100 * MS
    run = only(overlap_of(first + second))
    assert (run.wall_ms, run.bound_ms) == (2200, 1500)
    assert [(group.n, group.gain_ms) for group in run.groups] == [(4, 700)]


def test_attempts_of_one_call_are_one_step() -> None:
    calls = [step("ask", 0, 100, logical_id=1, status=503), step("ask", 150, 250, logical_id=1),
             step("ask", 250, 300, logical_id=3)]  # fmt: skip
    run = only(overlap_of(calls))
    assert (run.n, run.wall_ms, run.bound_ms) == (2, 300, 250)


def test_branches_at_once_are_looked_at_one_by_one() -> None:
    calls = [
        step(label, start + number, end + number, async_task=f"Task-{number}")
        for number in range(3)
        for label, start, end in (("plan", 0, 100), ("tool_a", 100, 200), ("tool_b", 200, 300))
    ]
    found = overlap_of(calls)
    assert [(run.wall_ms, run.bound_ms) for run in found.runs] == [(300, 200)] * 3


def test_workers_that_share_a_list_are_no_loops_to_overlap() -> None:
    calls = [
        step("ask", 100 * n + task, 100 * n + 99 + task, async_task=f"Task-{task}") for task in (1, 2) for n in range(4)
    ]
    assert all(run.gain_ms == 0 for run in overlap_of(calls).runs)


def test_what_overlaps_already_gains_nothing() -> None:
    calls = [step("plan", 0, 200), step("tool_search", 200, 550), step("tool_fetch", 200, 550), step("recap", 550, 750)]
    run = only(overlap_of(calls))
    assert (run.gain_ms, run.groups) == (0, ())


def test_runs_are_apart_and_unknown_ones_are_skipped() -> None:
    mine, other = agent(), [step("a", 0, 100, run="agent#2")]
    found = overlap_of(mine + other)
    assert [run.run for run in found.runs] == ["agent#1"]  # one call is nothing to overlap
    threads = [
        step(label, 50 * n, 50 * n + 40, run=f"asyncio_{n % 2}", thread=f"asyncio_{n % 2}",
             call_stack=(Frame("a.py", line, "f"),))
        for n, (label, line) in enumerate((("a", 1), ("a", 1), ("b", 2), ("b", 2)))
    ]  # fmt: skip
    assert overlap_of(threads).n_skipped == 1


def test_nothing_gives_nothing() -> None:
    assert overlap_of([]) == Overlap((), 0)
    assert critical_path([]) == (0, ())
    assert overlap_of([step("a", 5, 5), step("a", 5, 5)]).runs[0].gain_ms == 0


def test_a_run_without_end_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("occupancy.analysis.overlap.MOST_CALLS", 3)
    assert MOST_CALLS > 3
    assert overlap_of(agent()).n_skipped == 1


# Against a computation by the definition


def flavor(label: str, stack: int) -> tuple[object, ...]:
    return ("tool",) if label.startswith("t") else (stack,)


STEPS = st.builds(Step, st.sampled_from(("a", "b", "t1", "t2")), st.sampled_from(((Frame("a.py", 1, "f"),), ())))
NODES = st.lists(
    st.builds(
        lambda start, length, step, stack, after, needs: Node(
            start, start + length, step, frozenset(after), flavor(step.label, stack), None, needs
        ),
        st.integers(0, 12),
        st.integers(0, 5),
        STEPS,
        st.integers(1, 2),
        st.lists(st.sampled_from(("a", "t1", "z")), max_size=1),
        st.frozensets(STEPS, max_size=2),
    ),
    min_size=1,
    max_size=7,
).map(lambda nodes: sorted(nodes, key=lambda node: (node.start_ns, node.end_ns)))
DEPENDS = st.dictionaries(st.tuples(*[st.sampled_from(("a", "b", "t1"))] * 2), st.booleans(), max_size=2)


def needs(nodes: list[Node], stages: list[int], place: int, depends: Depends) -> list[int]:
    """The places of what a call needs, by the rules one after the other."""
    node = nodes[place]
    ended = [
        other
        for other, one in enumerate(nodes)
        if one.end_ns <= node.start_ns and (one.start_ns < node.start_ns or (other < place and one.length_ns == 0))
    ]
    shown = [other for other in ended if nodes[other].step in node.needs]
    declared = [other for other in ended if nodes[other].label in node.after]
    if declared:
        return declared + shown
    return shown + [
        other for other in ended if depends.get((nodes[other].label, node.label), stages[other] != stages[place])
    ]


def brute_force(nodes: list[Node], depends: Depends) -> int:
    """The critical path by recursion over what each call needs, covering time ns by ns."""
    stages = [stage for stage, _ in stages_of(nodes, depends)]
    first_ns = nodes[0].start_ns

    def early_end(place: int) -> int:
        node = nodes[place]
        needed = needs(nodes, stages, place, depends)
        needed_ns = max((nodes[other].end_ns for other in needed), default=first_ns)
        early_ns = max((early_end(other) for other in needed), default=first_ns)
        covered = {
            t for one in nodes if one.end_ns <= node.start_ns for t in range(max(one.start_ns, needed_ns), one.end_ns)
        }
        return early_ns + (node.start_ns - needed_ns) - len(covered) + node.length_ns

    return max(early_end(place) for place in range(len(nodes))) - first_ns


@given(NODES, DEPENDS)
def test_the_critical_path_is_that_of_a_brute_force(nodes: list[Node], depends: Depends) -> None:
    bound_ns, _ = critical_path(nodes, depends)
    assert bound_ns == brute_force(nodes, depends)


@given(NODES, DEPENDS)
def test_bounds(nodes: list[Node], depends: Depends) -> None:
    bound_ns, groups = critical_path(nodes, depends)
    wall_ns = max(node.end_ns for node in nodes) - nodes[0].start_ns
    assert max(node.length_ns for node in nodes) <= bound_ns <= wall_ns
    assert wall_ns - bound_ns <= sum(node.length_ns for node in nodes)
    for group in groups:
        assert 0 < group.gain_ms < group.serial_ms <= sum(node.length_ns for node in nodes) / MS


CALLS = st.lists(
    st.builds(
        step,
        st.sampled_from(("plan", "tool_search", "tool_fetch", "recap")),
        st.integers(0, 50),
        st.integers(50, 90),
        run=st.sampled_from(("agent#1", "agent#2")),
        async_task=st.sampled_from((None, "Task-1", "Task-2")),
        after=st.sampled_from((None, "plan")),
    ),
    max_size=12,
    unique_by=lambda call: (call.start_ns, call.end_ns),
)


def unordered(group: SerialGroup) -> tuple[object, ...]:
    return (frozenset(group.labels), group.n, group.serial_ms, group.overlapped_ms, group.basis)


@given(CALLS, st.randoms(use_true_random=False))
def test_the_order_of_calls_does_not_matter(calls: list[Call], rng: random.Random) -> None:
    shuffled = rng.sample(calls, len(calls))
    one, other = overlap_of(calls), overlap_of(shuffled)
    assert [(run.wall_ms, run.bound_ms) for run in one.runs] == [(run.wall_ms, run.bound_ms) for run in other.runs]
    assert {unordered(group) for run in one.runs for group in run.groups} == {
        unordered(group) for run in other.runs for group in run.groups
    }
