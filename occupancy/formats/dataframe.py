"""Calls as a pandas DataFrame, with types that pandas can reckon with."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from occupancy.call import FIELDS, MISSING, STAMPS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas import DataFrame

CATEGORIES = ("run", "kind", "label", "async_task", "thread", "client", "method", "host", "path", "model", "key_id",
              "outcome", "error_type")  # fmt: skip
FLAGS = ("connection_reused", "idempotency_key", "sync_in_event_loop", "siblings_held")


def to_dataframe(columns: "Mapping[str, NDArray[Any]]", origin_ns: int, origin_unix_ns: int) -> "DataFrame":
    """Calls as a DataFrame, one row each, in the order given, indexed by `call_id`.

    Args:
        columns: All fields, as `OccupancyLog.columns` gives them.
        origin_ns: Second 0 of the log on the clock of its stamps.
        origin_unix_ns: The same moment, ns since 1970.

    Returns:
        Stamps as UTC timestamps (`start`, `first_byte`, ...), and in seconds since the origin (`t0`, `t_first`, `t1`);
        durations as timedeltas (`total`, `wait_first`, `pool_time`, ...); names as categories; counts as nullable
        integers; flags as nullable booleans. Without calls, the same columns and no row.
    """
    import pandas as pd

    frame: dict[str, Any] = {}
    for name in FIELDS:
        values = columns[name]
        if name in STAMPS:
            frame[name.removesuffix("_ns")] = _timestamps(values, origin_ns, origin_unix_ns)
        elif name.endswith("_ns"):
            # "client_ns" would take the name of the column that says which library it was.
            frame[name.removesuffix("_ns") + "_time"] = pd.to_timedelta(values.view("m8[ns]"))
        elif name in CATEGORIES:
            frame[name] = pd.Categorical([None if value is None else str(value) for value in values])
        elif name in FLAGS:
            frame[name] = _nullable(values, "boolean")
        elif values.dtype == "int64":
            frame[name] = _nullable(values, "Int64")
        else:
            frame[name] = values
    start, first, end = (columns[name].view("M8[ns]") for name in ("start_ns", "first_byte_ns", "end_ns"))
    frame["total"], frame["wait_first"] = end - start, first - start
    origin = columns["start_ns"].dtype.type(origin_ns).view("M8[ns]")
    for name, stamp in (("t0", start), ("t_first", first), ("t1", end)):
        frame[name] = (stamp - origin) / pd.Timedelta(1, "s").to_timedelta64()
    return pd.DataFrame(frame).set_index("call_id")


def _timestamps(values: "NDArray[Any]", origin_ns: int, origin_unix_ns: int) -> Any:
    import numpy as np
    import pandas as pd

    stamps = values.view("M8[ns]") + np.timedelta64(origin_unix_ns - origin_ns, "ns")
    return pd.DatetimeIndex(stamps, tz="UTC")


def _nullable(values: "NDArray[Any]", dtype: Literal["Int64", "boolean"]) -> Any:
    import pandas as pd

    return pd.Series(values, dtype="Int64").mask(values == MISSING).astype(dtype).array
