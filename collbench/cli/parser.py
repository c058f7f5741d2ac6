"""argparse with collbench's behavior: errors are one sentence with exit code 2; each long option has a COLLBENCH_* variable."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from collbench.cli.help import Formatter, HelpEntry, HelpParser, command_page, program_page
from collbench.cli.other_tools import is_translated
from collbench.errors import UsageError
from collbench.operations.sweep import MOST_STREAMS
from collbench.units import parse_duration


class Parser(HelpParser):
    """A parser that raises UsageError instead of printing its usage and exiting. Its options may be added on demand.

    There are two dozen commands with forty options each, and a start needs one command. Otherwise every rank would need time for
    all of them.
    """

    def __init__(self, entry: HelpEntry | None = None, **settings: Any) -> None:
        self.entry = entry or HelpEntry()
        self._later: list[Callable[[Parser], object]] = [_add_common]
        self._rest = ""
        self.ends_with_command = False
        super().__init__(allow_abbrev=False, **{"formatter_class": Formatter, "add_help": False, **settings})
        self.register("type", Path, file_name)  # for every option with type=Path

    def later(self, fill: Callable[[Parser], object]) -> None:
        """Register a function that adds the options to this parser when they are needed."""
        self._later.append(fill)

    def keep_rest(self, name: str, *, is_command: bool = False) -> None:
        """Store the arguments after a bare `--` in the namespace under `name` (None: there is no `--`). is_command: one of collbench."""
        self._rest = name
        self.ends_with_command = is_command

    def whole(self) -> Parser:
        """Return the parser with all of its options."""
        while self._later:
            self._later.pop(0)(self)
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse with argparse after all options were added."""
        self.whole()
        own_words, rest = split_rest(args) if self._rest else (args, None)
        arguments, unknown = super().parse_known_args(own_words, namespace)
        if self._rest:
            setattr(arguments, self._rest, rest)
        if getattr(arguments, "format", None) == "jsonl":
            arguments.format = "json"  # its name in the code
        return arguments, unknown

    def format_help(self, *, everything: bool = False) -> str:
        """Return the help page: the program's, or a command's with its common options or all of them."""
        from collbench.operations.registry import commands

        self.whole()
        page = command_page if " " in self.prog else program_page
        return page(self, commands(), everything)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reject a value that is not a choice of the option. An unknown format has the same sentence in all commands."""
        if action.dest == "format" and action.choices is not None:
            from collbench.report.screen import check_format

            check_format(value, action.choices)
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with one sentence: what is wrong, and where to look."""
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def _add_common(parser: Parser) -> None:
    parser.add_argument("-h", "--help", action="help", default=argparse.SUPPRESS, help="show this help message and exit")
    if " " in parser.prog:
        parser.add_argument("--no-config", action="store_true", help="ignore the configuration file, ~/.config/collbench/config.toml")
        parser.set_defaults(configuration=None)
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


class _HelpAll(argparse.Action):
    """Print the help page with all options, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print it. Raises SystemExit."""
        print(parser.format_help(everything=True) if isinstance(parser, Parser) else parser.format_help(), end="")
        parser.exit()


def add_command(
    commands: Any, name: str, summary: str, call: object, fill: Callable[[Parser], object] | None = None, **settings: Any
) -> Parser:
    """Add a command, and return its parser. `call(arguments, argv)` returns its exit code; `fill` adds its options when they are needed.

    settings: of argparse, and `entry`, the HelpEntry of a plug-in's command.
    """
    parser: Parser = commands.add_parser(name, help=summary, **settings)
    parser.set_defaults(call=call)
    if fill:
        parser.later(fill)
    return parser


def split_rest(typed: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the arguments before a bare `--`, and those after it (None: there is none)."""
    words = list(typed)
    end = words.index("--") if "--" in words else None
    return (words, None) if end is None else (words[:end], words[end + 1 :])


def file_name(text: str) -> Path:
    """Return the path of a file or folder. Raises an argparse error for a name that is empty or has a zero byte."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid file name")
    return Path(text)


def positive(text: str) -> int:
    """Return an integer of at least 1. Raises an argparse error for other text."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """Return an integer of at least 0. Raises an argparse error for other text."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.strip().isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from {least} on")
    return int(text)


def amount(text: str) -> float:
    """Return a number above 0. Raises an argparse error for other text."""
    try:
        value = float(text) if text.isascii() else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return value


