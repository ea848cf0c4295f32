"""Labels and agent runs: what holds where, and that leaving a block never disturbs the host."""

# mypy: disable-error-code="untyped-decorator"
# The blocks under test come as a union of two classes.

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import gc
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

from occupancy.caller import blocks
from occupancy.caller.labels import agent_run, current_after, current_label, current_run, label
from occupancy.errors import InputError, OccupancyError

Block = type[label] | type[agent_run]
Read = Callable[[], str | None]


@pytest.fixture(params=[label, agent_run])
def block(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def current(block: Block) -> Read:
    """The name of the innermost block; the number of a run left out."""
    read = {label: current_label, agent_run: current_run}[block]

    def name() -> str | None:
        value = read()
        return None if value is None else value.partition("#")[0]

    return name


# As a with statement


def test_outside_of_blocks() -> None:
    assert (current_label(), current_after(), current_run()) == (None, (), None)


def test_innermost_wins(block: Block, current: Read) -> None:
    with block("plan"):
        assert current() == "plan"
        with block("fetch"):
            assert current() == "fetch"
        assert current() == "plan"
    assert current() is None


def test_labels_and_runs_do_not_mix() -> None:
    with label("plan"), agent_run("research"):
        assert current_label() == "plan"
        assert str(current_run()).startswith("research#")


def test_label_after() -> None:
    with label("plan"):
        with label("fetch", after="plan"):
            assert current_after() == ("plan",)
            with label("draft", after=(name for name in ("plan", "fetch"))):
                assert current_after() == ("plan", "fetch")
        assert current_after() == ()


def test_each_entry_is_a_run_of_its_own() -> None:
    research = agent_run("research")
    seen = []
    for _ in range(2):
        with research:
            seen.append(current_run())
            assert current_run() == seen[-1]
    with agent_run("research"):
        seen.append(current_run())
    assert len(set(seen)) == 3
    numbers = [int(str(run).removeprefix("research#")) for run in seen]
    assert numbers == sorted(numbers)


def test_one_object_inside_itself(block: Block, current: Read) -> None:
    again = block("plan")
    with again:
        with again:
            assert current() == "plan"
        assert current() == "plan"
    assert current() is None


def test_leaving_out_of_order_keeps_the_block_that_is_open(block: Block, current: Read) -> None:
    first, second, third = block("first"), block("second"), block("third")
    first.__enter__()
    second.__enter__()
    third.__enter__()
    second.__exit__(None, None, None)
    assert current() == "third"
    third.__exit__(None, None, None)
    assert current() == "first"
    first.__exit__(None, None, None)
    assert current() is None


def test_exceptions_pass(block: Block, current: Read) -> None:
    error = KeyError("host's own")
    with pytest.raises(KeyError) as caught, block("plan"):
        raise error
    assert caught.value is error
    assert current() is None


@pytest.mark.parametrize("name", ["", "  ", None, 3, b"plan", ["plan"]])
def test_bad_names(block: Block, name: Any) -> None:
    with pytest.raises(InputError) as caught:
        block(name)
    assert repr(name) in str(caught.value)
    assert block.__name__ in str(caught.value)
    assert isinstance(caught.value, OccupancyError)


@pytest.mark.parametrize(("after", "shown"), [("", "''"), (7, "7"), (["plan", 7], "7"), (None, "None")])
def test_bad_after(after: Any, shown: str) -> None:
    with pytest.raises(InputError, match="after") as caught:
        label("fetch", after=after)
    assert shown in str(caught.value)


# Other contexts


def test_leaving_in_another_context_disturbs_nothing(block: Block, current: Read) -> None:
    def body() -> Generator[None, None, None]:
        with block("inside"):
            yield

    generator = body()
    contextvars.copy_context().run(next, generator)

    def close_elsewhere() -> str | None:
        with block("host"):
            generator.close()
            return current()

    assert contextvars.copy_context().run(close_elsewhere) == "host"
    assert current() is None


def test_leaving_in_another_context_keeps_the_host_s_exception(block: Block) -> None:
    def body() -> Generator[None, None, None]:
        with block("inside"):
            yield

    generator = body()
    contextvars.copy_context().run(next, generator)
    error = LookupError("host's own")
    with pytest.raises(LookupError) as caught:
        contextvars.copy_context().run(generator.throw, error)
    assert caught.value is error


def test_tasks_inherit_and_do_not_leak(block: Block, current: Read) -> None:
    async def child(name: str) -> list[str | None]:
        seen = [current()]
        with block(name):
            await asyncio.sleep(0)
            seen.append(current())
        return [*seen, current()]

    async def main() -> Any:
        with block("parent"):
            return await asyncio.gather(child("a"), child("b")), current()

    both, parent = asyncio.run(main())
    assert both == [["parent", "a", "parent"], ["parent", "b", "parent"]]
    assert parent == "parent"
    assert current() is None


def test_child_keeps_the_block_that_its_parent_left(block: Block, current: Read) -> None:
    async def child(go: asyncio.Event) -> str | None:
        await go.wait()
        return current()

    async def main() -> str | None:
        go = asyncio.Event()
        with block("step"):
            task = asyncio.create_task(child(go))
        go.set()
        assert current() is None
        return await task

    assert asyncio.run(main()) == "step"


def test_one_object_in_many_tasks(current: Read, block: Block) -> None:
    shared = block("shared")

    async def child() -> list[str | None]:
        with shared:
            await asyncio.sleep(0)
            inside = current()
        return [inside, current()]

    async def main() -> Any:
        return await asyncio.gather(*(child() for _ in range(3)))

    assert asyncio.run(main()) == [["shared", None]] * 3


def test_two_users_in_one_block_are_two_runs() -> None:
    @agent_run("research")
    async def research() -> set[str | None]:
        seen = {current_run()}
        await asyncio.sleep(0)
        return seen | {current_run()}

    async def main() -> Any:
        return await asyncio.gather(research(), research())

    (one,), (two,) = asyncio.run(main())
    assert one != two


def test_threads(block: Block, current: Read) -> None:
    async def main() -> Any:
        return await asyncio.to_thread(current)

    with block("main thread"):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(current).result() is None
        assert asyncio.run(main()) == "main thread"


def test_run_numbers_are_unique_across_threads() -> None:
    barrier = threading.Barrier(8)
    seen: list[str | None] = []

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            with agent_run("research"):
                seen.append(current_run())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 400


def test_trio_tasks(block: Block, current: Read) -> None:
    trio = pytest.importorskip("trio")
    seen: list[str | None] = []

    async def child() -> None:
        await trio.lowlevel.checkpoint()
        seen.append(current())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with block("spawned"):
                nursery.start_soon(child)
            assert current() is None

    trio.run(main)
    assert seen == ["spawned"]


def test_chain_is_bounded(block: Block, current: Read) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(200):
            stack.enter_context(block(f"b{number}"))
        assert current() == "b199"
        assert len(list(blocks.chain(block._variable.get()))) <= blocks.MAX_DEPTH
    assert current() is None


# As a decorator


def test_function(block: Block, current: Read) -> None:
    @block("step")
    def step(first: int, *, second: int) -> tuple[int, str | None]:
        """Documented."""
        return first + second, current()

    assert step(1, second=2) == (3, "step")
    assert (step.__name__, step.__doc__) == ("step", "Documented.")
    assert current() is None


def test_coroutine_function(block: Block, current: Read) -> None:
    @block("step")
    async def step() -> list[str | None]:
        before = current()
        await asyncio.sleep(0)
        return [before, current()]

    async def main() -> Any:
        coroutine = step()
        assert current() is None
        return await coroutine, current()

    assert inspect.iscoroutinefunction(step)
    assert asyncio.run(main()) == (["step", "step"], None)


def test_coroutine_function_behind_another_decorator(block: Block, current: Read) -> None:
    async def step() -> str | None:
        await asyncio.sleep(0)
        return current()

    @functools.wraps(step)
    def hiding() -> Any:
        return step()

    assert asyncio.run(block("step")(hiding)()) == "step"


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_methods(block: Block, current: Read, kind: Any) -> None:
    class Agent:
        @block("method")
        def step(self) -> str | None:
            return current()

        other = block("other")(kind(lambda *_: current()))

    assert Agent().step() == "method"
    assert Agent.other() == "other"


@pytest.mark.parametrize("thing", [3, "plan", dict])
def test_what_cannot_be_decorated(block: Block, thing: Any) -> None:
    with pytest.raises(InputError) as caught:
        block("step")(thing)
    assert repr(thing) in str(caught.value)


def test_generator_function(block: Block, current: Read) -> None:
    @block("producer")
    def produce() -> Generator[Any, Any, str]:
        sent = yield current()
        try:
            yield current(), sent
        except ValueError as error:
            yield current(), str(error)
        return f"returned in {current()}"

    assert inspect.isgeneratorfunction(produce)
    with block("consumer"):
        generator = produce()
        assert (next(generator), current()) == ("producer", "consumer")
        assert (generator.send(5), current()) == (("producer", 5), "consumer")
        assert (generator.throw(ValueError("thrown")), current()) == (("producer", "thrown"), "consumer")
        with pytest.raises(StopIteration) as stop:
            next(generator)
        assert stop.value.value == "returned in producer"
        assert current() == "consumer"


def test_blocks_that_a_generator_holds_open_stay_inside_it(block: Block, current: Read) -> None:
    @block("outer")
    def produce() -> Iterator[str | None]:
        with block("inner"):
            yield current()
            yield current()
        yield current()

    generator = produce()
    assert [(value, current()) for value in generator] == [("inner", None), ("inner", None), ("outer", None)]


def test_generator_is_one_run() -> None:
    @agent_run("research")
    def produce() -> Iterator[str | None]:
        yield current_run()
        yield current_run()

    one, two = list(produce()), list(produce())
    assert len(set(one)) == len(set(two)) == 1
    assert one != two


@pytest.mark.parametrize("close", ["close", "del"])
def test_closed_generator_cleans_up_inside_the_block(block: Block, current: Read, close: str) -> None:
    seen: list[str | None] = []

    @block("producer")
    def produce() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            seen.append(current())

    generator: Any = produce()
    next(generator)
    if close == "close":
        generator.close()
    del generator
    gc.collect()
    assert (seen, current()) == (["producer"], None)


def test_generator_s_errors_pass(block: Block, current: Read) -> None:
    error = KeyError("its own")

    @block("producer")
    def produce() -> Iterator[int]:
        yield 1
        raise error

    generator = produce()
    next(generator)
    with pytest.raises(KeyError) as caught:
        next(generator)
    assert caught.value is error
    assert caught.value.__context__ is None
    assert current() is None


def test_generator_that_never_starts(block: Block, current: Read) -> None:
    @block("producer")
    def produce() -> Iterator[int]:
        yield 1

    generator: Any = produce()
    generator.close()
    assert current() is None


def test_async_generator_function(block: Block, current: Read) -> None:
    @block("producer")
    async def produce() -> AsyncGenerator[Any, Any]:
        await asyncio.sleep(0)
        sent = yield current()
        try:
            yield current(), sent
        except ValueError as error:
            await asyncio.sleep(0)
            yield current(), str(error)

    async def main() -> None:
        with block("consumer"):
            generator = produce()
            assert (await anext(generator), current()) == ("producer", "consumer")
            assert (await generator.asend(5), current()) == (("producer", 5), "consumer")
            assert (await generator.athrow(ValueError("thrown")), current()) == (("producer", "thrown"), "consumer")
            with pytest.raises(StopAsyncIteration):
                await anext(generator)
            assert current() == "consumer"

    assert inspect.isasyncgenfunction(produce)
    asyncio.run(main())


@pytest.mark.parametrize("close", ["aclose", "del", "shutdown", "cancel"])
def test_closed_async_generator_cleans_up_inside_the_block(block: Block, current: Read, close: str) -> None:
    seen: list[str | None] = []

    @block("producer")
    async def produce() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            seen.append(current())

    async def main() -> None:
        generator: Any = produce()
        await anext(generator)
        if close == "aclose":
            await generator.aclose()
        elif close == "cancel":
            task = asyncio.ensure_future(anext(generator))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif close == "shutdown":
            await asyncio.get_running_loop().shutdown_asyncgens()
        del generator
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)
        assert current() is None

    asyncio.run(main())
    assert seen == ["producer"]


