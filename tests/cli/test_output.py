"""Output streams: data goes to stdout, notes to stderr, colour and a live line only to a terminal."""

import codecs
import fcntl
import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collbench.cli import main
from collbench.results.reader import read_run
from tests.cli.command import PROGRAM, ROOT, environment, run, running, until

pytestmark = [pytest.mark.contract, pytest.mark.long]

SHORT = ("allreduce", "--sizes", "8,1K", "--out", "run")
BACKENDS = ["simulated", pytest.param("mpi", marks=pytest.mark.skipif("not __import__('importlib.util').util.find_spec('mpi4py')"))]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def test_json_equals_the_stored_rows(tmp_path: Path) -> None:
    done = run(tmp_path, *SHORT, "--backend", "simulated", "--format", "json")
    assert (done.returncode, done.stdout) == (0, (tmp_path / "run" / "cells.jsonl").read_text())
    assert sorted(json.loads(line)["size_bytes"] for line in done.stdout.splitlines()) == [8, 1024]


def by_size(lines: str) -> dict[int, dict[str, Any]]:
    """Return rows of JSON lines by their size."""
    return {row["size_bytes"]: row for row in map(json.loads, lines.splitlines())}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_table_goes_to_stdout_and_notes_to_stderr(backend: str, tmp_path: Path) -> None:
    done = run(tmp_path, *SHORT, "-n", "20", "--backend", backend)  # enough for an interval: a report has no empty columns
    assert re.findall(r"^ *(\d+ \S+) .*(?:ok|noisy|unreliable)$", done.stdout, re.MULTILINE) == ["8 B", "1 KiB"]
    assert re.findall(r"^allreduce over (\w+)", done.stdout, re.MULTILINE) == [backend, backend], "the block and the answer"
    assert done.stderr.splitlines()[-1] == "run folder: run" and "run folder" not in done.stdout
    assert not CONTROL.search(done.stdout + done.stderr)
    table, _, answer = done.stdout.partition("\n\n")  # a report begins with the answer, and sets the columns closer
    again = run(tmp_path, "report", "run").stdout.split()
    head = ["run", "(2", "rows)", *answer.partition("\nnext: ")[0].split()]
    assert again[: len(head)] == head and again[len(head) :][: len(table.split())] == table.split()
    stored = by_size((tmp_path / "run" / "cells.jsonl").read_text())
    reported = by_size(run(tmp_path, "report", "run", "--format", "json").stdout)
    for size, row in stored.items():  # a report adds what follows from the whole run
        evidence = reported[size].pop("evidence")
        assert evidence | row.pop("evidence") == evidence
        assert reported[size] | row == reported[size]
    assert reported.keys() == stored.keys()


class Terminal:
    """A program with its own controlling terminal."""

    def __init__(self, folder: Path, *argv: str, **variables: str) -> None:
        self.seen, (self._ours, theirs) = "", pty.openpty()
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

        def take_the_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*PROGRAM, *argv], cwd=folder, env=environment({"COLUMNS": "240", **variables}), stdin=theirs, stdout=theirs, stderr=theirs,
            preexec_fn=take_the_terminal,  # noqa: PLW1509 (pytest has no threads)
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read(self, enough: Callable[[], bool] = lambda: False) -> str:
        """Read until the condition is true, or to the end."""
        while not enough():
            try:
                self.seen += self._decoder.decode(os.read(self._ours, 65536))
            except OSError:  # EIO: the last process has left the terminal
                break
        return self.seen

    def end(self) -> int:
        self.read()
        os.close(self._ours)
        return self.process.wait(30)


@pytest.mark.often("mpi")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_terminal_has_a_live_line_and_is_restored(backend: str, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, *SHORT, "--backend", backend)
    assert terminal.end() == 0
    assert re.search(r"2/2|1/2|0/2", terminal.seen) and "\x1b[1m" in terminal.seen
    assert terminal.seen.rindex("\x1b[?25h") > terminal.seen.rindex("\x1b[?25l")  # the cursor is back
    assert len(re.findall(r"(?:8 B|1 KiB) .*(?:ok|noisy|unreliable)\b", terminal.seen)) == 2
    assert len(re.findall(rf"allreduce over {backend}", terminal.seen)) == 2
    assert "Traceback" not in terminal.seen


