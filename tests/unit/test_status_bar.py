"""The row at the bottom of a terminal, on a terminal that is drawn in memory."""

import fcntl
import os
import struct
import termios
import tty
from collections.abc import Iterator

import pyte
import pytest

from occupancy.cli.status_bar import StatusBar

GROUP = 77
"""The process group of the program, and of the bar."""


class Terminal:
    """A terminal of 20 columns and 6 rows, with a program that prints and a bar at its bottom."""

    def __init__(self) -> None:
        self.fd, self.theirs = os.openpty()
        self.screen = pyte.Screen(20, 6)
        self._stream = pyte.ByteStream(self.screen)
        self.bar = StatusBar(self.theirs)
        self._set_size(6)

    def _set_size(self, rows: int, columns: int = 20) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def resize(self, rows: int, columns: int = 20) -> None:
        self._set_size(rows, columns)
        self.bar.resized()

    def prints(self, text: str) -> None:
        os.write(self.theirs, text.encode())
        self._stream.feed(os.read(self.fd, 65536))

    def show(self, text: str = "bar") -> list[str]:
        """Let the bar show a text; the rows of the screen."""
        self.bar.show(lambda columns: text[:columns])
        return self.drawn()

    def drawn(self) -> list[str]:
        os.set_blocking(self.fd, False)
        try:
            self._stream.feed(os.read(self.fd, 65536))
        except BlockingIOError:  # nothing was written
            pass
        os.set_blocking(self.fd, True)
        return [row.rstrip() for row in self.screen.display]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: GROUP)
    monkeypatch.setattr(os, "getpgrp", lambda: GROUP)
    terminal = Terminal()
    yield terminal
    os.close(terminal.fd)
    os.close(terminal.theirs)


def test_what_is_printed_scrolls_above_the_row(terminal: Terminal) -> None:
    terminal.prints("one\ntwo")
    assert terminal.show() == ["one", "two", "", "", "", "bar"]
    terminal.prints(" and\nthree\nfour\nfive\nsix")
    assert terminal.show("other") == ["two and", "three", "four", "five", "six", "other"]


def test_the_cursor_and_the_colour_stay_the_programs(terminal: Terminal) -> None:
    terminal.prints("\x1b[31mred")
    terminal.show()
    terminal.prints("more\rR")
    assert terminal.show()[0] == "Redmore"
    assert {terminal.screen.buffer[0][column].fg for column in range(7)} == {"red"}
    assert terminal.screen.buffer[5][0].reverse
    assert (terminal.screen.cursor.y, terminal.screen.cursor.x) == (0, 1)


def test_a_screen_that_is_full_makes_room(terminal: Terminal) -> None:
    terminal.prints("1\n2\n3\n4\n5\n6")
    assert terminal.show() == ["2", "3", "4", "5", "6", "bar"]
    terminal.prints("!")
    assert terminal.show()[4:] == ["6!", "bar"]


def test_given_back_the_whole_screen_is_the_programs(terminal: Terminal) -> None:
    terminal.prints("one\n")
    terminal.show()
    terminal.bar.give_back()
    assert terminal.drawn() == ["one", "", "", "", "", ""]
    assert terminal.screen.margins is None
    terminal.prints("2\n3\n4\n5\n6\n7")
    assert terminal.drawn() == ["2", "3", "4", "5", "6", "7"]


def test_it_is_given_back_once(terminal: Terminal) -> None:
    terminal.bar.give_back()
    terminal.show()
    terminal.bar.give_back()
    terminal.drawn()
    terminal.prints("1\n2\n3\n4\n5\n6")
    terminal.bar.give_back()
    assert terminal.drawn() == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("rows", [4, 6, 9])
def test_a_new_size_moves_the_row_and_leaves_no_copy(terminal: Terminal, rows: int) -> None:
    terminal.prints("one\ntwo")
    terminal.show()
    terminal.resize(rows)
    above = ["one", "two"] if rows >= 6 else []  # this terminal drops its first rows
    drawn = terminal.show()
    assert drawn == [*above, *[""] * (rows - len(above) - 1), "bar"]
    assert terminal.screen.margins == (0, rows - 2)


def test_a_new_size_that_nobody_told_of_is_seen(terminal: Terminal) -> None:
    terminal.show()
    terminal._set_size(8, 30)
    assert terminal.show("x" * 40)[5:] == ["", "", "x" * 29]


@pytest.mark.parametrize(("rows", "columns"), [(3, 80), (24, 19)])
def test_a_terminal_that_is_too_small_is_left_alone(terminal: Terminal, rows: int, columns: int) -> None:
    terminal._set_size(rows, columns)
    assert terminal.show() == [""] * rows
    terminal.resize(6)
    assert terminal.show()[5] == "bar"


def test_a_program_that_reads_keys_has_the_screen(terminal: Terminal) -> None:
    terminal.prints("one\n")
    terminal.show()
    before = termios.tcgetattr(terminal.theirs)
    tty.setcbreak(terminal.theirs)
    assert terminal.show() == ["one", "", "", "", "", ""]
    assert terminal.screen.margins is None
    terminal.prints("\x1b[6;1Hits own")
    assert terminal.show()[5] == "its own"
    termios.tcsetattr(terminal.theirs, termios.TCSANOW, before)
    assert terminal.show()[4:] == ["its own", "bar"]


def test_in_the_background_nothing_is_shown(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.show()
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: GROUP + 1)
    assert terminal.show() == [""] * 6
    assert terminal.screen.margins is None
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: GROUP)
    assert terminal.show()[5] == "bar"
