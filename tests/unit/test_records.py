"""Records kept as columns: a sequence like any other."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy.analysis.records import Records


class Point(NamedTuple):
    x: int
    y: float


class Named(NamedTuple):
    name: str | None
    point: Point


ROWS = st.lists(st.tuples(st.none() | st.sampled_from("ab"), st.integers(-5, 5), st.floats(-1, 1)), max_size=6)


def records(rows: list[tuple[str | None, int, float]]) -> Records[Named]:
    names, xs, ys = zip(*rows, strict=True) if rows else ((), (), ())
    points = Records(Point, {"x": np.array(xs, dtype=np.int64), "y": np.array(ys, dtype=np.float64)})
    return Records(Named, {"name": np.array(names, dtype=object), "point": points})


@given(ROWS, st.slices(6), st.integers(-8, 8))
def test_they_are_what_a_list_of_them_is(rows: list[tuple[str | None, int, float]], part: slice, index: int) -> None:
    found, expected = records(rows), [Named(name, Point(x, y)) for name, x, y in rows]
    assert (len(found), list(found), found == expected) == (len(expected), expected, True)
    assert list(found[part]) == expected[part]
    order = np.argsort([x for _, x, _ in rows], kind="stable")
    assert list(found.take(order)) == sorted(expected, key=lambda one: one.point.x)
    if -len(rows) <= index < len(rows):
        assert found[index] == expected[index]
        assert (type(found[index].point.x), type(found[index].point.y)) == (int, float)
    else:
        with pytest.raises(IndexError):
            found[index]


def test_only_what_is_asked_for_is_made() -> None:
    made = []
    found = Records(lambda x: made.append(x) or x, {"x": np.arange(1000)})  # type: ignore[func-returns-value]
    assert (found[7], list(found[10:12]), found.column("x")[5]) == (7, [10, 11], 5)
    assert made == [7, 10, 11]
    assert found != records([])
