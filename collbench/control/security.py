"""The secret of a launch: who does not have it cannot join, and cannot read or forge a message.

It is never sent, printed or stored. Where it comes from, in this order:
    the launch itself         a local start's private folder, or a broadcast over MPI: then the token is a secret already
    COLLBENCH_SECRET          the launcher's environment, at least 16 characters
    COLLBENCH_SECRET_FILE     a file that its owner alone can read
    ~/.config/collbench/secret   made at the first start, for this user's launches; home directories are usually shared by the nodes
    a private folder in /tmp  where that cannot be, for launches on one host
From it and the launch's token (job and step) each launch gets keys of its own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo

_FEWEST, _MOST_BYTES = 16, 4096
_REMEDY = "export COLLBENCH_SECRET with the same 16 characters or more for all ranks (openssl rand -hex 16)"


@dataclass(frozen=True, repr=False)
class Secret:
    """32 bytes that the ranks of one launch share; `source` says where they come from, for sentences."""

    key: bytes
    source: str

    def derived(self, what: str) -> bytes:
        """32 bytes for one purpose, from which the secret cannot be told."""
        return hmac.digest(self.key, what.encode(), "sha256")


def secret_of(info: LaunchInfo, env: Mapping[str, str]) -> Secret:
    """The secret of a launch. Raises UsageError where it cannot be had, or others could read it."""
    base, source = _base(info, env)
    return Secret(hmac.digest(hashlib.sha256(base).digest(), f"{info.token}:{info.ranks}".encode(), "sha256"), source)


def _base(info: LaunchInfo, env: Mapping[str, str]) -> tuple[bytes, str]:
    if info.secret:
        return (info.token.encode(), "this launch") if info.secret == "token" else (_read(Path(info.secret)), "this launch")
    if env.get("COLLBENCH_SECRET"):
        return _long_enough(env["COLLBENCH_SECRET"].encode(), "COLLBENCH_SECRET"), "COLLBENCH_SECRET"
    if env.get("COLLBENCH_SECRET_FILE"):
        path = Path(env["COLLBENCH_SECRET_FILE"])
        return _read(path), str(path)
    try:
        return _of_user(_users_own(env))
    except UsageError:
        if info.local_ranks < info.ranks:
            raise
        return _of_host(Path(tempfile.gettempdir()) / f"collbench-{os.geteuid()}" / "secret")


def _of_user(path: Path) -> tuple[bytes, str]:
    """Read or make the secret in the user's home, where links to files of their own are theirs to set."""
    return _read(path) if os.path.lexists(path) else _made(path), str(path)


def _of_host(path: Path) -> tuple[bytes, str]:
    """Read or make the secret in a folder that another user may have made first: the folder is checked, and no link is followed."""
    if not os.path.lexists(path):
        return _made(path), str(path)
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read ({error.strerror}): {_REMEDY}") from error
    try:
        _check_folder(path.parent, os.fstat(folder))
        return _read(path, folder), str(path)
    finally:
        os.close(folder)


def _check_folder(path: Path, found: os.stat_result) -> None:
    """Raise UsageError unless `path` is a folder of this user that no other user can write."""
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise UsageError(f"{path} is not a folder that only its owner can write, so no secret is kept there: {_REMEDY}")


def _users_own(env: Mapping[str, str]) -> Path:
    folder = env.get("XDG_CONFIG_HOME") or (f"{env['HOME']}/.config" if env.get("HOME") else "")
    if not folder.startswith("/"):
        raise UsageError(f"there is no HOME to keep the secret in that lets ranks join one another: {_REMEDY}")
    return Path(folder) / "collbench" / "secret"


def _read(path: Path, folder: int | None = None) -> bytes:
    """Return the secret in a file; `folder`: the open folder that holds it, in which no symbolic link is followed."""
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(path, flags) if folder is None else os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=folder)
        try:
            found = os.fstat(handle)
            text = os.read(handle, _MOST_BYTES)
        finally:
            os.close(handle)
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read ({error.strerror}): check the path, or {_REMEDY}") from error
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UsageError(f"the secret in {path} is not a file that its owner alone can read: chown it to yourself and chmod 600 it")
    return _long_enough(text.strip(), str(path))


def _long_enough(text: bytes, where: str) -> bytes:
    if len(text) < _FEWEST:
        raise UsageError(f"the secret in {where} has {len(text)} characters, and needs {_FEWEST}: make one with openssl rand -hex 16")
    return text


def _made(path: Path) -> bytes:
    """A new secret; where another rank is quicker, that one's. The file appears as a whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_folder(path.parent, path.parent.lstat())
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, base64.b16encode(secrets.token_bytes(32)))
            os.fsync(handle)
        finally:
            os.close(handle)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as error:
        raise UsageError(f"no secret can be made in {path} ({error.strerror}), without which nobody may join: {_REMEDY}") from error
    return _read(path)
