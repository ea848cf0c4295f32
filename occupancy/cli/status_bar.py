"""A row at the bottom of a terminal on which a program prints: what it prints scrolls above.

The row is kept by the terminal's scroll region, and the cursor is saved and restored within one write, so that the
program meets it where it has left it. Escape sequences are those of the VT100.
"""

import os
import termios
from collections.abc import Callable

SAVE, RESTORE = "\x1b7", "\x1b8"
ALL_ROWS = "\x1b[r"
LAST_ROW = "\x1b[9999;1H"
ERASE_ROW, ERASE_BELOW = "\x1b[2K", "\x1b[J"
REVERSE, NORMAL = "\x1b[7m", "\x1b[m"

GIVE_BACK = f"{SAVE}{ALL_ROWS}{LAST_ROW}{ERASE_ROW}{RESTORE}"
"""Gives the row back to the program; does nothing else where that is done already."""
ONE_ROW_BELOW = "\x1bD\x1b[A"
"""Scrolls if the cursor is in the last row."""
CLEAR_BELOW = f"{SAVE}{ALL_ROWS}{RESTORE}{ONE_ROW_BELOW}{SAVE}\x1b[B\r{ERASE_BELOW}"
"""Nothing stands below the cursor but our own row, wherever a new size has moved it. The cursor is saved."""

FEWEST_ROWS, FEWEST_COLUMNS = 4, 20


class StatusBar:
    """Keeps the last row while the terminal is the program's and the program prints line by line.

    A program that reads single keys (an editor, a pager, a prompt with line editing) may draw anywhere: it gets the
    whole screen meanwhile.

    Args:
        fd: The controlling terminal.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size: os.terminal_size | None = None
        self._text = ""

    def resized(self) -> None:
        """Know that the terminal has had another size, and with it another scroll region."""
        self._text, self._size = "", None if self._size is None else os.terminal_size((0, 0))

    def show(self, text: Callable[[int], str]) -> None:
        """Show a line, if there is room and the program can bear it.

        Args:
            text: Gives it for a number of columns.

        Raises:
            OSError: The terminal is gone.
        """
        size = os.get_terminal_size(self._fd)
        if not self._is_ours(size):
            self.give_back()
            return
        shown = text(size.columns - 1)
        row = f"{LAST_ROW}{REVERSE}{shown:{size.columns - 1}}{NORMAL}{RESTORE}"
        if size != self._size:
            self._write(f"{CLEAR_BELOW}\x1b[1;{size.lines - 1}r{row}")
        else:
            self._write(SAVE + row)
        self._size = size

    def give_back(self) -> None:
        """Let the program have the row."""
        if self._size is not None:
            self._size = None
            self._write(GIVE_BACK)

    def _is_ours(self, size: os.terminal_size) -> bool:
        if size.lines < FEWEST_ROWS or size.columns < FEWEST_COLUMNS:
            return False
        line_mode = termios.tcgetattr(self._fd)[3] & termios.ICANON
        return bool(line_mode) and os.tcgetpgrp(self._fd) == os.getpgrp()

    def _write(self, text: str) -> None:
        os.write(self._fd, text.encode("ascii"))
