"""collbench completion SHELL: the shell's completion script, which shtab generates from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from collbench import __version__
from collbench.cli.help import HelpEntry
from collbench.cli.parser import Parser, actions_of, add_command
from collbench.errors import UsageError
from collbench.plugin import hooks_of

SHELLS = ("bash", "zsh", "fish")
_DESCRIPTION = """\
Print a script that completes commands, options and values such as operations,
backends and files. To use it in each session:
  bash, in ~/.bashrc:                   source <(collbench completion bash)
  zsh, in ~/.zshrc after compinit:      eval "$(collbench completion zsh)"
  fish, in ~/.config/fish/config.fish:  collbench completion fish | source
Or write it to a file: for zsh _collbench in $fpath, for fish collbench.fish in
~/.config/fish/completions."""
_HELP = HelpEntry(
    follows="plugins",
    examples=(
        ("completion bash", "print the script for bash"),
        ("completion zsh", "print the script for zsh"),
        ("completion fish", "print the script for fish"),
    ),
)

# A collbench command line follows the -- of COMMAND, and is completed as one.
_AFTER_DASHES = """
_collbench_or_inner() {
  local -i at
  for ((at = 2; at < COMP_CWORD; at++)); do
    if [[ ${COMP_WORDS[1]} == COMMAND && ${COMP_WORDS[at]} == -- ]]; then
      COMP_WORDS=("${COMP_WORDS[0]}" "${COMP_WORDS[@]:at+1}")
      ((COMP_CWORD -= at))
      break
    fi
  done
  _shtab_collbench "$@"
}
complete -o bashdefault -F _collbench_or_inner collbench
"""


def add_completion(commands: Any) -> None:
    """Add the command."""
    about = "print the script that completes command lines in bash, zsh or fish"
    formatter = argparse.RawDescriptionHelpFormatter
    add_command(
        commands, "completion", about, call_completion, _add_shell, entry=_HELP, description=_DESCRIPTION, formatter_class=formatter
    )


def _add_shell(parser: Parser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def call_completion(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the script; return 0. Raises UsageError for another shell."""
    if arguments.shell not in SHELLS:
        raise UsageError(f"'{arguments.shell}' is not a supported shell: use bash, zsh or fish, e.g. `collbench completion bash`")
    print(script(arguments.shell))
    return 0


def script(shell: str) -> str:
    """Return the script with which `shell` (one of SHELLS) completes collbench's command lines. Raises UsageError without shtab."""
    try:
        import shtab
    except ImportError as error:
        raise UsageError("shell completion needs shtab: pip install 'collbench[completion]'") from error

    from collbench.cli.main import all_parsers

    parser, commands = all_parsers()
    words = _words()
    for place, action in ((place, action) for name, each in commands.items() for place, action in _below(name, each)):
        if place in words:
            action.choices = sorted(words[place])
        elif action.type is Path or action.metavar == "SUITE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    written = _with_head(shtab.complete(parser, shell), shell)
    if shell == "bash":
        written += "".join(_AFTER_DASHES.replace("COMMAND", name) for name, each in commands.items() if each.ends_with_command)
    return written


def _with_head(written: str, shell: str) -> str:
    """Return a script with collbench's comment in place of shtab's, which recommends to copy it. zsh's first line stays."""
    lines = written.splitlines(keepends=True)
    first = lines[:1] if lines[0].startswith("#compdef") else []
    start = len(first)
    while not lines[start].strip():
        start += 1
    end = next(number for number in range(start, len(lines)) if not lines[number].startswith("#"))
    return "".join([*first, f"# Completion of collbench {__version__}, written by `collbench completion {shell}`.\n", *lines[end:]])


def _below(command: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Yield the options and arguments of a command and of the commands below it; arguments also under their command's name."""
    for action in actions_of(parser):
        yield (action.option_strings[-1] if action.option_strings else f"{command} {action.metavar}"), action
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from _below(f"{command} {name}", each)


def _words() -> dict[str, Iterable[str]]:
    """Return the possible values of options that later code checks, since plug-ins and files add to them."""
    from collbench.backends.registry import backend_names
    from collbench.operations.dtypes import DTYPES, REDOPS
    from collbench.operations.registry import commands
    from collbench.report.explain import pages

    words: dict[str, Iterable[str]] = {
        "--backend": backend_names(), "--dtype": DTYPES, "--redop": REDOPS, "explain WORD": [each.word for each in pages()],
        "peak OPERATION": commands(), "completion SHELL": SHELLS,
    }  # fmt: skip
    for hook in hooks_of("completed_words"):
        words |= hook()
    return words
