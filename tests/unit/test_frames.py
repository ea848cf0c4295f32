"""The user's frames that lead to a call, and the root on whose behalf it is made.

Expected lines are looked up by the comment at their end, so that editing this file changes no test.
"""

# mypy: disable-error-code="no-any-return"
# The library under the calls is source that only exists at run time.

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from occupancy import _guard
from occupancy.call import Frame
from occupancy.caller import tasks, user_code
from occupancy.caller.frames import call_stack
from occupancy.caller.tasks import root_flow, sync_in_event_loop

Stack = tuple[Frame, ...]

HERE = os.path.abspath(__file__)
LINES = Path(HERE).read_text(encoding="utf-8").splitlines()
LIBRARY = os.path.join(os.sep, "srv", "env", "lib", "python3", "site-packages", "client", "api.py")

LIBRARY_SOURCE = """
import asyncio

def get():
    return call_stack()

def get_when(event):
    event.wait(20)
    return call_stack()

async def get_in_thread(make_event):
    return await asyncio.to_thread(get_when, make_event())

async def fetch_now():
    return call_stack()

async def fetch():
    await asyncio.sleep(0)
    return call_stack()

async def fetch_root():
    await asyncio.sleep(0)
    return root_flow().root

async def fetch_both():
    return await asyncio.gather(fetch(), fetch())

def stream_sync():
    yield call_stack()

async def stream():
    yield call_stack()

def call(function, *args):
    return function(*args)

async def call_async(function, *args):
    return await function(*args)

async def append(stacks, make):
    stacks.append(make())
"""


def load(filename: str, source: str = LIBRARY_SOURCE) -> Any:
    """Run source as if it lay in that file."""
    names: dict[str, Any] = {"call_stack": call_stack, "root_flow": root_flow, "__name__": "made_up"}
    exec(compile(source, filename, "exec"), names)
    return SimpleNamespace(**names)


library = load(LIBRARY)


def at(marker: str, function: str) -> Frame:
    """The frame on the line of this file that ends with the comment."""
    (line,) = [number for number, text in enumerate(LINES, 1) if text.endswith(f"# {marker}")]
    return Frame(HERE, line, function)


