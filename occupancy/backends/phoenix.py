"""Arize Phoenix: the spans of a project, over its REST API."""

from urllib.parse import quote

from occupancy.backends.address import Address
from occupancy.backends.api import Api
from occupancy.errors import ReadError
from occupancy.formats import phoenix_json
from occupancy.formats.spans import Spans
from occupancy.formats.times import ns_to_iso

PARAMETERS = ("project",)
TOKENS = ("PHOENIX_API_KEY",)
PAGE = 1_000
"""The most that one answer may hold."""


def pull(address: Address, api: Api, now_ns: int) -> Spans:
    """Give the spans of a project (`project`, else `default`) that began within the time, or those of one trace.

    Raises:
        ReadError: There is no such project.
    """
    project = address.parameters.get("project") or "default"
    path, query = f"/v1/projects/{quote(project, safe='')}/spans", _query(address, now_ns)
    found = Spans()
    while True:
        page = api.get(path, query)
        if page is None:
            raise _no_project(project, api)
        phoenix_json.read(page, path, found)
        api.limit(len(found.spans))
        cursor = page.get("next_cursor")
        if not cursor:
            break
        query["cursor"] = str(cursor)
    if address.trace is not None:  # a server before 13.9 gives all the traces of the project
        found.spans = [span for span in found.spans if span.trace_id == address.trace]
    return found


def _query(address: Address, now_ns: int) -> dict[str, str | int]:
    if address.trace is not None:
        return {"limit": PAGE, "trace_id": address.trace}
    return {"limit": PAGE, "start_time": ns_to_iso(now_ns - address.since_ns, digits=6)}


def _no_project(project: str, api: Api) -> ReadError:
    names = [
        str(known["name"]) for known in api.get_list("/v1/projects") if isinstance(known, dict) and "name" in known
    ]
    known = f"; it has {', '.join(names[:10])}" if names else ", or is no Phoenix"
    return api.error(f"has no project {project!r}{known}")
