"""Where an emitted file goes: onto the disk, or to the command that takes it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from collbench.emit.job import Kind
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
    """What the launcher's own command says when it reads the file from stdin. Raises UsageError where it is missing, or refuses it."""
    if not kind.submit:
        raise UsageError(f"emit {kind.name} has nothing to submit to: {kind.remedy}")
    program = shutil.which(kind.submit[0], path=env.get("PATH"))
    if not program:
        raise UsageError(f"--submit needs {kind.submit[0]}, which is not found: {kind.remedy}")
    try:
        line = [program, *kind.submit[1:]]
        done = subprocess.run(line, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=dict(env))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{kind.submit[0]} did not answer ({error}): try again, or write the file with --write") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise UsageError(f"{kind.submit[0]} did not take the job: {said}")
    return done.stdout.strip()
