"""The entry point of the command line: find and call the subcommand, and convert errors to a message and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

from collbench.cli import start
from collbench.cli.help import GROUPS, help_topics, topic_page
from collbench.cli.options import OPTIONS, moves
from collbench.cli.other_tools import command_named, respelled
from collbench.cli.parser import Parser, actions_of, from_environment, split_rest
from collbench.errors import FAILED, CollbenchError, Interrupted, RunFailed, UsageError, is_out_of_memory
from collbench.launch import signals
from collbench.operations.registry import commands as operation_commands
from collbench.plugin import BUILTIN, hooks_of, loaded_parts, plugins, record_files
from collbench.plugin import commands as plugin_commands

# Errors about unknown commands and options: similar names, or the command that has the option.

_MOST_NAMED = 6
Parsers = Mapping[str, Parser]


def check_command(argv: Sequence[str], parsers: Parsers) -> None:
    """Raise UsageError if the first word is not a command; `parsers` by command."""
    first = argv[0] if argv else "--help"
    if first in parsers or first in ("-h", "--help", "--help-all", "-V", "--version"):
        return
    if first.startswith("-"):
        raise UsageError(f"'{first}' comes before the command: write the command first, e.g. `collbench allreduce {first}` …")
    topics = help_topics(parsers, operation_commands())
    if first in topics:
        raise UsageError(f"'{first}' is a group of commands, not a command: `collbench help {first}` lists them")
    if not first:
        raise UsageError("the command is empty: `collbench --help` lists the commands")
    if Path(first).exists():
        use = "run" if Path(first).suffix == ".toml" else "report"
        raise UsageError(f"'{first}' is a file or folder, not a command: use `collbench {use} {first}`")
    from difflib import get_close_matches

    matches = get_close_matches(first.lower(), [*parsers, "help", *topics], n=1)
    suggestion = f": did you mean {matches[0]}?" if matches else ""
    raise UsageError(f"unknown command '{first}'{suggestion} (`collbench --help` lists the commands)")


def check_words(command: str, unknown: Sequence[str], parsers: Parsers) -> NoReturn:
    """Raise UsageError for arguments that the command's parser did not accept; `unknown` has one or more."""
    option = next((_option(word) for word in unknown if word.startswith("-")), None)
    if parsers[command].ends_with_command and unknown[0] in parsers:
        raise UsageError(f"put -- before the command: `collbench {command} … -- {' '.join(unknown)}`")
    problem = f"'{unknown[0]}' is an unexpected argument"
    if option:
        problem = f"{command} has no option {option}{_remedy(option, command, parsers)}"
    raise UsageError(f"{problem} (see `collbench {command} --help`)")


def _option(word: str) -> str:
    """Return the option in "--sizes=8" or "-b8"."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def _remedy(option: str, command: str, parsers: Parsers) -> str:
    """Return similar options, or why the command does not have it, or which commands do; "" if none has it."""
    similar = _alike(option, _options(parsers[command]))
    if similar:
        return f": did you mean {similar}?"
    operations = operation_commands().get(command, [])
    data_options = {flag for declared in OPTIONS.values() if declared.needs is moves for flag in declared.flags.split()}
    if operations and not any(map(moves, operations)) and option in data_options:
        return ": it moves no data, so it has no sizes, types and buffers"
    others = sorted(name for name, parser in parsers.items() if option in _options(parser))
    if not others:
        return ""
    named = others[:_MOST_NAMED]
    if len(others) > _MOST_NAMED:
        named.append("others")
    *first, last = named
    return f": {', '.join(first)} and {last} have it" if first else f": {last} has it"


def _alike(option: str, options: Sequence[str]) -> str | None:
    """Return the long option that begins with this text, or is most similar to it. Dashes do not count."""
    if not option.startswith("--"):
        return None
    word = option[2:]
    words = [name[2:] for name in options if name.startswith("--")]
    from difflib import get_close_matches

    matches = [name for name in words if word and name.startswith(word)] or get_close_matches(word, words, n=1)
    return f"--{matches[0]}" if matches else None


def _options(parser: ArgumentParser) -> list[str]:
    return [option for action in actions_of(parser) for option in action.option_strings]


_DESCRIPTION = "Is the network as fast as the one you paid for, and did the last upgrade make it slower?"
_EPILOG = """\
exit codes: 0 success · 1 negative verdict · 2 bad input, a missing backend, every case n/a · 3 no verdict ·
4 wrong data, hang, crash, launcher and communicator differ · 130/143 signals"""
_INTRODUCTION = """\
collbench measures the network of GPU and HPC machines: MPI, Gloo, NCCL and others, between ranks on one host or on many nodes.
It verifies the data, and compares each bandwidth with what the hardware can deliver.

  collbench check        is everything fine here? one verdict in about 15 seconds
  collbench allreduce    measure all-reduce at 8 sizes, in at most 15 seconds
  collbench report       show the newest run again; --html FILE writes it as a page

