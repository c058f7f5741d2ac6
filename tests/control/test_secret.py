"""The secret of a launch: where it comes from, which users may read it, and that it is shown nowhere."""

import itertools
import os
import socket
import threading
from pathlib import Path

import pytest

from collbench.control.security import Keys, secret_of
from collbench.errors import UsageError
from collbench.launch.detect import detect_torchrun
from collbench.launch.info import LaunchInfo
from tests.backends.pairs import at_once
from tests.cli.command import PROGRAM, running, start, until
from tests.control.ends_here import free_port


def info(token="job 1", ranks=2, secret="", local_ranks=1):
    return LaunchInfo("srun", 0, ranks, 0, local_ranks, "tcp://node1", token, secret=secret)


GIVEN = {"COLLBENCH_SECRET": "sixteen or more letters"}


def test_it_and_its_two_pairs_of_keys_are_the_same_for_all_ranks_of_a_launch_and_no_other():
    first = secret_of(info(), GIVEN)
    assert first.source == "COLLBENCH_SECRET"
    assert first.key == secret_of(info(), {**GIVEN, "HOME": "/nowhere"}).key
    another = {"COLLBENCH_SECRET": "another with 16 letters"}
    others = [secret_of(info("job 2"), GIVEN), secret_of(info(ranks=3), GIVEN), secret_of(info(), another)]
    assert len({first.key, *(other.key for other in others)}) == 4
    assert len({first.key, first.derived("listener"), first.derived("caller"), first.derived("ports")}) == 4
    keys, again = Keys.of(first), Keys.of(secret_of(info(), GIVEN))
    assert (keys.listener, keys.caller) == (again.listener, again.caller)
    assert len({*keys.listener, *keys.caller}) == 4
    assert all(len(key) == 40 for key in (*keys.listener, *keys.caller))
    shown = f"{first!r} {first} {keys!r} {keys}"
    assert repr(first.key)[2:-1] not in shown and all(key.decode() not in shown for key in (*keys.listener, *keys.caller))


def test_other_sources_are_a_token_a_file_of_the_local_start_one_that_the_user_names_and_settings(tmp_path):
    token = secret_of(info("0123456789abcdef", secret="token"), {})
    assert token.source == "this launch"
    assert token.key != secret_of(info("0123456789abcdeg", secret="token"), {}).key
    path = private(tmp_path / "secret", "made for this one launch")
    assert secret_of(info(secret=str(path)), GIVEN).source == "this launch"
    assert secret_of(info(secret=str(path)), GIVEN).key != secret_of(info(), GIVEN).key
    path = private(tmp_path / "mine", " sixteen or more letters\n")
    named = secret_of(info(), {"COLLBENCH_SECRET_FILE": str(path)})
    assert (named.source, named.key) == (str(path), secret_of(info(), GIVEN).key)
    secret_of(info(), {"HOME": "/nowhere", "XDG_CONFIG_HOME": str(tmp_path)})
    assert (tmp_path / "collbench/secret").exists()


