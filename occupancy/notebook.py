"""IPython extension: `%load_ext occupancy`.

`%%occupancy` in the first line of a cell records the calls of the cell and shows their report and picture below its own
output; `%%occupancy NAME` also keeps the log under that name. A log that is the value of a cell shows itself likewise.
`%occupancy_live` puts a view there that goes on while cells run; `%occupancy_live off` ends it.

The line `%%occupancy` is taken out of the cell before it runs, rather than running the cell inside a magic: so `await`,
errors, the cell's value and line numbers are those of the cell without us.
"""

import base64
import html
import io
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from occupancy import _guard, capture
from occupancy.call import Call
from occupancy.journal import Journal
from occupancy.ledger import ledger
from occupancy.log import OccupancyLog

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

MAGIC = "%%occupancy"
NO_VIEW = "%occupancy_live needs a notebook; in a terminal, give the program a journal and run: occupancy watch FILE"
LIVE_S = 0.25
"""Between two looks of the live view at its calls."""
LIVE_WIDTH = 100
DPI = 144
"""Of pictures; they are shown at half their size, which is sharp on every screen."""
ROWS = 10
"""Steps that a table names."""
STYLE = "line-height: 1.25; overflow-x: auto"

_extensions: "dict[int, Extension]" = {}


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Put the magics, and the ways to show a log, into a shell. Repeats are harmless."""
    if id(shell) not in _extensions:
        _extensions[id(shell)] = Extension(shell)
        _extensions[id(shell)].load()


def unload_ipython_extension(shell: "InteractiveShell") -> None:
    """Take them out again, and record no more."""
    extension = _extensions.pop(id(shell), None)
    if extension is not None:
        extension.unload()


def split_cell(cell: str) -> tuple[str | None, str]:
    """Find our line among the cell magics that a cell begins with.

    Args:
        cell: Its text.

    Returns:
        What stands behind `%%occupancy`, None without such a line; and the cell without it. The lines behind keep their
        numbers, by a comment in its place, unless another cell magic stands before or behind: that must be the first.
    """
    lines = cell.splitlines(keepends=True)
    for number, line in enumerate(lines):
        words = line.split(maxsplit=1)
        if words and words[0] == MAGIC and line.startswith(MAGIC):
            is_alone = not number and not "".join(lines[1:2]).startswith("%%")
            lines[number : number + 1] = ["# " + line] if is_alone else []
            return "".join(words[1:]).strip(), "".join(lines)
        if words and not line.startswith("%%"):
            break
    return None, cell


def is_name(option: str | None) -> bool:
    """Whether what stands behind `%%occupancy` can be used: a name to keep the log under, or nothing."""
    return option is not None and (not option or option.isidentifier())


class Extension:
    """What `%load_ext occupancy` puts into a shell.

    Args:
        shell: The shell.
    """

    def __init__(self, shell: "InteractiveShell") -> None:
        self._shell: Any = shell
        self._cells: dict[int, tuple[str, OccupancyLog]] = {}
        self._live: LiveView | None = None

    def load(self) -> None:
        """Put it in."""
        shell = self._shell
        shell.input_transformers_cleanup.append(take_out)
        shell.events.register("pre_run_cell", self._before_cell)
        shell.events.register("post_run_cell", self._after_cell)
        shell.register_magic_function(self._cell_magic, "cell", "occupancy")
        shell.register_magic_function(self._live_magic, "line", "occupancy_live")
        formatters = shell.display_formatter.formatters
        formatters["text/html"].for_type(OccupancyLog, _guard.guarded(log_html))
        formatters["text/plain"].for_type(OccupancyLog, _print_log)

    def unload(self) -> None:
        """Take it out."""
        self._end_live()
        shell = self._shell
        shell.input_transformers_cleanup.remove(take_out)
        shell.events.unregister("pre_run_cell", self._before_cell)
        shell.events.unregister("post_run_cell", self._after_cell)
        shell.magics_manager.magics["cell"].pop("occupancy", None)
        shell.magics_manager.magics["line"].pop("occupancy_live", None)
        for kind in ("text/html", "text/plain"):
            shell.display_formatter.formatters[kind].pop(OccupancyLog, None)

    def _before_cell(self, info: Any) -> None:
        _guard.guarded(self._begin)(info)

    def _after_cell(self, result: Any) -> None:
        _guard.guarded(self._end)(None if result is None else result.info)

    def _begin(self, info: Any) -> None:
        name = split_cell(info.raw_cell)[0]
        if name is not None and is_name(name):
            log = OccupancyLog()
            self._cells[id(info)] = name, log
            capture.record_into(log)

    def _end(self, info: Any | None) -> None:
        """Show what a cell has done; without `info` it was interrupted, and is the newest."""
        key = next(reversed(self._cells), 0) if info is None else id(info)
        name, log = self._cells.pop(key, ("", None))
        if log is not None:
            capture.stop_recording(log)
            if name:
                self._shell.user_ns[name] = log
            self._show(log)
        if self._live is not None:
            self._live.look()

    def _show(self, log: OccupancyLog) -> None:
        publish = self._shell.display_pub.publish
        publish({"text/plain": log_text(log), "text/html": table_html(log)})
        if log.peak and "image/png" in self._shell.display_formatter.active_types:
            data, size = picture(log)
            publish({"text/plain": "<calls in flight over time>", "image/png": data}, {"image/png": size})

    def _cell_magic(self, line: str, cell: str) -> None:
        """Record the calls of a cell, and show them below its output.

        %%occupancy [NAME]: NAME keeps the log, an `OccupancyLog`.
        """
        if not is_name(line.strip()):
            raise _usage_error(f"{MAGIC} takes a name to keep the log under, not {line.strip()!r}")
        self._shell.run_cell(
            f"{MAGIC} {line}\n{cell}"
        )  # called as a function: the cell has not gone through `take_out`

    def _live_magic(self, line: str) -> None:
        """Show the calls of the cells that run from now on, as they happen.

        %occupancy_live off ends it.
        """
        if line.strip() not in {"", "on", "off"}:
            raise _usage_error(f"%occupancy_live takes on or off, not {line.strip()!r}")
        self._end_live()
        if line.strip() != "off":
            loop = getattr(getattr(getattr(self._shell, "kernel", None), "control_thread", None), "io_loop", None)
            if loop is None:
                raise _usage_error(NO_VIEW)
            self._live = LiveView(self._shell.display_pub.publish, loop)
            self._live.begin()

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.end()
            self._live = None


def take_out(lines: list[str]) -> list[str]:
    """Transform the lines of a cell: without ours, so that it runs as it would without us.

    Where ours cannot be used it stays, and IPython calls the magic, which says so.
    """
    option, rest = split_cell("".join(lines))
    return rest.splitlines(keepends=True) if is_name(option) else lines


take_out.has_side_effects = True  # type: ignore[attr-defined] # a prompt then takes the cell for complete at an empty line


def _usage_error(message: str) -> Exception:
    from IPython.core.error import UsageError

    return UsageError(message)


# How a log shows itself


def log_text(log: OccupancyLog) -> str:
    """Give the report of a log, as a terminal shows it."""
    from occupancy.views import tables

    until_ns = log._until_ns()
    return tables.report(log.columns(), until_ns=until_ns)


def _print_log(log: OccupancyLog, printer: Any, cycle: bool) -> None:
    """Print a log: whole where it is the value of a cell, in short inside of other things."""
    is_alone = len(printer.stack) <= 1
    text = _guard.guarded(log_text)(log) if is_alone else None
    for number, line in enumerate((text or f"<OccupancyLog: {log.finished} calls, peak {log.peak}>").splitlines()):
        if number:
            printer.break_()
        printer.text(line)


def log_html(log: OccupancyLog) -> str:
    """Give a log as picture and table, for a notebook."""
    shown = _guard.guarded(picture)(log) if log.peak else None
    if shown is None:
        return table_html(log)
    data, size = shown
    image = f'<img width="{size["width"]}" src="data:image/png;base64,{data}" alt="calls in flight over time">'
    return image + table_html(log)


def table_html(log: OccupancyLog) -> str:
    """Give the report of a log as HTML: its first lines, its steps as a table, and what to do."""
    from occupancy.views.text import count, duration_of_ms

    head, *parts = log_text(log).split("\n\n")  # the skyline and the table as text are shown in other ways
    groups = log.summary().by_site
    rows = [
        (
            group.label or "(no label)",
            str(group.n),
            duration_of_ms(group.total.mean_ms),
            duration_of_ms(group.first_byte.mean_ms),
            str(group.call_sites[0].frame) if group.call_sites else "-",
        )
        for group in groups[:ROWS]
    ]
    rest = f"<div>and {count(len(groups) - ROWS, 'more step')}</div>" if len(groups) > ROWS else ""
    table = _table(("step", "calls", "mean", "first byte", "called at"), rows) if rows else ""
    return _pre(head) + table + rest + "".join(map(_pre, parts[2:]))


def _pre(text: str) -> str:
    return f'<pre style="{STYLE}">{html.escape(text)}</pre>'


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [_row("th", headers), *(_row("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: tuple[str, ...]) -> str:
    sides = ("left", "right", "right", "right", "left")
    filled = (
        f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(filled)}</tr>"


def picture(log: OccupancyLog) -> tuple[str, dict[str, int]]:
    """Draw a log; give a PNG in base64, and the width and height it is meant to be shown at, in pixels."""
    figure: Any = log.plot().figure
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=DPI)
    width, height = (round(inches * DPI / 2) for inches in figure.get_size_inches())
    return base64.b64encode(written.getvalue()).decode("ascii"), {"width": width, "height": height}


# The live view


class _Feed(Journal):
    """Takes starts and ends as a journal does, and writes no file: what it is told goes to the live view."""

    def __init__(self) -> None:
        from occupancy.views.live import LiveCalls

        self._prepare(Path())
        self.calls = LiveCalls()
        self.events = 0

    def start(self, call: Call) -> None:
        self._take(call)

    def end(self, call: Call) -> None:
        self._take(call)

    def _take(self, call: Call) -> None:
        self.calls.take("", call)
        self.events += 1


class LiveView:
    """A display that is drawn anew while cells run.

    A cell keeps the kernel's own thread busy, so that is not where it can be drawn; and on a call's way nothing is
    sent. Every kernel has a second thread with an event loop, which waits for interrupts: there it is drawn, in some
    milliseconds, and only when something has changed. No thread is added.

    Args:
        publish: The shell's way to display.
        loop: The event loop of the kernel's control thread.
    """

    def __init__(self, publish: Callable[..., None], loop: Any) -> None:
        self._publish = publish
        self._loop = loop
        self._display_id = f"occupancy-{id(self):x}"
        self._feed = _Feed()
        self._log = OccupancyLog(capacity=1)
        self._log.journal = self._feed
        self._drawing = threading.Lock()
        self._drawn = 0
        self._was_open = False
        self._ended = False

    def begin(self) -> None:
        """Record, and show the first frame."""
        capture.record_into(self._log)
        self._send(update=False)
        # In a context of its own: the display then belongs to the cell that runs, not to this one for ever.
        Context().run(self._loop.add_callback, self._tick)

    def end(self) -> None:
        """Record no more; the last frame stays."""
        self._ended = True
        capture.stop_recording(self._log)
        self.draw()

    def draw(self) -> None:
        """Draw it as it is now; where that fails it stays as it was."""
        _guard.guarded(self._send)(update=True)

    def look(self) -> None:
        """Draw it anew where calls have started or ended since, or some are open and grow older."""
        if self._was_open or self._drawn != self._feed.events:
            self.draw()

    def _tick(self) -> None:
        if not self._ended:
            self.look()
            self._loop.call_later(LIVE_S, self._tick)

    def _send(self, *, update: bool) -> None:
        from occupancy.views.live import frame

        with self._drawing:
            with ledger.settled():
                self._drawn = self._feed.events
                now_ns = monotonic_ns()
                seen = self._feed.calls.snapshot(now_ns)
            self._was_open = bool(seen.open_calls)
            text = frame(seen, now_ns, LIVE_WIDTH).plain
            shown = f'<pre style="{STYLE}; min-height: 22em">{html.escape(text)}</pre>'
            bundle = {"text/plain": text, "text/html": shown}
            self._publish(bundle, transient={"display_id": self._display_id}, update=update)
