"""`python -m mock_server`: the gateway in the foreground."""

import argparse
import sys

import mock_server
from mock_server.faults import non_negative

DEFAULT_PORT = 8377


def main(arguments: list[str] | None = None) -> int:
    """Run the gateway until Ctrl-C.

    Args:
        arguments: the command line without the program's name; that of the process if None.

    Returns:
        The exit code: 0 after Ctrl-C, 1 when the server could not start (one line on stderr says why).
    """
    options = _parser().parse_args(arguments)
    try:
        mock_server.run(host=options.host, port=options.port, delay_ms=options.delay_ms)
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
    return parser


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