def private(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.mark.parametrize(("mode", "owner"), [(0o640, -1), (0o604, -1), (0o666, -1), (0o610, -1), pytest.param(0o600, 12345, marks=AS_ROOT)])
def test_a_file_that_others_can_read_or_have_made_is_none(mode, owner, tmp_path):
    path = private(tmp_path / "mine", "sixteen or more letters", mode)
    os.chown(path, owner, -1)
    with pytest.raises(UsageError, match="chmod 600"):
        secret_of(info(), {"COLLBENCH_SECRET_FILE": str(path)})


def test_a_folder_a_fifo_or_nothing_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path, why in ((tmp_path, "chmod 600|Is a directory"), (tmp_path / "fifo", "chmod 600"), (tmp_path / "none", "No such file")):
        with pytest.raises(UsageError, match=why):
            secret_of(info(), {"COLLBENCH_SECRET_FILE": str(path)})


@pytest.mark.parametrize(("length", "enough"), [("1 character", False), ("15 characters", False), ("16 characters", True)])
def test_a_secret_has_16_characters_or_more(length, enough, tmp_path):
    text = "x" * int(length.split()[0])
    path = private(tmp_path / "mine", text)
    for env in ({"COLLBENCH_SECRET": text}, {"COLLBENCH_SECRET_FILE": str(path)}):
        if enough:
            assert secret_of(info(), env)
        else:
            place = path if "COLLBENCH_SECRET_FILE" in env else "COLLBENCH_SECRET"
            with pytest.raises(UsageError) as raised:
                secret_of(info(), env)
            said = f"the secret in {place} has {length}, but needs 16: make one with openssl rand -hex 16"
            assert str(raised.value) == said


def test_the_users_own_is_made_once_by_however_many_ranks_at_a_time(tmp_path):
    env = {"HOME": str(tmp_path)}
    found = at_once(*[lambda: secret_of(info(), env).key] * 8)
    path = tmp_path / ".config/collbench/secret"
    assert len(found) == 8 and set(found) == {secret_of(info(), env).key}
    assert (path.stat().st_mode & 0o777, len(path.read_bytes())) == (0o600, 64)
    assert [one.name for one in path.parent.iterdir()] == ["secret"]
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert secret_of(info(), env).source == str(path)


def test_without_a_home_or_one_that_cannot_be_written_launches_over_hosts_must_be_given_one(tmp_path):
    with pytest.raises(UsageError) as raised:
        secret_of(info(), {})
    assert str(raised.value) == (
        "HOME is not set, so the secret with which ranks join cannot be stored: set COLLBENCH_SECRET to the same 16 or more characters for "
        "all ranks (openssl rand -hex 16)"
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="COLLBENCH_SECRET"):
        secret_of(info(), {"HOME": str(tmp_path / "file")})


@pytest.mark.parametrize(("mode", "private"), [(0o700, True), (0o755, True), (0o720, False), (0o702, False), (0o777, False)])
def test_a_folder_that_others_can_write_keeps_none(tmp_path, mode, private):
    (tmp_path / "collbench").mkdir()
    (tmp_path / "collbench").chmod(mode)
    if private:
        assert secret_of(info(), {"XDG_CONFIG_HOME": str(tmp_path)})
    else:
        with pytest.raises(UsageError, match="only its owner"):
            secret_of(info(), {"XDG_CONFIG_HOME": str(tmp_path)})


def test_on_one_host_a_private_folder_serves(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    first, second = (secret_of(info(local_ranks=2), {}) for _ in range(2))
    assert first.key == second.key
    assert first.source == str(tmp_path / f"collbench-{os.geteuid()}" / "secret")


@pytest.mark.parametrize(("case", "why"), [
    pytest.param("another user's folder", "only its owner", marks=AS_ROOT),
    pytest.param("a link in it", "cannot be read", marks=AS_ROOT), ("a link to a folder", r"\(Not a directory\)|\(Too many"),
])  # fmt: skip
def test_the_folder_of_last_resort_is_checked_and_its_links_are_not_followed(case, why, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder, elsewhere = tmp_path / f"collbench-{os.geteuid()}", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    known = private(elsewhere / "secret", "text that the other user has read")
    if case == "a link to a folder":
        folder.symlink_to(elsewhere)
    else:
        folder.mkdir(mode=0o700)
        (folder / "secret").symlink_to(known)
    if case == "another user's folder":
        os.chown(folder, 12345, -1)
    with pytest.raises(UsageError, match=why):
        secret_of(info(local_ranks=2), {})


SECRET = "only-the-ranks-of-this-launch-know-it"


@pytest.mark.long
def test_a_foreign_connection_is_reported_and_no_secret_is(tmp_path):
    port = free_port()
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "COLLBENCH_SECRET": SECRET}
    folders = [tmp_path / "rank0", tmp_path / "rank1"]
    for rank, folder in enumerate(folders):
        folder.mkdir()
        line = ("allreduce", "--sizes", "8", "-n", "3", "--backend", "gloo", "--out", "run", "--evidence", "off")
        start(folder, *line, program=PROGRAM, env={**common, "RANK": str(rank)})
    seen = set()
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(seen, done))
    watcher.start()
    until(lambda: browsed(port), "rank 0's port")
    until(lambda: not any(map(running, folders)), "the ranks' end", 60)
    done.set()
    watcher.join()
    info = detect_torchrun({**common, "RANK": "0"})
    assert info
    secret = secret_of(info, common)
    keys = Keys.of(secret)
    hidden = [SECRET.encode(), secret.key, secret.key.hex().encode(), *keys.listener, *keys.caller]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert (folders[0] / "run/run.json").exists(), (folders[0] / "stderr").read_text()
    assert any("collbench" in line for line in seen)
    for actual in (folders[0] / "stderr", folders[0] / "run/events.jsonl"):
        assert "refused 1 connection" in actual.read_text()
    for text, word in itertools.product([*written, *(line.encode() for line in seen)], hidden):
        assert word not in text


def browsed(port):
    """Return whether a process listens there. The probe asks for a web page and closes."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while stranger.recv(4096):
                pass
    except ConnectionRefusedError:
        return False
    except ConnectionError:
        pass
    return True


def watch(seen, done):
    """The command lines of all processes, now and again."""
    while not done.wait(0.1):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.add(path.read_text(errors="replace"))
            except OSError:
                continue
