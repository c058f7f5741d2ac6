"""What to say of a word that no command knows, or not this one: what it may have been, or whose it is."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from collbench.cli.options import NOTHING_MOVED
from collbench.cli.parser import actions_of
from collbench.errors import UsageError
from collbench.operations.registry import commands as operation_commands

_MOST_NAMED = 6
Parsers = Mapping[str, argparse.ArgumentParser]


def check_command(argv: Sequence[str], parsers: Parsers) -> None:
    """Raises UsageError where the first word is no command; `parsers` by command."""
    first = argv[0] if argv else "--help"
    if first in parsers or first in ("-h", "--help", "--version"):
        return
    if first.startswith("-"):
        raise UsageError(f"'{first}' stands where the command belongs: write that first, like `collbench allreduce {first}` …")
    from collbench.operations.suite import nearest  # here: no start that is right needs it

    raise UsageError(f"command '{first}' is unknown: {nearest(first, parsers)} (see `collbench --help`)")


def check_words(command: str, left: Sequence[str], parsers: Parsers) -> None:
    """Raises UsageError where the command's parser left words over."""
    if not left:
        return
    option = next((_option(word) for word in left if word.startswith("-")), None)
    what = f"{command} has no option {option}{_remedy(option, command, parsers)}" if option else f"'{left[0]}' is one word too many"
    raise UsageError(f"{what} (see `collbench {command} --help`)")


def _option(word: str) -> str:
    """The option of "--sizes=8" or "-b8"."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def _remedy(option: str, command: str, parsers: Parsers) -> str:
    """What is alike, why it cannot have it, or who has it; nothing where nobody does."""
    alike = _alike(option, _options(parsers[command]))
    if alike:
        return f": did you mean {alike}?"
    if _moves_nothing(command) and option in _of_what_moves(parsers):
        return ": it moves nothing, so there are no sizes, types and buffers to choose"
    others = sorted(name for name, parser in parsers.items() if option in _options(parser))
    named = [*others[:_MOST_NAMED], *(["others"] if others[_MOST_NAMED:] else [])]
    return f": {' and '.join(filter(None, (', '.join(named[:-1]), named[-1])))} {'have' if others[1:] else 'has'} it" if others else ""


def _alike(option: str, known: Sequence[str]) -> str | None:
    """The long option that begins with this one, or is most like it; the dashes, which all have, say nothing."""
    if not option.startswith("--"):
        return None
    word, words = option[2:], [one[2:] for one in known if one.startswith("--")]
    found = [one for one in words if word and one.startswith(word)] or get_close_matches(word, words, n=1)
    return f"--{found[0]}" if found else None


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in actions_of(parser) for option in action.option_strings]


def _moves_nothing(command: str) -> bool:
    operations = operation_commands().get(command, [])
    return bool(operations) and all(operation.meets for operation in operations)


def _of_what_moves(parsers: Parsers) -> set[str]:
    """The options that what moves nothing has not."""
    actions = (action for name in operation_commands() for action in actions_of(parsers[name]))
    return {option for action in actions if action.dest in NOTHING_MOVED for option in action.option_strings}
