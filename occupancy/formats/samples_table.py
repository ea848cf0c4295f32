"""Samples of a probe as a table: pandas and CSV."""

import csv
import dataclasses
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from occupancy.analysis.samples import Round, Sample

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("workers", *(field.name for field in dataclasses.fields(Sample)), "latency_s")


def rows(rounds: Iterable[Round]) -> list[dict[str, Any]]:
    """Give one row for each sample, with the workers of its round."""
    return [
        {"workers": measured.workers, **dataclasses.asdict(sample), "latency_s": sample.latency_s}
        for measured in rounds
        for sample in measured.samples
    ]


def to_dataframe(rounds: Iterable[Round]) -> "DataFrame":
    """Give one row for each sample; without samples, the columns alone."""
    import pandas as pd

    frame = pd.DataFrame(rows(rounds), columns=list(COLUMNS))
    frame["ending"] = frame["ending"].astype(str)
    return frame


def to_csv(rounds: Iterable[Round]) -> str:
    """Give one line for each sample below the names of the columns; empty where nothing is known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(rounds))
    return text.getvalue()