Results are stored in runs/; `collbench runs` lists them. `collbench doctor` checks the settings of this node.
All commands: `collbench --help`. Options of a command: `collbench allreduce --help`. Terms: `collbench explain WORD`.
Exit codes: 0 success, 1 negative verdict, 2 bad input, 3 no verdict, 4 wrong data, hang or crash."""
# Where the commands of the core are that do not measure, but for `check`; those of plug-ins have the same form.
_PLACES = {
    "check": "collbench.cli.check:CHECK_COMMAND", "backends": "collbench.cli.machine:add_backends",
    "probe": "collbench.cli.machine:add_probe", "peak": "collbench.cli.machine:add_peak", "doctor": "collbench.cli.machine:add_doctor",
    "explain": "collbench.cli.machine:add_explain", "report": "collbench.cli.results:add_report",
    "runs": "collbench.cli.results:add_runs", "compare": "collbench.cli.results:add_compare",
    "baseline": "collbench.cli.gate:add_baseline", "history": "collbench.cli.gate:add_history", "gate": "collbench.cli.gate:add_gate",
    "plugins": "collbench.cli.plugins:add_plugins",
}  # fmt: skip
_CORE = ("run", *_PLACES)  # and the operations
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_NO_MEMORY = (
    "this process (%s, pid %d) ran out of memory: "
    "use smaller sizes or files, or raise its limit (ulimit -v, or that of its job or container)"
)
_LEAVING_S = 3.0  # for exit handlers of libraries, which may hang after a failed run


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    open_streams()
    code = guarded(sys.argv[1:])
    _leave(code)


def run(argv: list[str]) -> int:
    """Run one command; return its exit code. Raises CollbenchError."""
    if any(word.startswith("--resume") for word in argv):
        from collbench.cli.resume import with_stored_options

        argv = with_stored_options(argv, frozenset({"run", *record_files(), *operation_commands()}))
    parser, added = all_parsers(argv[0] if argv else "")
    argv = canonical(argv, added)
    if {"-h", "--help", "--help-all"} & set(argv[1:]) and argv[0] in help_topics(added, operation_commands()):
        print(topic_page(parser, operation_commands(), argv[0]), end="")
        return 0
    if argv and argv[0] in added:
        argv = [argv[0], *from_environment(added[argv[0]], argv[1:], os.environ)]
    arguments = _configured(argv, parser, added)
    if arguments.version:
        return _print_version(arguments.details)
    if arguments.command is None:
        print(_INTRODUCTION)
        return 0
    code: int = arguments.call(arguments, argv)
    return code


def _print_version(details: bool) -> int:
    if details:
        from collbench.cli.version import describe

        print(describe(), end="")
    else:
        from collbench import __version__

        print(f"collbench {__version__}")
    return 0


def _configured(argv: list[str], parser: Parser, added: Parsers) -> Namespace:
    """Return the parsed command line with the values of the configuration file, of which `argv`, for other ranks, has none."""
    if argv[:1] and argv[0] in added and not {"-h", "--help", "--help-all"} & set(split_rest(argv)[0]):
        from collbench.cli.configuration import check_keys, parse_configured, read_configuration

        configuration = read_configuration(argv[1:], os.environ)
        if configuration:
            check_keys(configuration, argv[0], all_parsers()[1])
        return parse_configured(configuration, argv[0], added[argv[0]], argv[1:], lambda words: _read([argv[0], *words], parser, added))
    return _read(argv, parser, added)


def parsed(argv: list[str]) -> Namespace:
    """Return the parsed command line, without the environment, and without running it. Raises UsageError as `run` does."""
    parser, added = all_parsers()
    return _read(canonical(argv, added), parser, added)


def canonical(argv: Sequence[str], parsers: Parsers) -> list[str]:
    """Return a command line with collbench's names for commands and options of other tools, and `help COMMAND` as an option."""
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if argv and argv[0].lower().startswith(("osu_", "imb-")):
        translate = next(iter(hooks_of("mpi_benchmark")), None)
        if translate is None and not {*argv[1:]} <= {"-h", "--help", "--help-all"}:
            raise UsageError(f"{argv[0]}: options of OSU and IMB need the plug-in mpibench: use collbench's own (`collbench --help`)")
        argv = translate(argv[0], argv[1:]) if translate else argv
    return [*(part for word in argv[:1] for part in command_named(word, parsers)), *respelled(argv[1:])]


