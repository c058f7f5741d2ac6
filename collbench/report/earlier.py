"""What an earlier gate left at the files asked for: gone before this one judges.

One that fails writes nothing, and who reads the file later (Jenkins, a collector) would take the earlier night's verdict for this one's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from collbench.errors import UsageError
from collbench.report.verdict_outputs import Files, is_summary
from collbench.untrusted import open_file

_BEGINNING = 4096  # bytes, in which each output says whose it is
_OURS: Mapping[str, Callable[[str], bool]] = {
    "out": lambda text: text.startswith("{") and '"exit_code":' in text and '"result":' in text,
    "junit": lambda text: '<testsuite name="collbench gate"' in text,
    "markdown": lambda text: text.startswith("## ") and "collbench gate: " in text.partition("\n")[0],
    "openmetrics": lambda text: text.startswith("# HELP collbench_gate_"),
    "html": lambda text: "<title>collbench" in text,
}


def remove_earlier(files: Files, read: Path | None = None) -> None:
    """Removes them; `read` is a verdict that is shown once more, and stays until it is replaced.

    What is empty, no regular file (a pipe) or the summary of GitHub's step stays, too. Raises UsageError, before anything is removed,
    for a file that no gate wrote.
    """
    asked = {option: path for option, path in vars(files).items() if path is not None and not is_summary(path)}
    found = [(option, path.resolve()) for option, path in asked.items() if _is_earlier(option, path)]
    for option, target in found:
        if read is not None and target == read.resolve():
            continue
        try:
            target.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(
                f"--{option} {asked[option]} is of an earlier gate and cannot be removed ({error.strerror}): remove it"
            ) from error


def _is_earlier(option: str, path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with open_file(path) as file:
            begins = file.read(_BEGINNING).decode(errors="replace")
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        raise UsageError(
            f"--{option} {path} cannot be written ({getattr(error, 'strerror', None) or error}): choose another file"
        ) from error
    if begins and not _OURS[option](begins):
        raise UsageError(f"--{option} {path} was not written by `collbench gate --{option}`, and is not replaced: name another file")
    return bool(begins)
