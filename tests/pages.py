"""The pages for users, README.md and docs/**/*.md: their blocks of commands, their generated outputs, and their links.

A ```sh block is what a user types in one folder, a command per line; two blanks and `#` begin a comment. A comment that begins with
`exit code` has the exit codes that the command may end with: `# exit code 1: …`, `# exit code 0 or 3: …`. Without it, only 0 is allowed.
`<!-- output of: COMMAND -->` comes before a ```text block with the output of COMMAND, a line for bash in the project's folder.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from textwrap import dedent, indent

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(
    r"^(?P<head>(?P<indent> *)<!-- output of: (?P<command>[^\n]+?) -->\n\s*```(?:text)?\n)(?P<text>.*?)(?P<end>^(?P=indent)```$)",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|<(?:img|a)\s[^>]*?(?:src|href)=\"([^\"]+)\"")
_ENDS = re.compile(r"#\s*exit codes? (\d+(?:(?:, | or )\d+)*)")


@dataclass(frozen=True)
class Command:
    """A command of a ```sh block.

    line     what the user types, without the comment
    allowed  the exit codes that the comment allows; None if it names none
    """

    line: str
    allowed: tuple[int, ...] | None = None

    @property
    def words(self) -> list[str]:
        """Return the program and its arguments, without variables before them."""
        return list(dropwhile(re.compile(r"[A-Z_]+=").match, shlex.split(self.line)))


@dataclass(frozen=True)
class Output:
    """A generated block: `text` is what the page shows as the output of `command`, a line of bash."""

    page: Path
    command: str
    text: str


def name_of(page: Path) -> str:
    """Return the page's path in the project."""
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    """Return the page's text."""
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[tuple[Command, ...]]:
    """Yield the commands of each ```sh block of the page, also of blocks inside lists and notes."""
    for fence in _FENCE.finditer(text_of(page)):
        if fence["language"] == "sh":
            found = tuple(_commands(dedent(fence["text"]).replace("\\\n", " ")))
            if found:
                yield found


def _commands(text: str) -> Iterator[Command]:
    for line in text.splitlines():
        typed, mark, comment = line.partition("  #") if not line.startswith("#") else ("", "", "")
        if typed.strip():
            ends = _ENDS.match(f"#{comment}") if mark else None
            yield Command(typed.strip(), tuple(map(int, re.findall(r"\d+", ends[1]))) if ends else None)


def outputs(page: Path) -> Iterator[Output]:
    """Yield the generated blocks of the page."""
    for found in _OUTPUT.finditer(text_of(page)):
        yield Output(page, found["command"], dedent(found["text"]).rstrip("\n"))


def print_output(command: str) -> str:
    """Run a line of bash in the project's folder, without colours, and return its output without blanks at the ends of lines."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COLLBENCH_", "COLUMNS"))}
    env = {**kept, "PATH": f"{BIN}:{os.environ['PATH']}", "NO_COLOR": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip(), f"{command} prints nothing: {done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def write_output(page: Path, command: str, text: str) -> None:
    """Replace the page's generated block of the command."""

    def renewed(found: re.Match[str]) -> str:
        if found["command"] != command:
            return found[0]
        return found["head"] + indent(text, found["indent"]) + "\n" + found["end"]

    page.write_text(_OUTPUT.sub(renewed, text_of(page)), encoding="utf-8")


def links(page: Path) -> Iterator[str]:
    """Yield the targets of the page's links and pictures that are outside code, without those of other sites."""
    text = re.sub(r"(?<!`)`[^`\n]+`(?!`)", "", _FENCE.sub("", text_of(page)))
    for one, other in _LINK.findall(text):
        target = one or other
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+?)(?: #*)?$", _FENCE.sub("", text_of(page)), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}