def all_parsers(command: str = "") -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the command line, and the parser of each command.

    With the name of a command only this one is there: a start, and that of each rank, is faster without the others.
    """
    from collbench.cli.measure import add_collective, add_operation, add_run
    from collbench.operations.registry import reserve

    reserve(reserved_names)
    parser = Parser(prog="collbench", description=_DESCRIPTION, epilog=_EPILOG).whole()
    parser.add_argument("-V", "--version", action="store_true", help="print the version (-v: also the commit, Python, libraries)")
    parser.add_argument("-v", "--verbose", action="store_true", dest="details", help=SUPPRESS)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    if command in operation_commands():
        add_operation(commands, command)
    elif command == "run":
        add_run(commands)
    else:
        of_plugins = {name: place for name, place in plugin_commands().items() if name not in (*_CORE, *operation_commands())}
        places = {**_PLACES, **of_plugins}
        if command not in places:
            add_collective(commands)
            add_run(commands)
        for place in [places[command]] if command in places else places.values():
            _add_part(commands, place)
    return parser, dict(commands.choices)


def _add_part(commands: Any, place: str) -> None:
    """Add the command at a place; none if its plug-in does not load."""
    from collbench.cli.command import CommandSpec

    for part in loaded_parts([place]):
        add = part.add_to if isinstance(part, CommandSpec) else part
        add(commands)


def reserved_names() -> frozenset[str]:
    """Return the names that commands of operations cannot have: those of other commands and of their groups."""
    builtin = {name for plugin in plugins().values() if plugin.name in BUILTIN for name in plugin.commands}
    return frozenset({"help", "operations", *(title.lower() for title in GROUPS), *_CORE, *builtin})


def is_command(name: str) -> bool:
    """Return whether a command of this name is there."""
    return name in _CORE or name in operation_commands() or name in plugin_commands()


def _read(argv: list[str], parser: Parser, added: Parsers) -> Namespace:
    check_command(argv, added)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        check_words(arguments.command, unknown, all_parsers()[1])
    return cast(Namespace, arguments)


def open_streams() -> None:
    """Handle closed outputs and any encoding, for all commands: characters that an output's encoding lacks become "?".

    Python's own exit code for a closed output, 1, would be mistaken for a regression.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        getattr(sys, name).reconfigure(errors="replace")


def guarded(argv: list[str]) -> int:
    """Run a command line and return its exit code. An error is printed; `gate` maps its codes by --exit-style."""
    signals.handle(os.environ)
    try:
        return run(argv)
    except BaseException as error:
        code = _code_of(error)
        if argv[:1] != ["gate"] or isinstance(error, SystemExit):  # a help page has ended it
            return code
        from collbench.cli.gate import exit_in_style, style_of

        return exit_in_style(code, style_of(argv, os.environ), str(error) or type(error).__name__)


def _code_of(error: BaseException) -> int:
    """Return the exit code of the exception that ended the run. Report its reason unless that was done already."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, BrokenPipeError):
        return FAILED
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:  # a stream: collbench's files have names
        start.write_error(f"collbench: the output cannot be written ({error.strerror}): free some space there, or redirect it\n")
        return FAILED
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
        from collbench.launch.limits import out_of_files

        error = out_of_files(error) or error
    if is_out_of_memory(error):
        error = RunFailed(_NO_MEMORY % (os.uname().nodename, os.getpid()))
    if not isinstance(error, CollbenchError | Interrupted):
        start.report_exception(error)
        return FAILED
    if isinstance(error, Interrupted):
        from collbench.launch.detect import is_follower

        if is_follower(os.environ):  # rank 0 or the parent of a local start reports the interruption for all
            return error.exit_code
    if not getattr(error, "reported", False):
        start.write_error(f"collbench: {error}\n")
    return error.exit_code


def _leave(code: int) -> NoReturn:
    """End the process at once. Python's clean-up and threads of failed libraries must not delay a finished rank."""
    signals.settle()
    exit_code = code
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if "COLLBENCH_LOCAL" in os.environ:  # a rank of a start on this host
        from collbench.launch.spawn import code_for_launcher, record_exit

        record_exit(code, os.environ)
        exit_code = code_for_launcher(code, os.environ)
    if code:
        from collbench.launch.shared_memory import remove_mapped

        remove_mapped()
    if "mpi4py.MPI" in sys.modules:
        _run_exit_handlers(exit_code)
    os._exit(exit_code)


def _run_exit_handlers(code: int) -> None:
    """End through libc's exit, in which MPICH disconnects from its launcher; it does not do so in MPI_Finalize.

    Otherwise hydra treats a rank with a closed connection as dead, and kills the ranks that are still ending.
    """
    import ctypes
    import threading

    late = threading.Timer(_LEAVING_S, os._exit, (code,))
    late.daemon = True
    late.start()
    libc = ctypes.CDLL(None)
    libc.fflush(None)  # exit may end before it does so
    libc.exit(code)
