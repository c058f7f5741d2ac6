"""What a process is doing, for the sentence about a hang: its native stack, taken by a tool where there is one; none is installed."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

_DEADLINE_S = 2.5
_MOST_TEXT = 20_000
_MOST_FRAMES = 4
_TOOLS = {
    "py-spy": ("dump", "--native", "--nonblocking", "--pid"),
    "gdb": ("-batch", "-nx", "-iex", "set auto-load off", "-ex", "thread apply all bt", "-p"),
}
_OF_MAIN = re.compile(r'^Thread (?:1 \(|.*"MainThread"$)')
_FRAME = re.compile(r"^\s*(?:#\d+\s+(?:0x[0-9a-f]+ in )?)?([\w.@:~<>]+) ?\(")
_PYTHON_FRAME = re.compile(r'^  File ".*", line \d+, in (\S+)$', re.MULTILINE)
_INTERPRETER = re.compile(r"^(_?Py[A-Z_]|_PyEval|cfunction_|method_|ffi_|_call_|slot_tp_|builtin_|run_mod|pymain|<module>|Thread)")


def stack(pid: int) -> str:
    """The stack as py-spy or gdb tells it; where neither can, why. Never raises, and takes 2.5 seconds at most."""
    tool = tool_here()
    return _asked([tool, *_TOOLS[Path(tool).name], str(pid)]) if tool else "neither py-spy nor gdb is there to look into it"


def tool_here() -> str | None:
    """The program that can look into another process, or None."""
    return next((path for path in map(shutil.which, _TOOLS) if path), None)


def own_stack() -> str:
    """The Python stack of this process's own main thread, the innermost call last. For any other thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame))[-_MOST_TEXT:] if frame else "its main thread has ended"


def innermost(text: str) -> str:
    """What a stack says in a few words: the main thread's innermost calls, "poll < MPID_Progress_wait < PMPI_Allreduce"; "" unknown."""
    lines = text.splitlines()
    begin = next((at for at, line in enumerate(lines) if _OF_MAIN.match(line)), None)
    if begin is None:
        return " < ".join(_PYTHON_FRAME.findall(text)[: -_MOST_FRAMES - 1 : -1])
    section = itertools.takewhile(str.strip, lines[begin + 1 :])
    names = (match[1] for line in section if (match := _FRAME.match(line)))
    return " < ".join(itertools.islice(itertools.takewhile(lambda name: not _INTERPRETER.match(name), names), _MOST_FRAMES))


def _asked(line: Sequence[str]) -> str:
    tool = Path(line[0]).name
    env = {**os.environ, "DEBUGINFOD_URLS": ""}  # or gdb would ask servers for what it does not know
    try:
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_S, check=False, env=env)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace")[:_MOST_TEXT] or f"{tool} did not look into it within {_DEADLINE_S:g} s"
    except OSError as error:
        return f"{tool} could not look into it ({type(error).__name__})"
    return done.stdout.decode(errors="replace")[:_MOST_TEXT] or f"{tool} could not look into it"
