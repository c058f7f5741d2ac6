"""The command line's front door: finds the subcommand, calls it, turns what went wrong into one sentence and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from collbench.cli import defect
from collbench.cli.parser import Parser, from_environment
from collbench.errors import FAILED, CollbenchError, Interrupted, UsageError
from collbench.launch import signals

_EPILOG = """\
exit codes: 0 fine · 1 negative verdict · 2 bad input, a missing backend, every cell n/a · 3 no verdict ·
4 wrong data, hang, crash, launcher and communicator disagree · 130/143 signals"""
COMMANDS = frozenset(
    {
        "backends",
        "baseline",
        "compare",
        "completion",
        "doctor",
        "emit",
        "explain",
        "gate",
        "history",
        "hunt",
        "import",
        "kernels",
        "pairs",
        "peak",
        "probe",
        "report",
        "run",
        "workload",
    }
)  # all but those of operations, which cannot have these names
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_LEAVING_S = 3.0  # for libraries' exit handlers, which may hang where the run failed


def main() -> NoReturn:
    """Runs the command line and leaves with its exit code."""
    _open_streams()
    code = _guarded(sys.argv[1:])
    _leave(code)


def run(argv: list[str]) -> int:
    """Runs one command; returns its exit code. Raises CollbenchError."""
    parser, added = _parsers()
    if argv and argv[0] in added:
        argv = [argv[0], *from_environment(added[argv[0]], argv[1:], os.environ)]
    arguments = _read(argv, parser, added)
    if arguments.version:
        from collbench import __version__

        print(f"collbench {__version__}")
        return 0
    if arguments.command is None:
        raise UsageError("no command: type `collbench allreduce` to measure, `collbench backends` to see with what, or `collbench --help`")
    code: int = arguments.call(arguments, argv)
    return code


def parsed(argv: list[str]) -> Namespace:
    """What a command line says, without the environment, and without running it. Raises UsageError as `run` does."""
    return _read(argv, *_parsers())


def _parsers() -> tuple[Parser, dict[str, ArgumentParser]]:
    """The whole command line, and the parser of each command."""
    from collbench.cli import (
        backends,
        baseline,
        collective,
        compare,
        completion,
        doctor,
        explain,
        gate,
        history,
        hunt,
        import_,
        kernels,
        pairs,
        peak,
        probe,
        report,
        workload,
    )
    from collbench.cli import deploy as emit
    from collbench.cli import run as suite
    from collbench.operations.registry import reserve

    reserve(COMMANDS)
    parser = Parser(prog="collbench", description="Is the network as fast as what you paid for, and did the last upgrade make it worse?",
                    epilog=_EPILOG, formatter_class=_formatter())  # fmt: skip
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    one_each = (collective, suite, pairs, hunt, workload, backends, probe, peak, doctor, explain, emit, import_, report, compare, baseline,
                history, gate, kernels, completion)  # fmt: skip
    return parser, {name: parser for each in one_each for name, parser in each.add(commands).items()}


def _read(argv: list[str], parser: Parser, added: Mapping[str, ArgumentParser]) -> Namespace:
    from collbench.cli.unknown import check_command, check_words

    check_command(argv, added)
    arguments, left = parser.parse_known_args(argv)
    check_words(arguments.command, left, added)
    found: Namespace = arguments
    return found


def _open_streams() -> None:
    """What whoever started us had closed leads nowhere: Python's own exit code for that, 1, would read as a regression."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _formatter() -> type:
    from argparse import RawDescriptionHelpFormatter

    return RawDescriptionHelpFormatter


def _guarded(argv: list[str]) -> int:
    signals.handle(os.environ)
    try:
        return run(argv)
    except BaseException as error:
        code = _code_of(error)
        return _in_style(code, argv, error) if argv[:1] == ["gate"] else code


def _in_style(code: int, argv: list[str], error: BaseException) -> int:
    """A gate that fails does so in the style that its caller reads."""
    from collbench.cli.gate import style_of, told_in_style

    return told_in_style(code, style_of(argv, os.environ), str(error) or type(error).__name__)


def _code_of(error: BaseException) -> int:
    """The exit code for what ended the run; says why unless that was said already."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, BrokenPipeError):
        return FAILED
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:  # a stream: files of ours have names
        defect.say(f"collbench: the output cannot be written ({error.strerror}): make room where it goes, or send it elsewhere\n")
        return FAILED
    error = _known(error)
    if not isinstance(error, CollbenchError | Interrupted):
        defect.tell(error)
        return FAILED
    if not getattr(error, "said", False) and not (isinstance(error, Interrupted) and _is_silent_follower()):
        defect.say(f"collbench: {error}\n")
    return error.exit_code


def _is_silent_follower() -> bool:
    """Whether this is a rank of a local start whose rank 0 reports the interruption for all."""
    from collbench.launch.detect import is_follower

    return is_follower(os.environ)


def _known(error: BaseException) -> BaseException:
    """The error, or what it means where the operating system's limit of open files is its cause."""
    if getattr(error, "errno", None) not in (errno.EMFILE, errno.ENFILE):
        return error
    from collbench.control.tree import out_of_files

    return out_of_files(error) or error


def _leave(code: int) -> NoReturn:
    """Ends now: neither Python's own clean-up nor threads of libraries that failed keep a finished rank alive."""
    from collbench.launch.shared_memory import remove_mapped
    from collbench.launch.spawn import record_exit

    signals.settle()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    record_exit(code, os.environ)
    if code:
        remove_mapped()
    if "mpi4py.MPI" in sys.modules:
        _run_exit_handlers(code)
    os._exit(code)


def _run_exit_handlers(code: int) -> None:
    """Leaves through libc's exit: MPICH takes leave of its launcher there, not in MPI_Finalize.

    To hydra, a rank whose connection closes without that has died, and it kills the ranks that are still leaving.
    """
    import ctypes
    import threading

    late = threading.Timer(_LEAVING_S, os._exit, (code,))
    late.daemon = True
    late.start()
    ctypes.CDLL(None).exit(code)