def duration(text: str) -> float:
    """Return seconds from "5", "500ms", "5s" or "2m". Raises an argparse error for other text."""
    try:
        return parse_duration(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def percent(text: str) -> float:
    """Return the fraction of "5" or "5%", above 0. Raises an argparse error for other text."""
    return amount(text.strip().removesuffix("%")) / 100


def rate(text: str) -> float:
    """Return the number of "12.5" or "12.5GB/s", above 0. Raises an argparse error for other text."""
    return amount(text.strip().removesuffix("GB/s"))


def hertz(text: str) -> float:
    """Return the rate of NVML readings, at most 5 per second, since they disturb the measurement; 0: none."""
    value = 0.0 if text.strip() == "0" else amount(text)
    if value > 5:
        raise argparse.ArgumentTypeError(f"'{text}' would disturb the measurement: use 1 to 5 (times a second), or 0 for never")
    return value


def factor(text: str) -> float:
    """Return a fabric's oversubscription, 1 to 1000. Raises an argparse error for other text."""
    value = amount(text)
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a valid factor: use 2 for a fabric with half the rate of the hosts (1 to 1000)")
    return value


def skew(text: str) -> float:
    """Return the busiest rank's share as a multiple of the average, at least 1."""
    value = amount(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is below 1 (even traffic): use how many times the average rank 0 receives")
    return value


def format_settings(*formats: str) -> dict[str, Any]:
    """Return the settings of --format, the format of rows on stdout. Commands that print rows have JSON lines."""
    text = f"{', '.join(formats)} or jsonl: one JSON object per line (default: table)"
    return {"metavar": "FORMAT", "choices": (*formats, "jsonl", "json"), "default": "table", "help": text}


def add_format(group: argparse._ActionsContainer, *formats: str) -> None:
    """Add the option for the format of rows on stdout."""
    group.add_argument("--format", **format_settings(*formats))


def streams(text: str) -> int:
    """Return the number of connections of the socket backend between two ranks."""
    value = positive(text)
    if value > MOST_STREAMS:
        raise argparse.ArgumentTypeError(f"'{text}' is too large: use 1 to {MOST_STREAMS}")
    return value


def pair_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of pairs in "1,2,4" or "1,all", each once; 0 for all."""
    return tuple(dict.fromkeys(0 if word == "all" else positive(word) for word in words(text)))


def words(text: str) -> list[str]:
    """Return names separated by commas."""
    names = [word.strip() for word in text.split(",") if word.strip()]
    if not names:
        raise argparse.ArgumentTypeError("an empty list: name at least one")
    return names


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return all options and arguments of a parser."""
    return parser.whole()._actions if isinstance(parser, Parser) else parser._actions


def from_environment(parser: argparse.ArgumentParser, typed: list[str], env: Mapping[str, str]) -> list[str]:
    """Return the options from COLLBENCH_* variables (empty is unset), then the typed ones, which take precedence."""
    added: list[str] = []
    own_words, _ = split_rest(typed)
    for action in actions_of(parser):
        long = next((option for option in action.option_strings if option.startswith("--")), None)
        value = env.get(environment_name(long)) if long and long not in _HELP else None
        if long is None or not value or not is_settable(action) or _is_typed(action, own_words):
            continue
        if action.nargs == 0:
            if value.lower() not in ("0", "false", "no"):
                added.append(long)
        else:
            added.append(f"{long}={value}")
    return [*added, *typed]


def not_from_elsewhere(action: argparse.Action) -> None:
    """Make an option that only the command line sets: neither a COLLBENCH_* variable nor the configuration file."""
    action.only_typed = True  # type: ignore[attr-defined]


def is_settable(action: argparse.Action) -> bool:
    """Return whether a COLLBENCH_* variable or the configuration file may set the option."""
    return not is_translated(action) and not getattr(action, "only_typed", False)


def options_typed(parser: argparse.ArgumentParser, typed: list[str]) -> set[str]:
    """Return the typed options, by the name of their value."""
    return {action.dest for action in actions_of(parser) if any(_is(word, option) for word in typed for option in action.option_strings)}


_HELP = ("--help", "--help-all")
# Options with the same meaning: each of them on the command line also replaces the variables of the others.
_INSTEAD = {
    "sizes": ("-b", "-e", "-f", "-i"), "in_place": ("--out-of-place",), "out_of_place": ("--in-place",),
    "skew": ("--traffic",), "traffic": ("--skew",),
}  # fmt: skip


def environment_name(long: str) -> str:
    """Return the variable that sets a long option: COLLBENCH_MAX_TIME for --max-time."""
    return "COLLBENCH_" + long.removeprefix("--").replace("-", "_").upper()


def _is_typed(action: argparse.Action, typed: list[str]) -> bool:
    options = (*action.option_strings, *_INSTEAD.get(action.dest, ()))
    return any(_is(word, option) for word in typed for option in options)


def _is(word: str, option: str) -> bool:
    """Return whether a typed argument is the option, alone or with its value: "--sizes", "--sizes=8", "-b", "-b8"."""
    return word == option or word.startswith(f"{option}=") or (not option.startswith("--") and word.startswith(option))
