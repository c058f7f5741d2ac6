"""Pages of the command line, from its parsers: one for each command, the configuration file, and the environment variables."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from functools import cache

from collbench.cli.configuration import VARIABLE, settable_options
from collbench.cli.help import examples, is_expert, positional_words
from collbench.cli.help import grouped_commands as groups_of_help
from collbench.cli.main import all_parsers
from collbench.cli.other_tools import is_translated
from collbench.cli.parser import _HELP, Parser, actions_of, environment_name, is_settable
from collbench.cli.variables import VARIABLES
from collbench.operations.registry import commands as operation_commands
from site_pages.markdown import block, code, codes, escaped, page, paragraphs, sentence, table

_EVERYWHERE = frozenset({"help", "no_config"})  # options of each command


@cache
def _commands() -> dict[str, Parser]:
    _, found = all_parsers()
    return {name: parser.whole() for name, parser in found.items() if isinstance(parser, Parser)}


def grouped_commands() -> dict[str, list[str]]:
    """Return the commands by the titles of `collbench --help`, and those that measure one operation."""
    own = operation_commands()
    found = {title: [name for name in names if name in _commands()] for title, names in groups_of_help(_commands(), own).items()}
    return {**found, "Operations": sorted(own)}


def command_pages() -> dict[str, str]:
    """Return the page of each command, and the page that lists them, by path."""
    pages = {f"reference/cli/{name}.md": _command_page(name, parser) for name, parser in _commands().items()}
    return {"reference/cli/index.md": _index(), **pages}


def _index() -> str:
    parts = [
        "`collbench COMMAND [OPTIONS]` runs one command. `collbench COMMAND --help` prints its examples and common options, "
        "`--help-all` all of them; `--no-config` ignores the configuration file. Every long option is also "
        "[an environment variable](../environment-variables.md) and a key of [the configuration file](../configuration.md)."
    ]
    for title, names in grouped_commands().items():
        parts += [f"## {title}", table(["command", "what it does"], [(f"[`{name}`]({name}.md)", _summary(name)) for name in names])]
    return page("Commands", *parts)


def _summary(name: str) -> str:
    commands = next(action for action in all_parsers()[0]._actions if isinstance(action, argparse._SubParsersAction))
    lines = {each.dest: each.help or "" for each in commands._get_subactions()}
    return escaped(lines.get(name, "").replace("%%", "%"))


def _command_page(name: str, parser: Parser) -> str:
    typed = examples(parser, operation_commands())
    parts = [
        sentence(parser.description or _summary(name)),
        block(parser.usage or f"{parser.prog} [OPTIONS] {positional_words(parser)}".rstrip()),
        "## Examples\n\n" + block("\n".join(f"collbench {each}  # {what}" for each, what in typed), "sh") if typed else "",
    ]
    shown = _shown(parser)
    common = [each for each in shown if not is_expert(parser, each)]
    expert = [each for each in shown if is_expert(parser, each)]
    parts += [f"## {title}\n\n{_options(parser, actions)}" for title, actions in _grouped(parser, common)]
    if expert:
        parts += ["## Expert options", "`--help-all` prints these as well.", _options(parser, expert)]
    parts += list(_subcommands(parser))
    parts += [paragraphs(parser.epilog) if parser.epilog else "", "The exit codes are those of [all commands](../exit-codes.md)."]
    return page(f"collbench {name}", *parts)


def _shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments of a page, without those of all commands."""
    return [
        each for each in actions_of(parser) if each.help != argparse.SUPPRESS and each.dest not in _EVERYWHERE and not is_translated(each)
    ]


def _grouped(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> Iterator[tuple[str, list[argparse.Action]]]:
    for group in parser._action_groups:
        members = [each for each in group._group_actions if each in actions and not isinstance(each, argparse._SubParsersAction)]
        if members:
            title = (group.title or "options").removeprefix("positional ")
            yield title[0].upper() + title[1:], members


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for name, below in action.choices.items():
            yield f"## {parser.prog} {name}"
            yield sentence(below.description or "")
            yield block(f"{below.prog} [OPTIONS] {positional_words(below)}".rstrip())
            yield table(["argument or option", "meaning"], [(_spelling(below, each), _help(below, each)) for each in _shown(below)])


def _options(parser: argparse.ArgumentParser, actions: Iterable[argparse.Action]) -> str:
    rows = [
        (_spelling(parser, each), _help(parser, each), code(environment_name(long) if (long := _long(each)) else "")) for each in actions
    ]
    return table(["option" if any(each[0].startswith("`-") for each in rows) else "argument", "meaning", "environment variable"], rows)


def _spelling(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    value = formatter._format_args(action, str(action.metavar or action.dest)) if action.nargs != 0 else ""
    return ", ".join(code(f"{name} {value}".strip()) for name in action.option_strings) or code(value)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return escaped(parser._get_formatter()._expand_help(action)) if action.help else ""


def _long(action: argparse.Action) -> str:
    """Return the long option that an environment variable sets; "" for none."""
    long = next((option for option in action.option_strings if option.startswith("--")), "")
    return "" if long in _HELP or not is_settable(action) else long


def _variable(action: argparse.Action) -> str:
    long = _long(action)
    return environment_name(long) if long else ""


def configuration() -> str:
    """Return the page of the configuration file: each key, its meaning, and the commands that have it."""
    keys: dict[str, tuple[str, list[str]]] = {}
    for name, parser in _commands().items():
        for long, action in settable_options(parser).items():
            keys.setdefault(long.removeprefix("--"), (_help(parser, action), []))[1].append(name)
    own = sorted(operation_commands())
    rows = [(code(key), means, _having(names, own)) for key, (means, names) in sorted(keys.items())]
    return page(
        "Configuration file",
        f"`~/.config/collbench/config.toml`, or the file that `{VARIABLE}` names, sets options. A key is the name of a long option. "
        "Keys above all tables apply to each command with that option; a table such as `[allreduce]` applies to one command. "
        "The command line, the environment and a suite take precedence ([precedence and units](options.md)).",
        table(["key", "meaning", "commands"], rows),
    )


def _having(names: list[str], operations: list[str]) -> str:
    """Return the commands with a key; those of all operations are summarized."""
    if set(operations) <= set(names):
        others = [name for name in names if name not in operations]
        return "all operations" + (f", {codes(others)}" if others else "")
    return codes(names)


def environment_variables() -> str:
    """Return the page of environment variables: the rule for options, and the variables that are no options."""
    longs = sorted({long for parser in _commands().values() for each in actions_of(parser) if (long := _long(each))})
    return page(
        "Environment variables",
        "Every long option has a variable: `COLLBENCH_MAX_TIME=2` is `--max-time 2`. For an option without a value, `0`, `false` and `no` "
        "switch it off, any other value switches it on. An empty variable counts as unset. The command line takes precedence.",
        "## Variables that are not options",
        table(["variable", "meaning", "set by"], [(code(each.name), escaped(each.means), each.set_by) for each in VARIABLES]),
        "## Variables of options",
        table(["variable", "option"], [(code(environment_name(long)), code(long)) for long in longs]),
    )
