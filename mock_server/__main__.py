"""`python -m mock_server`: the gateway in the foreground."""

import argparse
import sys
from dataclasses import fields

import mock_server
from mock_server.faults import non_negative
from mock_server.gateway import Limits

DEFAULT_PORT = 8377


def main(arguments: list[str] | None = None) -> int:
    """Run the gateway until Ctrl-C.

    Args:
        arguments: the command line without the program's name; that of the process if None.

    Returns:
        The exit code: 0 after Ctrl-C, 1 when the server could not start (one line on stderr says why).
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        limits = _limits(options)
    except ValueError as error:
        parser.error(str(error))
    try:
        mock_server.run(host=options.host, port=options.port, delay_ms=options.delay_ms, limits=limits)
    except ModuleNotFoundError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"mock_server cannot listen on {options.host}:{options.port}: {error.strerror or error}")
    except KeyboardInterrupt:
        pass
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mock_server", description="A model gateway with known delays.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=DEFAULT_PORT, help="0 takes a free one (default: %(default)s)")
    parser.add_argument(
        "--delay-ms", type=_delay, default=20.0, help="wait of the model endpoints, in ms (default: %(default)s)"
    )
    _add_limits(parser.add_argument_group("limited capacity", "any of these makes the model endpoints share slots"))
    return parser


def _add_limits(group: argparse._ArgumentGroup) -> None:
    """One option for each field of `Limits`, None where it is not given."""

    def add(name: str, kind: type, metavar: str, text: str) -> None:
        group.add_argument(f"--{name}", dest=name.replace("-", "_"), type=kind, metavar=metavar, help=text)

    add("capacity", int, "K", "requests worked on at once (default: no limit)")
    add("service", float, "S", "seconds in a slot (default: --delay-ms)")
    add("queue", int, "Q", "requests that may wait; one more is answered 429 (default: no limit)")
    add("timeout", float, "T", "seconds after which a request is answered 504 (default: never)")
    add("cold", float, "C", "seconds to wake up after idling")
    add("idle", float, "I", "seconds of idling from which on it sleeps (default: 60)")
    add("jitter", float, "J", "service times vary by this share on both sides, 0 to 1")
    add("rpm", int, "R", "requests in any minute; one more is answered 429")
    add("tpm", int, "R", "tokens in any minute")
    add("retry-after", float, "A", "seconds that a 429 asks for")
    add("outside", float, "Z", "seconds of each request outside the slot")
    add("cache-speedup", float, "X", "times faster where a prompt begins like an earlier one")
    add("drift", float, "D", "share by which each further request takes longer")
    add("seed", int, "N", "of the jitter (default: 0)")
    group.add_argument("--buffer", action="store_true", default=None, help="hold event streams back to their end")
    group.add_argument(
        "--keep-working", action="store_true", default=None, help="a request whose client has left keeps its slot"
    )


def _limits(options: argparse.Namespace) -> Limits | None:
    """The limits that were given; None where there are none.

    Raises:
        ValueError: A value does not fit.
    """
    seconds = {"service", "timeout", "cold", "idle", "retry_after", "outside"}
    names = {field.name.removesuffix("_s") if field.name[:-2] in seconds else field.name for field in fields(Limits)}
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if not given:
        return None
    given.setdefault("service", options.delay_ms / 1000)
    return Limits(**{f"{name}_s" if name in seconds else name: value for name, value in given.items()})


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 65535, got {text!r}")
    return int(text)


def _delay(text: str) -> float:
    try:
        return non_negative(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, got {text!r}") from None


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