@pytest.fixture(autouse=True)
def failures(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A failure of ours is caught and logged: a test has to expect it, or it fails."""
    monkeypatch.setattr(_guard, "_reported", set())
    expected: list[str] = []
    yield expected
    reported = [record.getMessage() for record in caplog.get_records("call") if record.name == "occupancy"]
    assert [message.split()[3] for message in reported] == expected


# Synchronous code


def test_plain_call() -> None:
    stack = library.get()  # plain
    assert stack[0] == at("plain", "test_plain_call")
    assert os.path.isabs(stack[0].file)


def helper() -> Stack:
    return library.get()  # in helper


def test_through_a_helper() -> None:
    stack = helper()  # calls helper
    assert stack[:2] == (at("in helper", "helper"), at("calls helper", "test_through_a_helper"))


def test_library_between_user_frames_is_skipped() -> None:
    stack = library.call(helper)  # through library
    assert stack[:2] == (
        at("in helper", "helper"),
        at("through library", "test_library_between_user_frames_is_skipped"),
    )


def nest(depth: int) -> Stack:
    if depth == 0:
        return library.get()  # nested innermost
    return nest(depth - 1)  # nested again


def test_no_more_than_four_frames() -> None:
    again = at("nested again", "nest")
    assert nest(6) == (at("nested innermost", "nest"), again, again, again)


def test_skip_leaves_out_the_nearest_frames() -> None:
    def asking() -> Stack:
        return call_stack(skip=1)

    stack = asking()  # skipped to
    assert stack[0] == at("skipped to", "test_skip_leaves_out_the_nearest_frames")


def test_decorators_of_the_user_are_frames_those_of_a_library_are_not() -> None:
    def traced(function: Callable[[], Stack]) -> Callable[[], Stack]:
        @functools.wraps(function)
        def wrapper() -> Stack:
            return function()  # in the decorator

        return wrapper

    @functools.lru_cache
    @traced
    def decorated() -> Stack:
        return library.get()  # decorated

    stack = decorated()  # calls decorated
    name = "test_decorators_of_the_user_are_frames_those_of_a_library_are_not"
    assert stack[:3] == (
        at("decorated", f"{name}.<locals>.decorated"),
        at("in the decorator", f"{name}.<locals>.traced.<locals>.wrapper"),
        at("calls decorated", name),
    )


def test_generator() -> None:
    def produce() -> Iterator[Stack]:
        yield from library.stream_sync()  # yields from

    (stack,) = list(produce())  # consumes
    assert stack[:2] == (
        at("yields from", "test_generator.<locals>.produce"),
        at("consumes", "test_generator"),
    )


def test_methods_have_their_qualified_name() -> None:
    class Agent:
        def step(self) -> Stack:
            return library.get()  # in a method

    assert Agent().step()[0] == at("in a method", "test_methods_have_their_qualified_name.<locals>.Agent.step")


def test_thread_has_only_its_own_frames() -> None:
    stacks: list[Stack] = []

    def work() -> None:
        stacks.append(library.get())  # in the thread

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert stacks == [(at("in the thread", "test_thread_has_only_its_own_frames.<locals>.work"),)]


# asyncio

FACTORIES: dict[str, Any] = {
    "C tasks": None,
    "Python tasks": lambda loop, coro, **kwargs: asyncio.tasks._PyTask(coro, loop=loop, **kwargs),  # type: ignore[attr-defined]
}
if sys.version_info >= (3, 12):
    FACTORIES["eager tasks"] = asyncio.eager_task_factory


def run_asyncio(main: Callable[[], Coroutine[Any, Any, Any]], factory: Any = None) -> Any:
    """Run on a loop of its own; the task of `main` itself is an ordinary one."""

    async def start() -> Any:
        if factory is not None:
            asyncio.get_running_loop().set_task_factory(factory)
        return await main()

    return asyncio.run(start())


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest) -> Any:
    return FACTORIES[request.param]


async def user_fetch() -> Stack:
    stack: Stack = await library.fetch()  # in user_fetch
    return stack


async def user_root() -> str:
    root: str = await library.fetch_root()
    return root


def after_start(stack: Stack) -> Stack:
    """Drop the frame of `run_asyncio`, under every task of `main`."""
    return tuple(frame for frame in stack if not frame.function.startswith("run_asyncio"))


def test_coroutines_of_one_task(factory: Any) -> None:
    async def main() -> Stack:
        return await user_fetch()  # awaits user_fetch

    name = "test_coroutines_of_one_task.<locals>.main"
    assert after_start(run_asyncio(main, factory)) == (at("in user_fetch", "user_fetch"), at("awaits user_fetch", name))


def test_walk_stops_at_the_loop() -> None:
    async def main() -> Stack:
        stack: Stack = await library.fetch()  # alone under the loop
        return stack

    assert asyncio.run(main()) == (at("alone under the loop", "test_walk_stops_at_the_loop.<locals>.main"),)


def test_gather_of_library_coroutines(factory: Any) -> None:
    async def main() -> list[Stack]:
        return await asyncio.gather(  # gathers library
            library.fetch(),
            library.fetch_now(),
        )

    expected = (at("gathers library", "test_gather_of_library_coroutines.<locals>.main"),)
    assert [after_start(stack) for stack in run_asyncio(main, factory)] == [expected] * 2


def test_gather_of_user_coroutines(factory: Any) -> None:
    async def main() -> Any:
        return await asyncio.gather(user_fetch(), user_fetch(), return_exceptions=True)  # gathers user

    expected = (
        at("in user_fetch", "user_fetch"),
        at("gathers user", "test_gather_of_user_coroutines.<locals>.main"),
    )
    assert [after_start(stack) for stack in run_asyncio(main, factory)] == [expected] * 2


def test_gather_in_a_library(factory: Any) -> None:
    async def main() -> list[Stack]:
        stacks: list[Stack] = await library.fetch_both()  # library gathers
        return stacks

    expected = (at("library gathers", "test_gather_in_a_library.<locals>.main"),)
    assert [after_start(stack) for stack in run_asyncio(main, factory)] == [expected] * 2


def test_nested_gather(factory: Any) -> None:
    async def branch() -> Any:
        return await asyncio.gather(user_fetch(), library.fetch())  # inner gather

    async def main() -> Any:
        return await asyncio.gather(branch(), branch())  # outer gather

    name = "test_nested_gather.<locals>"
    above = (at("inner gather", f"{name}.branch"), at("outer gather", f"{name}.main"))
    for first, second in run_asyncio(main, factory):
        assert after_start(first) == (at("in user_fetch", "user_fetch"), *above)
        assert after_start(second) == above


def test_gather_of_gathers_awaited_once() -> None:
    async def main() -> Any:
        inner = asyncio.gather(library.fetch(), library.fetch())
        return await asyncio.wait_for(asyncio.gather(inner, library.fetch()), None)  # awaits both

    (one, two), three = run_asyncio(main)
    expected = (at("awaits both", "test_gather_of_gathers_awaited_once.<locals>.main"),)
    assert [after_start(stack) for stack in (one, two, three)] == [expected] * 3


def test_gather_that_nobody_awaits_yet_is_no_guess() -> None:
    async def main() -> Any:
        gathered = asyncio.gather(library.fetch())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await gathered

    assert run_asyncio(main) == [()]


def test_task_group(factory: Any) -> None:
    async def main() -> list[Stack]:
        async with asyncio.TaskGroup() as group:  # task group
            children = [group.create_task(user_fetch()), group.create_task(library.fetch())]
        return [child.result() for child in children]

    above = at("task group", "test_task_group.<locals>.main")
    first, second = run_asyncio(main, factory)
    assert after_start(first) == (at("in user_fetch", "user_fetch"), above)
    assert after_start(second) == (above,)


def test_task_group_whose_body_still_runs_shows_no_line_of_it() -> None:
    async def main() -> Any:
        async with asyncio.TaskGroup() as group:
            child = group.create_task(library.fetch())
            root = group.create_task(library.fetch_root())
            while not (child.done() and root.done()):
                await asyncio.sleep(0)
        return child.result(), root.result(), root_flow().root

    stack, child_root, root = run_asyncio(main)
    assert stack == ()
    assert child_root == root


def test_bare_create_task_has_only_its_own_frames() -> None:
    async def main() -> Any:
        first, second = asyncio.create_task(library.fetch()), asyncio.create_task(user_fetch())
        return await first, await second

    assert run_asyncio(main) == ((), (at("in user_fetch", "user_fetch"),))


def test_as_completed_has_only_its_own_frames() -> None:
    async def main() -> Any:
        return [await done for done in asyncio.as_completed([library.fetch(), library.fetch()])]

    assert run_asyncio(main) == [(), ()]


@pytest.mark.parametrize("wait", ["wait_for", "shield", "wait", "timeout"])
def test_other_ways_to_wait_for_a_coroutine(wait: str) -> None:
    async def wait_for() -> Any:
        return await asyncio.wait_for(library.fetch(), 60)  # by wait_for

    async def shield() -> Any:
        return await asyncio.shield(library.fetch())  # by shield

    async def wait_() -> Any:
        (done,), _ = await asyncio.wait([asyncio.create_task(library.fetch())])  # by wait
        return done.result()

    async def timeout() -> Any:
        async with asyncio.timeout(60):
            return await library.fetch()  # by timeout

    main = {"wait_for": wait_for, "shield": shield, "wait": wait_, "timeout": timeout}[wait]
    assert after_start(run_asyncio(main)) == (at(f"by {wait}", main.__qualname__),)


def test_generators_in_the_awaiting_task() -> None:
    class Later:
        def __await__(self) -> Any:
            return asyncio.gather(library.fetch()).__await__()

    class Wrapped:
        def __await__(self) -> Any:
            return self.wait().__await__()

        async def wait(self) -> Any:
            return await Later()  # in __await__

    async def pages() -> AsyncIterator[Any]:
        yield await Wrapped()  # in an async generator

    async def main() -> Any:
        async for page in pages():  # iterates
            return page

    name = "test_generators_in_the_awaiting_task.<locals>"
    ((stack),) = run_asyncio(main)
    assert after_start(stack) == (
        at("in __await__", f"{name}.Wrapped.wait"),
        at("in an async generator", f"{name}.pages"),
        at("iterates", f"{name}.main"),
    )


def test_async_context_manager_in_the_awaiting_task() -> None:
    @contextlib.asynccontextmanager
    async def session() -> AsyncIterator[Any]:
        yield await asyncio.gather(library.fetch())  # in a context manager

    async def main() -> Any:
        async with session() as (stack,):  # enters
            return stack

    name = "test_async_context_manager_in_the_awaiting_task.<locals>"
    assert after_start(run_asyncio(main)) == (
        at("in a context manager", f"{name}.session"),
        at("enters", f"{name}.main"),
    )


def test_async_generator() -> None:
    async def pages() -> AsyncIterator[Stack]:
        async for page in library.stream():  # streams
            yield page

    async def main() -> Any:
        return [page async for page in pages()]  # reads pages

    (stack,) = run_asyncio(main)
    assert stack[0] == at("streams", "test_async_generator.<locals>.pages")
    assert at("reads pages", "x").line in [frame.line for frame in stack]


def test_executor_has_only_the_worker_s_frames() -> None:
    def work() -> Stack:
        return library.get()  # in the worker

    async def main() -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, work)

    work_frame = at("in the worker", "test_executor_has_only_the_worker_s_frames.<locals>.work")
    assert run_asyncio(main) == (work_frame,)


def when_the_loop_goes_on() -> threading.Event:
    """Set once the running task waits."""
    ready = threading.Event()
    asyncio.get_running_loop().call_soon(ready.set)
    return ready


def test_work_of_a_library_in_a_thread_has_the_line_that_waits_for_it(factory: Any) -> None:
    async def main() -> Any:
        loop = asyncio.get_running_loop()
        ready = when_the_loop_goes_on()
        stacks = [await asyncio.to_thread(library.get_when, ready)]  # to a thread
        stacks.append(await loop.run_in_executor(None, library.get_when, when_the_loop_goes_on()))  # to an executor
        works = [library.get_in_thread(when_the_loop_goes_on) for _ in range(2)]
        stacks += await asyncio.gather(*works)  # to threads, gathered
        return stacks

    name = "test_work_of_a_library_in_a_thread_has_the_line_that_waits_for_it.<locals>.main"
    markers = ("to a thread", "to an executor", "to threads, gathered", "to threads, gathered")
    assert list(map(after_start, run_asyncio(main, factory))) == [(at(marker, name),) for marker in markers]


def test_work_of_a_library_in_a_thread_has_all_tasks_that_wait() -> None:
    async def step() -> Any:
        return await asyncio.to_thread(library.get_when, when_the_loop_goes_on())  # one step of several

    async def main() -> Any:
        return await asyncio.gather(step(), step())  # both steps

    name = "test_work_of_a_library_in_a_thread_has_all_tasks_that_wait.<locals>"
    stack = (at("one step of several", f"{name}.step"), at("both steps", f"{name}.main"))
    assert list(map(after_start, run_asyncio(main))) == [stack, stack]


def test_work_that_nobody_waits_for_is_no_guess() -> None:
    async def main() -> Any:
        future = asyncio.get_running_loop().run_in_executor(None, library.get_when, when_the_loop_goes_on())
        while not future.done():
            await asyncio.sleep(0)
        return future.result()

    assert run_asyncio(main) == ()
    with concurrent.futures.ThreadPoolExecutor() as executor:
        assert executor.submit(library.get).result() == ()


def test_a_task_that_goes_on_meanwhile_is_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter([True, False])

    def awaiter_of_work(future: Any) -> Any:
        return awaiter(future) if next(waits) else None

    awaiter = tasks.awaiter_of_work
    monkeypatch.setattr(tasks, "awaiter_of_work", awaiter_of_work)

    async def main() -> Any:
        return await asyncio.to_thread(library.get_when, when_the_loop_goes_on())

    assert run_asyncio(main) == ()


def test_callback_of_the_loop_has_only_its_own_frames() -> None:
    async def main() -> Any:
        stacks: asyncio.Future[Stack] = asyncio.get_running_loop().create_future()

        def call_back() -> None:
            stacks.set_result(library.get())  # in a callback

        asyncio.get_running_loop().call_soon(call_back)
        return await stacks

    name = "test_callback_of_the_loop_has_only_its_own_frames.<locals>.main.<locals>.call_back"
    assert run_asyncio(main) == (at("in a callback", name),)


def test_call_after_the_loop_closed() -> None:
    async def main() -> None:
        await asyncio.gather(user_fetch())

    run_asyncio(main)
    stack = library.get()  # after the loop
    assert stack[0] == at("after the loop", "test_call_after_the_loop_closed")
    assert root_flow().task is None
    assert not sync_in_event_loop()


def test_coroutine_driven_by_hand() -> None:
    coroutine = library.fetch_now()
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)  # by hand
    assert stop.value.value[0] == at("by hand", "test_coroutine_driven_by_hand")


def test_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> Any:
        gathered = await asyncio.gather(user_fetch(), library.fetch())  # on uvloop
        return gathered, await asyncio.create_task(library.fetch())

    loop = uvloop.new_event_loop()
    try:
        (first, second), bare = loop.run_until_complete(main())
    finally:
        loop.close()
    above = at("on uvloop", "test_uvloop.<locals>.main")
    assert (first, second, bare) == ((at("in user_fetch", "user_fetch"), above), (above,), ())


# trio and anyio


def test_trio_nursery() -> None:
    trio = pytest.importorskip("trio")
    stacks: list[Stack] = []

    async def child() -> None:
        await trio.lowlevel.checkpoint()
        await library.append(stacks, call_stack)  # trio child

    async def branch() -> None:
        async with trio.open_nursery() as nursery:  # trio inner
            nursery.start_soon(child)
            nursery.start_soon(library.append, stacks, library.get)

    async def main() -> None:
        async with trio.open_nursery() as nursery:  # trio outer
            nursery.start_soon(branch)

    trio.run(main)
    name = "test_trio_nursery.<locals>"
    above = (at("trio inner", f"{name}.branch"), at("trio outer", f"{name}.main"))
    assert sorted(stacks, key=len) == [above, (at("trio child", f"{name}.child"), *above)]


def test_trio_nursery_whose_body_still_runs_shows_no_line_of_it() -> None:
    trio = pytest.importorskip("trio")
    stacks: list[Stack] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(library.append, stacks, library.get)
            while not stacks:
                await trio.lowlevel.checkpoint()

    trio.run(main)
    assert stacks == [()]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_anyio_task_group(backend: str) -> None:
    anyio = pytest.importorskip("anyio")
    pytest.importorskip(backend)
    stacks: list[Stack] = []
    roots: list[str] = []

    async def start(task_status: Any) -> None:
        await library.append(stacks, library.get)
        task_status.started()

    async def main() -> None:
        async with anyio.create_task_group() as group:  # anyio group
            group.start_soon(library.append, stacks, library.get)
            group.start_soon(library.append, roots, lambda: root_flow().root)
        async with anyio.create_task_group() as group:
            await group.start(start)  # anyio start
        roots.append(root_flow().root)

    anyio.run(main, backend=backend)
    name = "test_anyio_task_group.<locals>"
    first, (inner, *above) = stacks
    assert first == (at("anyio group", f"{name}.main"),)
    assert (inner.function, above) == (f"{name}.start", [at("anyio start", f"{name}.main")])
    assert len(set(roots)) == 1


# Roots


def test_gathered_calls_have_one_root(factory: Any) -> None:
    async def main() -> Any:
        roots = await asyncio.gather(user_root(), library.fetch_root(), asyncio.wait_for(user_root(), 60))
        async with asyncio.TaskGroup() as group:
            child = group.create_task(user_root())
        return {*roots, child.result(), root_flow().root}

    (root,) = run_asyncio(main, factory)
    assert root.startswith("task ")


def test_eager_first_step_has_the_root_of_its_gather() -> None:
    if sys.version_info < (3, 12):
        pytest.skip("eager tasks came with Python 3.12")

    async def at_once() -> str:
        return root_flow().root

    async def main() -> Any:
        return {*(await asyncio.gather(at_once(), at_once())), root_flow().root}

    assert len(run_asyncio(main, FACTORIES["eager tasks"])) == 1


def test_tasks_of_a_server_are_roots_of_their_own() -> None:
    async def handle() -> Any:
        return set(await asyncio.gather(user_root(), user_root(), user_root()))

    async def main() -> Any:
        requests = [asyncio.create_task(handle(), name="request") for _ in range(5)]
        await asyncio.sleep(0)
        return [await request for request in requests]

    roots = run_asyncio(main)
    assert [len(of_request) for of_request in roots] == [1] * 5
    assert len(set.union(*roots)) == 5


def test_names_are_those_of_task_and_thread() -> None:
    async def main() -> Any:
        return root_flow()

    async def named() -> Any:
        return await asyncio.create_task(main(), name="a name of one's own")

    flow = run_asyncio(named)
    assert flow == ("a name of one's own", threading.current_thread().name, "task a name of one's own")
    again = run_asyncio(named)
    assert again.task.startswith("a name of one's own #")
    assert again.root.startswith("task a name of one's own #")


def test_tasks_that_are_named_as_their_function_are_told_apart() -> None:
    async def main() -> Any:
        async def flow_twice() -> Any:
            return root_flow(), root_flow()

        return await asyncio.gather(*(asyncio.create_task(flow_twice(), name="fetch alike") for _ in range(3)))

    flows = run_asyncio(main)
    assert all(first == second for first, second in flows)
    assert len({first.task for first, _ in flows}) == 3
    assert flows[0][0].task == "fetch alike"


def test_thread_is_the_root_outside_of_tasks() -> None:
    flows: list[Any] = []

    def work() -> None:
        flows.extend([root_flow(), root_flow()])

    for _ in range(2):
        thread = threading.Thread(target=work, name="root of a thread")
        thread.start()
        thread.join()
    assert flows[0] == flows[1] == (None, "root of a thread", "root of a thread")
    assert flows[2] == flows[3]
    assert flows[2].root.startswith("root of a thread #")


def test_roots_that_start_together_get_different_names() -> None:
    barrier = threading.Barrier(8)
    roots: list[str] = []

    def work() -> None:
        barrier.wait()
        roots.append(root_flow().root)

    threads = [threading.Thread(target=work, name="all alike") for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(roots)) == 8


def test_root_names_stay_different_when_the_memory_of_names_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_MAX_NAMES", 0)
    roots = set()
    for _ in range(3):
        with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="full") as pool:
            roots.add(pool.submit(lambda: root_flow().root).result())
    assert len(roots) == 3


def test_trio_root() -> None:
    trio = pytest.importorskip("trio")
    flows: list[Any] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(library.append, flows, root_flow, name="child")
        flows.append(root_flow())

    trio.run(main)
    child, parent = flows
    assert child.task == "child"
    assert child.root == parent.root
    assert parent.root == f"task {parent.task}"


# The loop of the thread


def test_sync_in_event_loop() -> None:
    async def main() -> Any:
        return sync_in_event_loop(), await asyncio.to_thread(sync_in_event_loop)

    assert not sync_in_event_loop()
    assert run_asyncio(main) == (True, False)


def test_sync_in_trio_loop() -> None:
    trio = pytest.importorskip("trio")

    async def main() -> Any:
        return sync_in_event_loop(), await trio.to_thread.run_sync(sync_in_event_loop)

    assert trio.run(main) == (True, False)
    assert not sync_in_event_loop()


def test_a_notebook_s_own_loop_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    kernel = load(LIBRARY, "async def run_cell(cell):\n    return cell()\n")

    def cell() -> bool:
        return sync_in_event_loop()

    async def async_cell() -> bool:
        return sync_in_event_loop()

    assert asyncio.run(kernel.run_cell(cell)) is False
    assert asyncio.run(library.call_async(async_cell)) is True


# Whose file


@pytest.mark.parametrize(
    ("parts", "is_user"),
    [
        (("home", "ann", "project", "main.py"), True),
        (("usr", "lib", "agents", "main.py"), True),
        (("usr", "lib", "python3", "agents.py"), True),
        (("home", "ann", "project", ".venv", "lib", "python3.11", "site-packages", "httpx", "_api.py"), False),
        (("home", "ann", "project", ".venv", "agents", "main.py"), True),
        (("usr", "lib", "python3", "dist-packages", "requests", "api.py"), False),
        (("home", "ann", ".local", "lib", "python3.11", "site-packages", "tool.py"), False),
        (("home", "ann", "src", "httpx", "_client.py"), True),  # an editable install
    ],
)
def test_whose_file(parts: tuple[str, ...], is_user: bool) -> None:
    path = os.path.abspath(os.path.join(os.sep, *parts))
    assert user_code.origin(path) == (path if is_user else None)


def test_standard_library_frozen_and_generated_code_is_no_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "program.py", raising=False)
    monkeypatch.setattr(user_code, "_origins", {})
    for filename in (os.__file__, threading.__file__, "<frozen importlib._bootstrap>", "<attrs generated x>"):
        assert user_code.origin(filename) is None
    assert user_code.origin("<string>") is None  # the program has a file


def test_own_package_is_skipped_but_the_demo_is_a_user() -> None:
    package = os.path.dirname(os.path.dirname(user_code.__file__))
    assert user_code.origin(os.path.join(package, "log.py")) is None
    assert user_code.origin(os.path.join(package, "demo.py")) == os.path.join(package, "demo.py")


def test_relative_file_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert user_code.origin("relative_agent.py") == os.path.abspath(tmp_path / "relative_agent.py")


def test_packages_installed_beside_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Some_Client-1.0.dist-info").mkdir()
    (tmp_path / "kit_sdk-2.0.dist-info").mkdir()
    (tmp_path / "other-3.0.dist-info").mkdir()
    (tmp_path / "other-3.0.dist-info" / "top_level.txt").write_text("imported_as\n", encoding="utf-8")
    (tmp_path / "kit_app").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for library_file in ("some_client/api.py", "some_client.py", "kit/sdk/client.py", "imported_as/a.py"):
        assert user_code.origin(os.path.abspath(tmp_path / library_file)) is None, library_file
    for user_file in ("main.py", "agents/some_client.py", "kit_app/main.py", "ki/main.py"):
        assert user_code.origin(os.path.abspath(tmp_path / user_file)) is not None, user_file


def test_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "_CAPACITY", 3)
    monkeypatch.setattr(user_code, "_origins", {})
    for number in range(10):
        assert user_code.origin(os.path.join(os.sep, "made", f"up{number}.py")) is not None
        assert len(user_code._origins) <= 3


def test_command_line_program() -> None:
    program = "from occupancy.caller.frames import call_stack\ndef f():\n  return call_stack()\nprint(f())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first = Frame("<string>", 3, "f")
    assert done.stdout.strip() == str((first, Frame("<string>", 4, "<module>")))


def test_import_is_light() -> None:
    package = os.path.dirname(os.path.dirname(user_code.__file__))
    program = f"""
import sys, types
package = types.ModuleType("occupancy")  # the names that the package itself imports are not asked about here
package.__path__ = [{package!r}]
sys.modules["occupancy"] = package
import occupancy.caller.labels
heavy = ["asyncio", "trio", "IPython", "opentelemetry", "httpx", "httpx2", "numpy", "wrapt"]
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Notebooks


def fake_shell(counts: dict[str, int]) -> Any:
    return SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=SimpleNamespace(_filename_map=counts)))


