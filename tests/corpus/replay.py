"""Run the corpus and compare what its command lines print and write with what is stored: `python -m tests.corpus.replay`.

    --record     store the present outputs as the right ones
    PATTERN …    only lines that contain one of these texts
    --show N     print the differences of at most N lines (20)

The stored outputs are one archive, outputs.tar.xz, with a text for each line.
"""

import argparse
import difflib
import hashlib
import io
import platform
import re
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from tests.cli.command import ROOT, run_here
from tests.corpus.inputs import lay_out
from tests.corpus.lines import Line, lines

OUTPUTS = Path(__file__).with_name("outputs.tar.xz")
# An embedded style, script or picture of more characters is compared by its hash.
_CODE = re.compile(r"(?<=<style>).{4096,}?(?=</style>)|(?<=<script>).{4096,}?(?=</script>)", re.DOTALL)
_PICTURE = re.compile(r"(?<=;base64,)[A-Za-z0-9+/=]{4096,}")
_VERSION = re.compile(r"\b0\.1\.0(?:\.dev\d*)?(?:\+g?[0-9a-f]+(?:\.d\d+)?)?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
# The last digits of a fit depend on the processor's LAPACK: numbers are compared to 11 digits.
_LONG_NUMBER = re.compile(r"\d+\.\d{8,}(?:e[+-]\d+)?")
_BEGAN = datetime.now(UTC)
_MOST_SHOWN = 5
_ENVIRONMENT = {"COLUMNS": "120", "LINES": "50", "NO_COLOR": "1", "TZ": "UTC", "SOURCE_DATE_EPOCH": "1795000000"}


class _DayOfTheCorpus(date):
    """A date whose today is the day of the stored outputs: verdicts of the gate name the day on which they were made."""

    @classmethod
    def today(cls) -> date:
        """Return that day."""
        return date(2026, 11, 29)


def outputs(chosen: Sequence[str] = ()) -> dict[str, str]:
    """Return by line what it prints and writes; `chosen`: only lines with one of these texts, and lines that write what others read."""
    with TemporaryDirectory(prefix="collbench-corpus-") as name:
        folder = Path(name)
        lay_out(folder)
        return {each.name: _output(folder, each) for each in lines(folder) if _is_chosen(each, chosen)}


def _is_chosen(command: Line, chosen: Sequence[str]) -> bool:
    makes_input = command.name.startswith(("baseline add", "import tools", "store add"))
    return not chosen or makes_input or any(text in f"{command.name} " for text in chosen)


def _output(folder: Path, command: Line) -> str:
    """Run a line; return its exit code, stdout, stderr and the files that it wrote, without what differs from start to start."""
    with patch("collbench.cli.judging.date", _DayOfTheCorpus):
        done = run_here(folder, *command.argv, env=_ENVIRONMENT)
    parts = [f"exit code {done.returncode}", "--- stdout", done.stdout, "--- stderr", done.stderr]
    for written in command.written:
        for path in _files(folder / written):
            parts += [f"--- {path.relative_to(folder)}", _content(path)]
        if (folder / written).is_file():
            (folder / written).unlink()
    return _settled("\n".join(parts), folder)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(inside for inside in path.rglob("*") if inside.is_file())
    return [path] if path.exists() else []


def _content(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}"


def _settled(text: str, folder: Path) -> str:
    """Return the text without this start's folder, host and version, and with long embedded parts as hashes."""
    text = text.replace(str(folder), "FOLDER").replace(str(ROOT), "CHECKOUT")
    text = re.sub(rf"\b{re.escape(platform.node())}\b", "HOST", text)
    text = _VERSION.sub("VERSION", text)
    text = _MOMENT.sub(lambda match: "NOW" if datetime.fromisoformat(match[0]) >= _BEGAN else match[0], text)
    return _PICTURE.sub(_hash, _CODE.sub(_hash, _rounded(text)))


def _rounded(text: str) -> str:
    return _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.11g}", text)


def _hash(embedded: re.Match[str]) -> str:
    return f"SHA-256 {hashlib.sha256(embedded[0].encode()).hexdigest()}"


def stored() -> dict[str, str]:
    """Return the stored outputs by line."""
    with tarfile.open(OUTPUTS) as archive:
        texts = [(member.pax_headers["line"], archive.extractfile(member)) for member in archive]
        return {name: _rounded(file.read().decode()) for name, file in texts if file}


def changed(*commands: str) -> str:
    """Return the differences of the first lines of these commands that print or write something else, or are not stored; "" without any."""
    right, present = (
        {name: text for name, text in texts.items() if name.split()[0] in commands}
        for texts in (stored(), outputs([f"{command} " for command in commands]))
    )
    names = [name for name in (right | present) if right.get(name) != present.get(name)]
    shown = [difference(name, right.get(name, ""), present.get(name, "")) for name in names[:_MOST_SHOWN]]
    return "\n\n".join([f"{len(names)} of {len(present)} lines differ:", *shown]) if names else ""


def store(texts: Mapping[str, str]) -> None:
    """Store these outputs as the right ones. The archive's bytes depend on nothing else."""
    with tarfile.open(OUTPUTS, "w:xz", format=tarfile.PAX_FORMAT, preset=6) as archive:
        for number, (name, text) in enumerate(texts.items()):
            data = text.encode()
            member = tarfile.TarInfo(f"{number:04}.txt")
            member.size = len(data)
            member.pax_headers = {"line": name}
            archive.addfile(member, io.BytesIO(data))


def difference(name: str, before: str, after: str) -> str:
    """Return the unified difference of a line's stored and present output."""
    texts = difflib.unified_diff(before.splitlines(), after.splitlines(), "stored", "now", lineterm="", n=2)
    return "\n".join([f"collbench {name}", *(text[:400] for text in texts)])


def main() -> int:
    """Replay or record; return 1 if an output differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--show", type=int, default=20, metavar="N")
    arguments = parser.parse_args()
    began = time.monotonic()
    present = outputs(arguments.patterns)
    seconds = time.monotonic() - began
    if arguments.record:
        store(({**stored(), **present}) if arguments.patterns else present)
        print(f"{len(present)} lines recorded in {seconds:.0f} s, {OUTPUTS.stat().st_size >> 10} KiB")
        return 0
    right = stored()
    changed = [name for name, text in present.items() if right.get(name) != text]
    for name in changed[: arguments.show]:
        print(difference(name, right.get(name, ""), present[name]), end="\n\n")
    print(f"{len(changed)} of {len(present)} lines differ, {seconds:.0f} s")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
