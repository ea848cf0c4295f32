"""Calls through one helper are told apart by the lines that called it."""

from occupancy.analysis.call_sites import common_depth, differing_frames, telling_frames
from occupancy.call import Frame

LLM = Frame("llm.py", 3, "llm")
PLAN = Frame("agent.py", 10, "plan")
RECAP = Frame("agent.py", 20, "recap")
MAIN = Frame("main.py", 5, "main")
OTHER_MAIN = Frame("main.py", 6, "main")


def test_two_calls_through_one_helper_are_named_by_its_callers() -> None:
    assert differing_frames((LLM, PLAN, MAIN), (LLM, RECAP, MAIN)) == (PLAN, RECAP)


def test_two_calls_through_two_helpers_are_named_where_the_helpers_were_called() -> None:
    retrying = Frame("retry.py", 9, "retrying")
    assert differing_frames((LLM, retrying, PLAN), (LLM, retrying, RECAP)) == (PLAN, RECAP)


def test_the_innermost_difference_is_taken_not_an_outer_one() -> None:
    assert differing_frames((PLAN, MAIN), (RECAP, OTHER_MAIN)) == (PLAN, RECAP)


def test_one_function_differs_from_itself_by_its_line() -> None:
    first, second = Frame("main.py", 5, "main"), Frame("main.py", 6, "main")
    assert differing_frames((LLM, first), (LLM, second)) == (first, second)


def test_calls_of_one_loop_have_one_call_site() -> None:
    assert differing_frames((LLM, PLAN), (LLM, PLAN)) == (LLM, LLM)


def test_where_one_stack_ends_inside_the_other_its_outermost_frame_is_named() -> None:
    assert differing_frames((LLM,), (LLM, PLAN)) == (LLM, PLAN)


def test_an_unknown_stack_is_named_by_nothing() -> None:
    assert differing_frames((), (LLM,)) == (None, LLM)
    assert differing_frames((), ()) == (None, None)


def test_telling_frames_leave_a_call_site_that_is_reached_in_one_way() -> None:
    stacks = [(PLAN, MAIN), (RECAP, MAIN), (PLAN, MAIN)]
    assert telling_frames(stacks) == {(PLAN, MAIN): PLAN, (RECAP, MAIN): RECAP}


def test_telling_frames_name_the_callers_of_a_helper_and_no_other_step() -> None:
    stacks = [(LLM, PLAN, MAIN), (LLM, RECAP, MAIN), (MAIN,), ()]
    assert telling_frames(stacks) == {
        (LLM, PLAN, MAIN): PLAN,
        (LLM, RECAP, MAIN): RECAP,
        (MAIN,): MAIN,
        (): None,
    }


def test_telling_frames_of_three_ways_differ_where_the_first_two_do() -> None:
    stacks = [(LLM, PLAN, MAIN), (LLM, PLAN, OTHER_MAIN), (LLM, RECAP, MAIN)]
    assert list(telling_frames(stacks).values()) == [PLAN, PLAN, RECAP]


def test_nothing_gives_nothing() -> None:
    assert telling_frames([]) == {}
    assert common_depth([]) == 0
