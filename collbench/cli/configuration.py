"""The user's configuration file: values of options that neither the command line, a COLLBENCH_* variable nor a suite sets.

A key is the name of a long option. Keys above all tables apply to each command with that option; a table [COMMAND] applies to one command.
"""

from __future__ import annotations

import argparse
import errno
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from collbench.cli.parser import actions_of, environment_name, from_environment, is_settable, split_rest
from collbench.errors import UsageError
from collbench.untrusted import parse_toml, read_file

VARIABLE = "COLLBENCH_CONFIG"
_LARGEST_BYTES = 1 << 20
_NEVER = frozenset({"--help", "--help-all", "--no-config", "--version", "--resume"})
_TABLE = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*=""")

Parsers = Mapping[str, argparse.ArgumentParser]


class Configuration(msgspec.Struct, frozen=True):
    """The content of the file.

    file    its path; text: its text, for line numbers
    common  the values for all commands; tables: those for one command, by its name
    """

    file: Path
    text: str
    common: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]

    def place(self, key: str, table: str | None = None) -> str:
        """Return the file, line and key for a message: "config.toml, line 3, max-time"."""
        current: str | None = None
        for number, line in enumerate(self.text.splitlines(), 1):
            header = _TABLE.match(line)
            entry = _KEY.match(line)
            if header:
                current = header[1]
            elif current == table and entry and entry[1] == key:
                return f"{self.file}, line {number}, {key}"
        return f"{self.file}, {key}"


def read_configuration(typed: Sequence[str], env: Mapping[str, str]) -> Configuration | None:
    """Return the user's configuration; None without a file, or with --no-config. Raises UsageError for a file that is not valid."""
    if "--no-config" in split_rest(typed)[0]:
        return None
    named = env.get(VARIABLE)
    home = env.get("XDG_CONFIG_HOME") or (f"{env['HOME']}/.config" if env.get("HOME") else None)
    if not named and home is None:
        return None
    file = Path(named or f"{home}/collbench/config.toml")
    try:
        data = read_file(file, _LARGEST_BYTES)
    except OSError as error:
        if not named and error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise UsageError(f"{file}: cannot be read ({error.strerror or error}): fix the file, or use --no-config") from error
    try:
        text = data.decode("utf-8-sig")
        document = parse_toml(text)
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}, line {data[: error.start].count(10) + 1}: not valid UTF-8") from error
    except ValueError as error:
        raise UsageError(f"{file}: invalid TOML: {error}") from error
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    return Configuration(file, text, {key: value for key, value in document.items() if key not in tables}, tables)


def check_keys(configuration: Configuration, command: str, parsers: Parsers) -> None:
    """Raise UsageError for a table that is not a command, a key that no command has, or a key that does not fit the command's table."""
    for table in configuration.tables:
        if table not in parsers:
            raise UsageError(f"{configuration.file}: [{table}] is not a command{_alike(table, parsers)}")
    settable = settable_options(parsers[command])
    for key in configuration.tables.get(command, {}):
        if _long(key) not in settable:
            raise UsageError(f"{configuration.place(key, command)}: {command} has no option {_long(key)}{_alike(_long(key), settable)}")
    unknown = [key for key in configuration.common if _long(key) not in settable]
    all_options = {name for parser in parsers.values() for name in settable_options(parser)} if unknown else set()
    for key in unknown:
        if _long(key) not in all_options:
            raise UsageError(f"{configuration.place(key)}: unknown option{_alike(_long(key), all_options)}")


def parse_configured(
    configuration: Configuration | None, command: str, parser: argparse.ArgumentParser, typed: Sequence[str],
    parse: Callable[[list[str]], argparse.Namespace],
) -> argparse.Namespace:  # fmt: skip
    """Return what `parse` returns for the arguments with the file's values; its `configuration` has the facts for run.json.

    `typed` has the options that take precedence: those of the command line, of variables and of the suite. Raises UsageError with the place
    in the file for a value that is not valid. If only a combination is not valid, it names the file.
    """
    if configuration is None:
        return parse(list(typed))
    texts = _texts(configuration, command, parser)
    words = from_environment(parser, list(typed), {environment_name(long): text for long, text in texts.items()})
    used = [word.partition("=")[0] for word in words[: len(words) - len(typed)]]
    try:
        arguments = parse(words)
    except UsageError as error:
        parse(list(typed))  # raises if the file is not the reason
        raise UsageError(f"{configuration.file}: {error}") from error
    values = {long.removeprefix("--"): texts[long] for long in used}
    arguments.configuration = {"file": str(configuration.file), "values": values} if values else None
    return arguments


def _long(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _texts(configuration: Configuration, command: str, parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the command's values as text, by long option."""
    actions = settable_options(parser)
    sources = ((None, configuration.common), (command, configuration.tables.get(command, {})))
    values = {_long(key): (value, configuration.place(key, table)) for table, entries in sources for key, value in entries.items()}
    return {long: _text(actions[long], value, place, parser) for long, (value, place) in values.items() if long in actions}


def settable_options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options of a command that the configuration file and variables can set, by their long name, such as "--sizes"."""
    options = {long: action for action in actions_of(parser) for long in action.option_strings if long.startswith("--")}
    return {long: action for long, action in options.items() if long not in _NEVER and is_settable(action)}


def _alike(word: str, words: Iterable[str]) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(word, list(words), n=1)
    return f": did you mean {matches[0].removeprefix('--')}?" if matches else ""


def _text(action: argparse.Action, value: Any, place: str, parser: argparse.ArgumentParser) -> str:
    """Return a value as a variable would have it. Raises UsageError if the option does not accept it."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{place}: not a valid value: use true or false")
        return str(int(value))
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in values):
        raise UsageError(f"{place}: not a valid value: use text, a number or a list of these")
    text = ",".join(map(str, values))
    if not text:
        raise UsageError(f"{place}: the value is empty: remove the key")
    try:
        parser._check_value(action, parser._get_value(action, text))
        _check_name(action.dest, text)
    except (argparse.ArgumentError, UsageError) as error:
        raise UsageError(f"{place}: {getattr(error, 'message', error)}") from error
    return text


def _check_name(option: str, text: str) -> None:
    """Raise UsageError for a value that the request would reject later, without the file's name."""
    from collbench.backends.registry import check_name
    from collbench.operations.dtypes import dtype_named, redop_named
    from collbench.units import parse_size, parse_sizes

    check_word: Mapping[str, Callable[[str], object]] = {"backend": check_name, "dtype": dtype_named, "redop": redop_named}
    check_text: Mapping[str, Callable[[str], object]] = {"sizes": parse_sizes, "size": parse_size, "latency_size": parse_size}
    if option in check_text:
        check_text[option](text)
    for word in text.split(",") if option in check_word else ():
        check_word[option](word.strip())
