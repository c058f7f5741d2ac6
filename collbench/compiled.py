"""What collbench compiles on this machine, in the user's cache: GPU kernels, and code over a library's headers.

Such a file contains machine code. It is used only if it belongs to the user and matches the hash in its name. Ranks that start together
may compile it several times; each file appears as a whole or not at all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG

from collbench.errors import UsageError

_WRITABLE_BY_OTHERS = 0o022


def compiled(key: str, suffix: str, make: Callable[[], bytes]) -> Path:
    """Return the file for `key`, a name that has all inputs: a stored one, else the result of `make`, stored for the next start.

    Raises UsageError if no folder is writable, and what `make` raises.
    """
    return stored(key, suffix) or _keep(make(), key, suffix)


def stored(key: str, suffix: str) -> Path | None:
    """Return a file of this user for `key` with the content that its name states, or None. Other files are skipped."""
    for folder in _folders(os.environ):
        try:
            found = next((path for path in sorted(folder.glob(f"{key}-*{suffix}")) if _sound(path, key, suffix)), None)
        except OSError:
            continue
        if found:
            return found
    return None


def key_of(*parts: bytes) -> str:
    """Return 32 hexadecimal digits that differ if any of the parts does."""
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()[:32]


def _folders(env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders: the user's cache, then a folder of the user among temporary files."""
    if folder := env.get("COLLBENCH_CACHE"):
        yield Path(folder)
    elif base := env.get("XDG_CACHE_HOME"):
        yield Path(base) / "collbench"
    elif (home := Path("~").expanduser()).is_absolute():
        yield home / ".cache/collbench"
    yield Path(tempfile.gettempdir()) / f"collbench-cache-{os.getuid()}"


def _sound(path: Path, key: str, suffix: str) -> bool:
    status = path.lstat()
    is_own = S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & _WRITABLE_BY_OTHERS
    return is_own and path.name == _name(key, path.read_bytes(), suffix)


def _name(key: str, content: bytes, suffix: str) -> str:
    return f"{key}-{sha256(content).hexdigest()[:32]}{suffix}"


def _keep(content: bytes, key: str, suffix: str) -> Path:
    """Write the file into the first writable folder."""
    refusals = []
    for folder in _folders(os.environ):
        try:
            return _written(folder, _name(key, content, suffix), content)
        except OSError as error:
            refusals.append(f"{folder}: {error.strerror or error}")
    raise UsageError(f"cannot store the compiled code ({'; '.join(refusals)}): set COLLBENCH_CACHE to a writable folder")


def _written(folder: Path, name: str, content: bytes) -> Path:
    """Write a file atomically: it appears under its name when it is complete."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=folder, prefix="part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return Path(part).replace(folder / name)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
