"""Where an emitted file goes: onto the disk, or to the command that takes it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from collbench.deploy.job import Kind
from collbench.errors import UsageError

_TIMEOUT_S = 60.0


def write(file: Path, text: str) -> None:
    """A new file that may be run. Raises UsageError where there is one already, or it cannot be written."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
        file.chmod(0o755 if text.startswith("#!") else 0o644)
    except FileExistsError as error:
        raise UsageError(f"--write {file} is there already: choose another name, so that nothing is lost") from error
    except OSError as error:
        raise UsageError(f"--write {file} cannot be written ({error.strerror}): choose another folder") from error


def submit(kind: Kind, text: str, env: Mapping[str, str]) -> str:
    """What the launcher's own command says when it reads the file from stdin; its warnings go to stderr.

    Raises UsageError where it is missing, or refuses the file.
    """
    if not kind.submit:
        raise UsageError(f"emit {kind.name} has nothing to submit to: {kind.remedy}")
    program = shutil.which(kind.submit[0], path=env.get("PATH"))
    if not program:
        raise UsageError(f"--submit needs {kind.submit[0]}, which is not found: {kind.remedy}")
    try:
        line = [program, *kind.submit[1:]]
        done = subprocess.run(line, input=text.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False, env=dict(env))
    except OSError as error:
        raise UsageError(f"{program} cannot be started ({error.strerror}): {kind.remedy}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{kind.submit[0]} did not answer within {_TIMEOUT_S:g} s: see whether it has the job nevertheless") from error
    out, err = (stream.decode(errors="replace").strip() for stream in (done.stdout, done.stderr))
    if done.returncode:
        raise UsageError(f"{kind.submit[0]} did not take the job: {' '.join((err or out).split()) or f'exit code {done.returncode}'}")
    if err:
        print(err, file=sys.stderr)
    return out
