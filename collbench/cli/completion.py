"""collbench completion SHELL: the script by which a shell completes command lines; shtab writes it from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from collbench.cli.parser import actions_of
from collbench.errors import UsageError

SHELLS = ("bash", "zsh")
_DESCRIPTION = """\
prints a script that completes commands, options, and values such as operations, backends and files:
  bash:  source <(collbench completion bash)       in ~/.bashrc; or write it to a file once, and source that
  zsh:   eval "$(collbench completion zsh)"        in ~/.zshrc, after compinit; or write it to a file _collbench in $fpath"""

# What follows emit's -- is a command line of ours: it is completed as one.
_AFTER_DASHES = """
_collbench_or_inner() {
  local -i at
  for ((at = 2; at < COMP_CWORD; at++)); do
    if [[ ${COMP_WORDS[1]} == emit && ${COMP_WORDS[at]} == -- ]]; then
      COMP_WORDS=("${COMP_WORDS[0]}" "${COMP_WORDS[@]:at+1}")
      ((COMP_CWORD -= at))
      break
    fi
  done
  _shtab_collbench "$@"
}
complete -o bashdefault -F _collbench_or_inner collbench
"""


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser = commands.add_parser("completion", help="print the script that completes command lines in bash or zsh",
                                 description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("shell", metavar="SHELL", help="bash or zsh")
    parser.set_defaults(call=call)
    return {"completion": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the script; 0. Raises UsageError for another shell."""
    if arguments.shell not in SHELLS:
        raise UsageError(
            f"'{arguments.shell}' is no shell that collbench completes in: write bash or zsh, like `collbench completion bash`"
        )
    print(script(arguments.shell))
    return 0


def script(shell: str) -> str:
    """What `shell` (one of SHELLS) has to read to complete collbench's command lines."""
    import shtab

    from collbench.cli.main import _parsers

    parser, commands = _parsers()
    words = _words()
    for place, action in ((place, action) for name, each in commands.items() for place, action in _below(name, each)):
        if place in words:
            action.choices = sorted(words[place])
        elif action.type is Path or action.metavar == "SUITE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    written: str = shtab.complete(parser, shell)
    return written + _AFTER_DASHES if shell == "bash" else written


def _below(command: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """The options, by themselves, and the arguments, by their command's name too, of a command and of those below it."""
    for action in actions_of(parser):
        yield (action.option_strings[-1] if action.option_strings else f"{command} {action.metavar}"), action
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from _below(f"{command} {name}", each)


def _words() -> dict[str, Iterable[str]]:
    """The names that may stand there, where the parsers leave it to what reads them: plug-ins and files add to these."""
    from collbench.backends.registry import backend_names
    from collbench.deploy.kinds import kinds
    from collbench.machine.doctor.pages import pages
    from collbench.operations.dtypes import DTYPES, REDOPS
    from collbench.operations.registry import commands
    from collbench.workloads.registry import regimes

    return {
        "--backend": backend_names(), "--dtype": DTYPES, "--redop": REDOPS, "emit KIND": kinds(), "explain CODE": pages(),
        "peak OPERATION": commands(), "workload NAME": regimes(), "completion SHELL": SHELLS,
    }  # fmt: skip