def test_async_generator_stepped_by_different_tasks(block: Block, current: Read) -> None:
    @block("producer")
    async def produce() -> AsyncIterator[str | None]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield current()

    async def step(generator: Any, name: str) -> Any:
        with block(name):
            value = await anext(generator)
            return value, current()

    async def main() -> Any:
        generator = produce()
        return [await asyncio.create_task(step(generator, name)) for name in ("a", "b", "c")]

    assert asyncio.run(main()) == [("producer", "a"), ("producer", "b"), ("producer", "c")]


def test_async_generator_left_by_a_loop_that_closed(block: Block, current: Read) -> None:
    class Never:
        def __await__(self) -> Generator[None, None, None]:
            yield

    @block("producer")
    async def produce() -> AsyncIterator[int]:
        yield 1
        await Never()

    async def advance(generator: Any) -> int:
        return await anext(generator)

    generator: Any = produce()
    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(advance(generator)) == 1
    finally:
        loop.close()
    stuck: Any = advance(generator)
    contextvars.copy_context().run(stuck.send, None)
    with block("host"):
        stuck.close()
        del stuck
        assert current() == "host"
    assert current() is None


def test_shutdown_of_a_loop_closes_a_generator_once(block: Block, current: Read) -> None:
    reports: list[Any] = []
    seen: list[str | None] = []

    @block("producer")
    async def produce() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            seen.append(current())

    async def main() -> list[Any]:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        generators = [produce() for _ in range(20)]
        for generator in generators:
            await anext(generator)
        return generators

    asyncio.run(main())
    assert (seen, reports) == (["producer"] * 20, [])


def test_async_context_manager_of_a_decorated_generator(block: Block, current: Read) -> None:
    @contextlib.asynccontextmanager
    @block("session")
    async def session() -> AsyncIterator[str | None]:
        yield current()

    async def main() -> Any:
        async with session() as inside:
            return inside, current()

    assert asyncio.run(main()) == ("session", None)