@pytest.mark.parametrize("filename", ["<ipython-input-5-0123456789ab>", os.path.join(os.sep, "tmp", "k_1", "77.py")])
def test_notebook_cell_has_its_execution_count(filename: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {filename: 12}
    monkeypatch.setitem(sys.modules, "IPython", fake_shell(counts))
    cell = load(filename, "def step(get):\n    return get()\n")
    assert cell.step(library.get)[0] == Frame("cell 12", 2, "step")
    counts[filename] = 13  # run again
    assert cell.step(library.get)[0] == Frame("cell 13", 2, "step")
    assert str(cell.step(library.get)[0]) == "cell 13, line 2"


def test_cell_of_a_shell_that_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in (fake_shell({}), SimpleNamespace(get_ipython=lambda: None)):
        monkeypatch.setitem(sys.modules, "IPython", shell)
        assert user_code.cell_name("<ipython-input-5-0123456789ab>") == "cell 5"
        assert user_code.cell_name(HERE) is None


@pytest.mark.parametrize("kernel", [False, True])
def test_real_shell(kernel: bool) -> None:
    shell_module = pytest.importorskip("IPython.core.interactiveshell")
    shell = shell_module.InteractiveShell.instance()
    try:
        if kernel:
            shell.compile = pytest.importorskip("ipykernel.compiler").XCachingCompiler()
        shell.push({"library": library})
        shell.run_cell("1", store_history=True)
        shell.run_cell("\nstack = library.get()", store_history=True)
        frame = shell.user_ns["stack"][0]
    finally:
        shell_module.InteractiveShell.clear_instance()
    assert (frame.file, frame.function) == ("cell 2", "<module>")
    assert frame.line in (1, 2)  # the terminal strips blank lines at the start


# Never break the host


class Weird:
    """A task whose attributes raise."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} here")


def test_weird_task_gives_an_empty_stack(monkeypatch: pytest.MonkeyPatch, failures: list[str]) -> None:
    async def main() -> Any:
        return await asyncio.gather(library.fetch())

    monkeypatch.setattr(tasks, "task_of_loop_frame", lambda frame: Weird())
    assert run_asyncio(main) == [()]
    failures.append("caller.call_stack")


def test_weird_awaiter_keeps_what_is_known(failures: list[str]) -> None:
    class Group:
        _exiting = True
        _parent_task = Weird()

        def done(self, task: object) -> None:
            pass

    async def main() -> Any:
        task = asyncio.create_task(user_fetch())
        task.add_done_callback(Group().done)
        return await task, root_flow().task is not None

    assert run_asyncio(main) == ((at("in user_fetch", "user_fetch"),), True)
    failures.append("caller.call_stack")


def test_failure_gives_an_empty_stack(monkeypatch: pytest.MonkeyPatch, failures: list[str]) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(tasks, "running_loop", fail)
    assert library.get() == ()
    assert root_flow() == (None, threading.current_thread().name, threading.current_thread().name)
    assert not sync_in_event_loop()
    failures.extend(f"caller.{name}" for name in ("call_stack", "root_flow", "sync_in_event_loop"))


def test_cancellation_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(tasks, "running_loop", cancel)
    with pytest.raises(asyncio.CancelledError):
        call_stack()


def test_task_without_weak_references_has_a_root() -> None:
    class Slotted:
        __slots__ = ("name",)

    task = Slotted()
    assert tasks._unique_name(task, "task odd") == tasks._unique_name(task, "task odd")
    assert tasks._unique_name(Slotted(), "task odd") != tasks._unique_name(task, "task odd")


def test_awaiter_that_python_3_14_records() -> None:
    class Task:
        _callbacks: tuple[()] = ()
        _fut_waiter: object = None
        _asyncio_awaited_by: frozenset[object] | None = None

        def get_coro(self) -> None: ...

    above, below = Task(), Task()
    assert tasks.awaiter(below) is None
    below._asyncio_awaited_by = frozenset({above})
    assert tasks.awaiter(below) == (above, False)
    above._fut_waiter = below  # a bare task, awaited directly
    assert tasks.awaiter(below) is None


def test_circle_of_tasks_ends() -> None:
    async def main() -> Any:
        task = asyncio.current_task()
        assert task is not None

        class Group:
            _parent_task = task
            _exiting = True

            def done(self, _: object) -> None:
                pass

        task.add_done_callback(Group().done)
        return library.get(), root_flow().root

    stack, root = run_asyncio(main)
    assert stack
    assert root.startswith("task ")


def test_nothing_is_kept() -> None:
    class Local:
        pass

    dead: list[Callable[[], object]] = []

    async def child() -> None:
        local = Local()
        dead.append(weakref.ref(local))
        dead.append(weakref.ref(asyncio.current_task()))
        await asyncio.sleep(0)
        assert call_stack()
        root_flow()

    async def main() -> None:
        local = Local()
        dead.append(weakref.ref(local))
        await asyncio.gather(child(), child())
        assert call_stack()

    gc.collect()
    gc.disable()
    try:
        run_asyncio(main)
        alive = [reference for reference in dead if reference() is not None]
    finally:
        gc.enable()
    assert alive == []
    assert len(dead) == 5


def test_a_failing_log_handler_does_not_matter(monkeypatch: pytest.MonkeyPatch, failures: list[str]) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("handler")

    handler = Handler()
    _guard.logger.addHandler(handler)
    monkeypatch.setattr(tasks, "running_loop", lambda: 1 / 0)
    try:
        assert call_stack() == ()
    finally:
        _guard.logger.removeHandler(handler)
