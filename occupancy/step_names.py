"""What a step is called where a span's name says it: without what must not be kept."""

import functools
import re

LABEL_LENGTH = 200
"""The longest label of a call, in characters."""

_CREDENTIALS = re.compile(r"(?<=://)[^\s/?#]*@")
_QUERY = re.compile(r"(/[^\s?]*)\?\S+|(://[^\s#]*)#\S+")


@functools.lru_cache(maxsize=1024)  # a program's spans have few names, each many times
def step_name(span_name: str) -> str:
    """The name of a span as a label; some instrumentations name spans by their URLs.

    Args:
        span_name: As it is.

    Returns:
        The name without the credentials and queries of URLs and paths in it, cut short; "" where nothing is left.
    """
    return _QUERY.sub(r"\1\2", _CREDENTIALS.sub("", span_name))[:LABEL_LENGTH].strip()
