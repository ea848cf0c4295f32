"""The rows of a CSV text, also of one with a field of any length."""

import csv
import io
from collections.abc import Iterator


def rows_of(text: str) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """Take a text apart; blank lines are left out.

    Yields:
        The number of the row's last line, and its fields, or why it cannot be read.
    """
    limit = csv.field_size_limit(max(len(text), csv.field_size_limit()))
    try:
        rows = csv.reader(io.StringIO(text, newline=""))
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield rows.line_num, error
            else:
                if row:
                    yield rows.line_num, row
    finally:
        csv.field_size_limit(limit)
