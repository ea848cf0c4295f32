"""The span of an agent run, as a collector gets it: what lies below it, and where there is none.

Each test is a process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from . import host_program
from .collector import collector
from .test_exporting import HOSTS, execute

START = """
    from host_program import *
    import occupancy, occupancy.auto
    import asyncio, contextvars, threading, time, urllib.request
    import httpx, httpx2
    server = Server()

    def get(library=httpx2, path="/ok"):
        with library.Client() as client:
            client.get(server.url + path)

    async def gather(n):
        async with httpx2.AsyncClient() as client:
            await asyncio.gather(*(client.get(server.url + "/ok") for _ in range(n)))
"""
TELL = """
    tell(call_dicts(occupancy.auto.log))
"""
ERROR = 2
"""The status of a span that failed, in OTLP."""


class Ran(NamedTuple):
    """What a program has told, and what the collector got of it."""

    calls: list[dict[str, Any]]
    spans: list[dict[str, Any]]

    def tree(self) -> set[tuple[str, str | None]]:
        """Each span's name, with the name of the one above it."""
        names = {span["span_id"]: span["name"] for span in self.spans}
        return {(span["name"], span["parent"] and names[span["parent"]]) for span in self.spans}

    def runs(self) -> list[dict[str, Any]]:
        """The spans of runs."""
        return [span for span in self.spans if span["name"].startswith("invoke_agent ")]

    def below(self, span: dict[str, Any]) -> int:
        """How many spans lie right below one."""
        return sum(other["parent"] == span["span_id"] for other in self.spans)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is shared with the process of the tests."""


def run(folder: Path, program: str, *, env: dict[str, str] | None = None, **options: Any) -> Ran:
    """Run a program that exports to a collector, without a report."""
    with collector() as sink:
        variables = {"OCCUPANCY_REPORT": "0", "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "OTEL_SERVICE_NAME": "ours"}
        told = host_program.run(folder, START + program + TELL, env=variables | (env or {}), **options)
    return Ran(told, sink.spans)


def numbers(calls: list[dict[str, Any]]) -> dict[str, Any]:
    """What the root span must say of calls, counted at each of their starts."""
    times = [(call["start_ns"], call["end_ns"]) for call in calls]
    wall_ns = max(end for _, end in times) - min(start for start, _ in times)
    return {
        "occupancy.calls": len(times),
        "occupancy.peak": max(sum(start <= at < end for start, end in times) for at, _ in times),
        "occupancy.mean_in_flight": sum(end - start for start, end in times) / wall_ns,
    }


def told_numbers(span: dict[str, Any]) -> dict[str, Any]:
    return {name: span["attributes"].get(name) for name in numbers([{"start_ns": 0, "end_ns": 1}])}


# One trace


def test_a_run_is_one_trace_that_begins_and_ends_with_its_block(tmp_path: Path) -> None:
    program = """
    with occupancy.agent_run("research"):
        get(httpx, f"/{time.time_ns()}/ok")
        get(httpx2, "/chunked")
    get()
    """
    found = run(tmp_path, program)
    root, first, second, outside = found.spans
    assert (root["name"], root["kind"], root["parent"], root["status"]) == ("invoke_agent research", 1, None, (0, ""))
    assert root["attributes"]["gen_ai.operation.name"] == "invoke_agent"
    assert root["attributes"]["gen_ai.agent.name"] == "research"
    assert {span["trace_id"] for span in (root, first, second)} == {root["trace_id"]}
    assert first["parent"] == second["parent"] == root["span_id"]
    inside_ns = int(first["attributes"]["http.url"].split("/")[-2])  # before the span was made
    assert root["start"] <= inside_ns <= first["start"] < first["end"] <= second["start"] < second["end"] <= root["end"]
    assert told_numbers(root) == numbers(found.calls[:2])
    assert (outside["parent"], outside["trace_id"] == root["trace_id"]) == (None, False)
    # It is no call, and no label.
    assert len(found.calls) == 3
    assert {call["label"] for call in found.calls} == {"get"}
    assert [call["run"] for call in found.calls[:2]] == [root["attributes"]["occupancy.run"]] * 2
    assert [call["parent_span_id"] for call in found.calls] == [root["span_id"], root["span_id"], None]


def test_without_a_run_each_call_is_a_trace(tmp_path: Path) -> None:
    found = run(tmp_path, "    get(httpx)\n    get(httpx2)\n")
    assert [span["parent"] for span in found.spans] == [None, None]
    assert len({span["trace_id"] for span in found.spans}) == 2


def test_calls_of_clients_without_spans_count_from_the_first(tmp_path: Path) -> None:
    program = """
    with occupancy.agent_run("research"):
        urllib.request.urlopen(server.url + "/ok").read()
        with occupancy.auto.log.track("by hand"):
            pass
        get()
    """
    found = run(tmp_path, program)
    root, span = found.spans
    assert span["parent"] == root["span_id"]
    assert [call["parent_span_id"] for call in found.calls] == [root["span_id"]] * 3
    assert told_numbers(root) == numbers(found.calls)


@pytest.mark.parametrize(
    "request_",
    [
        "urllib.request.urlopen(server.url + '/ok').read()",
        "requests.get(server.url + '/ok')",
        "urllib3.PoolManager().request('GET', server.url + '/ok')",
        "get()",
    ],
)
def test_the_provider_is_made_before_the_first_call_begins(request_: str, tmp_path: Path) -> None:
    program = f"""
    import requests, urllib3
    from occupancy.instrumentation import provider
    look, looked_ns = provider.look_for_provider, []

    def note():
        look()
        looked_ns.append(time.monotonic_ns())
    provider.look_for_provider = note
    with occupancy.agent_run("research"):
        {request_}
    assert looked_ns[0] <= occupancy.auto.log.calls[0].start_ns
    """
    assert len(run(tmp_path, program).runs()) == 1


def test_requests_of_a_run_carry_its_trace(tmp_path: Path) -> None:
    program = """
    with occupancy.agent_run("research"):
        get()
    assert server.seen[0]["traceparent"].split("-")[1] == occupancy.auto.log.calls[0].trace_id
    """
    found = run(tmp_path, program)
    assert found.runs()[0]["trace_id"] == found.calls[0]["trace_id"]


# Tasks, threads, nested runs


def test_tasks_that_are_made_inside_are_in_the_run(tmp_path: Path) -> None:
    program = """
    async def main():
        with occupancy.agent_run("research"):
            await asyncio.create_task(gather(3))
            await asyncio.to_thread(get)
            async with asyncio.TaskGroup() as group:
                group.create_task(gather(2))
    asyncio.run(main())
    """
    found = run(tmp_path, program)
    (root,) = found.runs()
    assert found.tree() == {("invoke_agent research", None), ("GET", "invoke_agent research")}
    assert found.below(root) == 6
    assert told_numbers(root) == numbers(found.calls)
    assert root["attributes"]["occupancy.peak"] == 3


def test_two_users_of_one_block_are_two_traces(tmp_path: Path) -> None:
    program = """
    research = occupancy.agent_run("research")

    async def user(n):
        with research:
            await gather(n)

    async def main():
        await asyncio.gather(user(1), user(2))
    asyncio.run(main())
    """
    found = run(tmp_path, program)
    assert sorted(map(found.below, found.runs())) == [1, 2]
    assert len({span["trace_id"] for span in found.spans}) == 2
    for root in found.runs():
        assert told_numbers(root) == numbers(
            [call for call in found.calls if call["run"] == root["attributes"]["occupancy.run"]]
        )


def test_threads_that_make_the_first_call_at_once_make_one_span(tmp_path: Path) -> None:
    program = """
    with occupancy.agent_run("research"):
        contexts = [contextvars.copy_context() for _ in range(8)]
        threads = [threading.Thread(target=context.run, args=(get,)) for context in contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """
    found = run(tmp_path, program)
    (root,) = found.runs()
    assert found.below(root) == 8
    assert root["attributes"]["occupancy.calls"] == 8


def test_a_run_in_a_run_lies_below_it(tmp_path: Path) -> None:
    program = """
    with occupancy.agent_run("outer"):
        with occupancy.agent_run("inner"):
            get()
        get(httpx)
    """
    found = run(tmp_path, program)
    outer, inner = found.runs()
    assert (inner["parent"], outer["parent"]) == (outer["span_id"], None)
    assert (found.below(outer), found.below(inner)) == (2, 1)
    assert told_numbers(outer) == numbers(found.calls)
    assert told_numbers(inner) == dict.fromkeys(told_numbers(inner))  # those of a root span


def test_a_task_that_outlives_the_run_stays_in_its_trace(tmp_path: Path) -> None:
    program = """
    async def late():
        await asyncio.sleep(0)
        await leaving.wait()
        await gather(1)

    async def main():
        global leaving
        leaving = asyncio.Event()
        with occupancy.agent_run("research"):
            await gather(1)
            task = asyncio.create_task(late())
        leaving.set()
        await task
    asyncio.run(main())
    """
    found = run(tmp_path, program)
    (root,) = found.runs()
    assert found.below(root) == 2
    assert told_numbers(root) == numbers(found.calls[:1])


# Decorators and generators


def test_decorated_functions_of_all_kinds(tmp_path: Path) -> None:
    program = """
    @occupancy.agent_run("function")
    def function():
        get()

    @occupancy.agent_run("coroutine")
    async def coroutine():
        await gather(1)

    @occupancy.agent_run("generator")
    def generator():
        get()
        yield
        get()

    @occupancy.agent_run("async_generator")
    async def async_generator():
        await gather(1)
        yield
        await gather(1)

    async def consume():
        await coroutine()
        async for _ in async_generator():
            await gather(1)  # the consumer's own

    function()
    for _ in generator():
        get()  # the consumer's own
    asyncio.run(consume())
    """
    found = run(tmp_path, program)
    n_calls = {root["name"].split()[1]: found.below(root) for root in found.runs()}
    assert n_calls == {"function": 1, "coroutine": 1, "generator": 2, "async_generator": 2}
    assert len({span["trace_id"] for span in found.spans}) == 4 + 2
    assert all(span["parent"] is None for span in found.runs())


WAYS = {
    "with": """
    def steps():
        with occupancy.agent_run("research"):
            get()
            yield
    """,
    "decorator": """
    @occupancy.agent_run("research")
    def steps():
        get()
        yield
    """,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_generator_that_is_closed_in_another_context(way: str, tmp_path: Path) -> None:
    program = f"""{WAYS[way]}
    first, second = steps(), steps()
    for generator in (first, second):
        contextvars.Context().run(next, generator)
    contextvars.Context().run(first.close)
    get(httpx)  # in no run
    contextvars.Context().run(second.close)
    """
    found = run(tmp_path, program)
    one, two = found.runs()
    last = max(found.spans, key=lambda span: span["start"])
    assert (found.below(one), found.below(two), last["parent"]) == (1, 1, None)
    assert one["end"] <= last["start"] < last["end"] <= two["end"]
    assert (one["status"], two["status"]) == ((0, ""), (0, ""))  # being closed is no failure


def test_a_generator_that_is_collected_ends_its_run_when_it_is(tmp_path: Path) -> None:
    program = f"""{WAYS["with"]}
    import gc
    from occupancy.instrumentation import run_spans
    gc.disable()
    steps = steps()
    next(steps)
    cycle = [steps]
    cycle.append(cycle)
    del steps, cycle
    gc.collect()
    (span,) = run_spans._open  # no lock was taken
    get(path=f"/{{time.time_ns()}}/ok")
    with occupancy.agent_run("next"):
        assert not run_spans._open
    """
    found = run(tmp_path, program)
    (root,) = found.runs()
    assert root["end"] <= int(found.spans[-1]["attributes"]["http.url"].split("/")[-2])


def test_a_run_that_is_never_left_ends_with_the_program(tmp_path: Path) -> None:
    found = run(tmp_path, "    occupancy.agent_run('research').__enter__()\n    get()\n")
    assert found.tree() == {("invoke_agent research", None), ("GET", "invoke_agent research")}
    assert told_numbers(found.runs()[0]) == numbers(found.calls)


# Errors


@pytest.mark.parametrize("how", ["with", "decorator", "coroutine", "generator"])
def test_an_error_that_leaves_the_block_is_recorded(how: str, tmp_path: Path) -> None:
    bodies = {
        "with": "with research:\n            get()\n            raise error",
        "decorator": "research(fail)()",
        "coroutine": "asyncio.run(research(fail_later)())",
        "generator": "list(research(fail_in_steps)())",
    }
    program = f"""
    error = KeyError("host's own")
    research = occupancy.agent_run("research")

    def fail():
        get()
        raise error

    async def fail_later():
        fail()

    def fail_in_steps():
        yield 1
        fail()

    try:
        {bodies[how]}
    except KeyError as caught:
        assert caught is error
    """
    (root,) = run(tmp_path, program).runs()
    assert root["status"] == (ERROR, 'KeyError: "host\'s own"')
    assert root["attributes"]["error.type"] == "KeyError"
    assert list(root["events"]) == ["exception"]


def test_leaving_the_program_inside_a_run_is_no_error(tmp_path: Path) -> None:
    program = """
    with occupancy.agent_run("research"):
        get()
        tell([])
        sys.exit(3)
    """
    (root,) = run(tmp_path, program, code=3).runs()
    assert (root["status"], root["events"]) == ((0, ""), {})


# A host that has a provider


def services(found: Ran) -> list[tuple[str, str, str | None]]:
    return [(span["resource"]["service.name"], span["name"], span["parent"]) for span in found.spans]


@pytest.mark.parametrize("order", ["before", "inside"])
def test_a_host_with_a_provider_before_the_first_call_gets_no_span_of_ours(order: str, tmp_path: Path) -> None:
    steps = "    from opentelemetry import trace\n" + HOSTS
    enter = "    research = occupancy.agent_run('research')\n    research.__enter__()\n"
    program = steps + enter if order == "before" else enter + steps
    found = run(tmp_path, program + "    get()\n    research.__exit__(None, None, None)\n")
    assert services(found) == [("host", "GET", None)]


def test_a_provider_that_the_host_sets_later_has_spans_below_none_of_ours(tmp_path: Path) -> None:
    program = f"""
    from opentelemetry import trace
    with occupancy.agent_run("research"):
        get()
        {HOSTS.replace(chr(10) + "    ", chr(10) + "        ").strip()}
        get()
        with trace.get_tracer("host").start_as_current_span("step"):
            get()
            with occupancy.agent_run("inner"):
                get()
    """
    found = run(tmp_path, program)
    ours = [span for span in found.spans if span["resource"]["service.name"] == "ours"]
    theirs = [span for span in found.spans if span["resource"]["service.name"] == "host"]
    assert [span["name"] for span in ours] == ["invoke_agent research", "GET"]
    assert told_numbers(ours[0]) == numbers(found.calls[:1])
    assert [(span["name"], span["parent"]) for span in theirs] == [
        ("GET", None),
        ("step", None),
        ("GET", theirs[1]["span_id"]),
        ("GET", theirs[1]["span_id"]),
    ]


def test_a_host_with_a_processor_of_ours_gets_no_span_of_ours(tmp_path: Path) -> None:
    program = """
    provider, exporter = set_up_provider(register=False)
    provider.add_span_processor(occupancy.OccupancySpanProcessor())
    with occupancy.agent_run("research"):
        with provider.get_tracer("host").start_as_current_span("step"):
            get()
    assert [span["name"] for span in span_dicts(exporter)] == ["step"]
    """
    assert run(tmp_path, program).spans == []


def test_a_span_of_a_private_provider_of_the_host_lies_below_none_of_ours(tmp_path: Path) -> None:
    program = """
    provider, exporter = set_up_provider(register=False)
    with occupancy.agent_run("research"):
        get()
        with provider.get_tracer("host").start_as_current_span("step"):
            pass
    assert [span["parent"] for span in span_dicts(exporter)] == [None]
    """
    assert run(tmp_path, program).tree() == {("invoke_agent research", None), ("GET", "invoke_agent research")}


# Nothing is exported


@pytest.mark.parametrize("env", [{"OTEL_TRACES_SAMPLER": "always_off"}, {"OCCUPANCY_SPANS": "0"}], ids=" ".join)
def test_what_switches_spans_off(env: dict[str, str], tmp_path: Path) -> None:
    found = run(tmp_path, "    with occupancy.agent_run('research'):\n        get()\n", env=env)
    assert found.spans == []
    assert [call["outcome"] for call in found.calls] == ["ok"]


def test_a_run_without_calls_has_no_span(tmp_path: Path) -> None:
    assert run(tmp_path, "    with occupancy.agent_run('research'):\n        pass\n    get()\n").runs() == []


@pytest.mark.parametrize("variable", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}])
def test_opentelemetry_is_imported_only_for_a_call_that_is_exported(variable: dict[str, str], tmp_path: Path) -> None:
    program = """
    from host_program import *
    import occupancy, occupancy.auto, urllib.request
    server = Server()
    with occupancy.agent_run("research"):
        before = any(name.startswith("opentelemetry") for name in sys.modules)
        urllib.request.urlopen(server.url + "/ok").read()
    tell([before, any(name.startswith("opentelemetry") for name in sys.modules)])
    """
    log = "spans are lost" if variable else ""
    told = host_program.run(tmp_path, program, env={"OCCUPANCY_REPORT": "0"} | variable, log=log)
    assert told == [False, bool(variable)]


# What can go wrong


def test_what_fails_of_ours_costs_the_trace_and_no_call(tmp_path: Path) -> None:
    program = """
    from occupancy.instrumentation import run_spans
    def fail(self):
        raise RuntimeError("on purpose")
    run_spans.LazySpan._make = fail
    with occupancy.agent_run("research"):
        get()
    """
    found = run(tmp_path, program, log="occupancy failed in occupancy.run_spans.above")
    assert found.tree() == {("GET", None)}
    assert [(call["outcome"], call["label"]) for call in found.calls] == [("ok", "get")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_in_the_run_of_its_parent_and_ends_it_not(tmp_path: Path) -> None:
    program = """
    child = None
    with occupancy.agent_run("research"):
        get()
        child = os.fork()
        get()
        if child:
            assert os.waitpid(child, 0)[1] == 0
    if not child:
        sys.exit(0)
    """
    found = run(tmp_path, program, ignore="DeprecationWarning")
    (root,) = found.runs()
    assert found.below(root) == 3
    assert told_numbers(root) == numbers(found.calls)  # the parent's two


def test_occupancy_run_exports_runs_too(tmp_path: Path) -> None:
    agent = "from host_program import *\nimport occupancy, httpx2\nserver = Server()\n"
    agent += "with occupancy.agent_run('research'):\n    httpx2.get(server.url + '/ok')\n"
    (tmp_path / "agent.py").write_text(agent, encoding="utf-8")
    with collector() as sink:
        command = [sys.executable, "-m", "occupancy", "run", "--no-report", "--otlp", sink.url, "agent.py"]
        done = execute(command, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert Ran([], sink.spans).tree() == {("invoke_agent research", None), ("GET", "invoke_agent research")}