@pytest.mark.timeout(60)
def test_a_terminal_shows_at_once_what_happens_before_the_first_case(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    terminal = Terminal(tmp_path, *SHORT, "--backend", "mpi")
    assert terminal.end() == 0
    texts = ("starting 2 ranks…", "opening mpi on 2 ranks…", "reading the hardware…", "0/2")
    started, opening, reading, first = (terminal.seen.index(text) for text in texts)
    assert started < terminal.seen.index("\x1b[2K", started) < opening < reading < first


@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", BACKENDS)
def test_control_c_ends_the_run_and_keeps_the_rows(backend: str, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "allreduce", "--sizes", "8-64M", "--backend", backend, "--out", "run", COLLBENCH_ITERATIONS="100")
    cases = tmp_path / "run" / "cells.jsonl"
    until(lambda: cases.exists() and cases.stat().st_size, "the first row")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "Traceback" not in terminal.seen and "defect" not in terminal.seen
    assert terminal.seen.rindex("\x1b[?25h") > terminal.seen.rindex("\x1b[?25l")
    found = read_run(tmp_path / "run")
    assert found.rows and not found.warnings
    until(lambda: not running(tmp_path), "the ranks' end", 10)


PEAK = ("peak", "allreduce", "--nodes", "4", "--gpus-per-node", "8", "--nic", "4x100Gb", "--nvlink", "150", "--measured", "42")
PRINTING = (
    (), ("--help",), ("help", "check"), ("--version",), PEAK, ("explain",), ("completion", "bash"), ("backends",),
    ("runs", str(ROOT / "reports")), ("report", str(ROOT / "reports" / "two-hosts")), ("emit", "slurm", "--nodes", "2", "--", "allreduce"),
    ("allreduce", "--sizes", "1×8"), ("…",), ("allreduce", "--…"), ("compare", "\udcff"), ("explain", "\udcff"),
)  # fmt: skip


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "gbk"])
def test_characters_that_the_encoding_lacks_are_replaced(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    helps = [(name, "--help-all") for name in sorted(main.all_parsers()[1])]
    for argv in (*PRINTING, *helps):
        streams = {name: io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict") for name in ("stdout", "stderr")}
        for name, stream in streams.items():
            monkeypatch.setattr(sys, name, stream)
        main.open_streams()
        code = main.guarded(list(argv))
        for stream in streams.values():
            stream.flush()
        printed = [stream.buffer.getvalue().decode(encoding) for stream in streams.values()]
        assert code in (0, 2) and "Traceback" not in printed[1] and any(printed), argv


def test_a_posix_locale_needs_no_utf8_mode(tmp_path: Path) -> None:
    posix = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    for argv, code in ((PEAK, 0), (("allreduce", "--help"), 0), (("runs", "…"), 2)):
        done = run(tmp_path, *argv, env=posix)
        assert done.returncode == code and done.stdout.isascii() and "?" in done.stdout + done.stderr, argv


@pytest.mark.often
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_closed_pipe_causes_no_message(backend: str, tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("wb") as err:
        program = [*PROGRAM, "allreduce", "--sizes", "8-1M", "--backend", backend, "--out", "run"]
        process = subprocess.Popen(program, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err)
    assert process.stdout and process.stdout.readline().startswith(b"cpu ")
    process.stdout.close()
    process.wait(30)
    said = (tmp_path / "stderr").read_text()
    assert not re.search("Traceback|Broken|SIGPIPE|killed|mpiexec|defect", said), said
    until(lambda: not running(tmp_path), "the ranks' end", 10)
    read_run(tmp_path / "run")
