"""The command line of a resumed run: `collbench --resume RUN` takes the command and its options from run.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from collbench.errors import UsageError
from collbench.results.store import read_object
from collbench.untrusted import list_of

_RESUME = "--resume"
# Options that a resumed run may have beside it, with the number of their values.
_BESIDE: Mapping[str, int] = {"--format": 1, "--color": 1, "--columns": 1, "--quiet": 0, "--verbose": 0, "-v": 0, "--dry-run": 0}
# Options of the stored command that are not repeated: they name folders and files of the first start.
_LEFT_OUT: Mapping[str, int] = {
    _RESUME: 1, "--resume-if-exists": 0, "--out": 1, "--launches": 1, "--trace": 1, "--html": 1, "--format": 1, "--dry-run": 0,
}  # fmt: skip


def with_stored_options(argv: Sequence[str], resumable: frozenset[str]) -> list[str]:
    """Return the command line; if it has --resume and no option of the measurement, with the command and the options of run.json.

    resumable: the commands that have --resume, since run.json may be of another source.
    Raises UsageError for a run.json that cannot be read, and for a run of another command.
    """
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith(f"{_RESUME}=") else [word])]
    if _RESUME not in words[:-1] or not (words[0] == _RESUME or words[0] in resumable):
        return list(argv)
    command = [] if words[0] == _RESUME else words[:1]
    folder = words[words.index(_RESUME) + 1]
    if not folder:
        raise UsageError(f"{_RESUME} '': not a valid name of a folder: use the folder of a run")
    kept = _without(words[len(command) :], {_RESUME: 1})
    if command and _without(kept, _BESIDE):
        return list(argv)
    stored = _stored_command(Path(folder))
    if not stored or stored[0] not in resumable:
        raise UsageError(f"{folder} cannot be resumed: its run.json has no command that measures; start a new run, without --resume")
    if command and stored[0] != command[0]:
        raise UsageError(f"{folder} is a run of `collbench {stored[0]}`: use `collbench {_RESUME} {folder}`")
    options = _without(stored[1:], _LEFT_OUT)
    end = options.index("--") if "--" in options else len(options)
    return [stored[0], *options[:end], *kept, _RESUME, folder, *options[end:]]


def _stored_command(folder: Path) -> list[str]:
    """Return the words after "collbench" in run.json; [] if it has none. Raises UsageError if it cannot be read."""
    try:
        info = read_object(folder / "run.json")
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{folder} cannot be resumed: its run.json cannot be read ({why}); start a new run") from error
    return list_of(info.get("command"), str)[1:]


def _without(words: Sequence[str], options: Mapping[str, int]) -> list[str]:
    """Return the words without these options and their values."""
    kept = []
    skipped = 0
    for word in words:
        name, equals, _ = word.partition("=")
        if skipped:
            skipped -= 1
        elif name in options:
            skipped = 0 if equals else options[name]
        else:
            kept.append(word)
    return kept
