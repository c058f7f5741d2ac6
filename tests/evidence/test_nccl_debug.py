"""A rank's own log of NCCL: asked for without overriding the user, read where NCCL wrote it, gone afterwards."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from collbench.measure.nccl_paths import DebugLog, prepare, resetter, together

HOST = socket.gethostname().partition(".")[0]
PATHS = [
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA",
    "Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "2 coll channels, 0 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer",
]
CHOICE = "AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"
CHOSEN = {"collective": "AllReduce", "bytes": 1024, "algorithm": "RING", "protocol": "LL", "channels": 2, "calls": 1}


def fake_nccl(env: dict[str, str], *messages: str) -> Path:
    """A fake of NCCL's log file: opened anew by the name that the environment has, each message with NCCL's prefix."""
    named = env["NCCL_DEBUG_FILE"].replace("%%", "\0").replace("%h", HOST).replace("%p", str(os.getpid())).replace("\0", "%")
    Path(named).write_text("".join(f"{HOST}:1:2 [0] NCCL INFO {message}\n" for message in messages))
    return Path(named)


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """An empty environment; folders of logs are in one with a name that NCCL must not read as an option."""
    (tmp_path / "100%h").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "100%h"))
    yield {}
    assert not list((tmp_path / "100%h").iterdir())


def test_what_nccl_is_asked_for(env: dict[str, str]) -> None:
    log = prepare(env)
    assert (env["NCCL_DEBUG"], env["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET,GRAPH")
    assert env["NCCL_DEBUG_FILE"].endswith("/1.%h.%p.log") and "/100%%h/" in env["NCCL_DEBUG_FILE"]
    log.close()
    assert env == {}


def test_nothing_is_left_where_it_was_not_closed(env: dict[str, str]) -> None:
    log = prepare(env)
    folder = Path(env["NCCL_DEBUG_FILE"]).parent
    del log
    assert not folder.exists()


def test_in_a_local_start_it_lies_where_the_parent_removes_everything(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    env["COLLBENCH_LOCAL"] = str(tmp_path / "start")
    log = prepare(env)
    assert Path(env["NCCL_DEBUG_FILE"]).parent.parent == tmp_path / "start"
    log.close()


def test_the_environment_as_the_user_gave_it(env: dict[str, str]) -> None:
    given = {"NCCL_DEBUG_SUBSYS": "ALL", "NCCL_ALGO": "Ring"}
    env.update(given)
    first, second = prepare(env), prepare(env)
    assert first.of_user(env) == second.of_user(env) == given
    first.close()
    second.close()


def test_a_line_per_call_only_where_it_is_asked_for(env: dict[str, str]) -> None:
    log = prepare(env, tuning=True)
    assert env["NCCL_DEBUG_SUBSYS"] == "INIT,NET,GRAPH,TUNING"
    log.close()


def test_the_facts_of_a_process(env: dict[str, str]) -> None:
    log = prepare(env)
    fake_nccl(env, *PATHS, CHOICE)
    assert log.facts() == {
        "host": HOST, "version": None, "net": "IB", "transports": {"NET/IB/0/GDRDMA": 2, "P2P/CUMEM": 1},
        "channels": {"NET/IB/0/GDRDMA": [0], "P2P/CUMEM": [0]}, "nics": {"NET/IB/0": "mlx5_0:1/IB"},
        "gdr": {"send": True, "receive": True, "staged": 0, "refused": []}, "stated": {"coll": 2, "collnet": 0, "nvls": 0, "p2p": 4},
        "choices": [CHOSEN], "warnings": [],
    }  # fmt: skip
    log.close()
    log.close()


def test_a_witness_sees_the_choice_and_nothing_is_written_per_call_around_it(env: dict[str, str]) -> None:
    log, asked = prepare(env), []
    reset = lambda: asked.append(env["NCCL_DEBUG_SUBSYS"])  # noqa: E731
    fake_nccl(env, *PATHS)
    with log.witness(reset) as seen:
        fake_nccl(env, CHOICE)
    fake_nccl(env)
    assert (seen, asked) == ([CHOSEN], ["TUNING", "INIT,NET,GRAPH"])
    assert log.facts()["choices"] == [CHOSEN] and log.facts()["transports"] == {"NET/IB/0/GDRDMA": 2, "P2P/CUMEM": 1}
    log.close()


def test_no_witness_without_a_library_that_can_be_asked_again(env: dict[str, str]) -> None:
    log = prepare(env)
    before = dict(env)
    with log.witness(None) as seen:
        assert env == before
    assert seen == []
    log.close()


def test_which_libraries_can_be_asked_again() -> None:
    reset = object()
    assert resetter(SimpleNamespace(ncclResetDebugInit=reset), 23203) is reset
    assert resetter(SimpleNamespace(ncclResetDebugInit=reset), 22602) is None
    assert resetter(SimpleNamespace(), 23203) is None


def test_each_library_has_a_log_of_its_own(env: dict[str, str]) -> None:
    first = prepare(env)
    of_first = env["NCCL_DEBUG_FILE"]
    second = prepare(env)
    assert env["NCCL_DEBUG_FILE"] != of_first
    first.close()
    assert env["NCCL_DEBUG_FILE"] != of_first and env["NCCL_DEBUG"] == "INFO"
    second.close()
    assert env == {}


def test_the_subsystems_of_the_user_stay(env: dict[str, str]) -> None:
    env["NCCL_DEBUG_SUBSYS"] = "ALL"
    first, second = prepare(env), prepare(env)
    assert env["NCCL_DEBUG_SUBSYS"] == "ALL"
    first.close()
    second.close()
    assert env == {"NCCL_DEBUG_SUBSYS": "ALL"}


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ({"NCCL_DEBUG": "WARN"}, "NCCL_DEBUG=WARN is set, which logs no paths: unset it, or set INFO"),
        (
            {"NCCL_DEBUG": "INFO"},
            "NCCL_DEBUG is set and is written to the output: unset it, or set NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log, too",
        ),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/dev/stderr"}, "NCCL_DEBUG is set and is written to the output"),
        (
            {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/x.%%p"},
            "NCCL_DEBUG_FILE=/tmp/x.%%p has no %p, so the ranks of a host overwrite",
        ),
        ({"NCCL_DEBUG_FILE": "/tmp/x.%p"}, "NCCL_DEBUG_FILE is set without NCCL_DEBUG, so NCCL writes no log"),
    ],
)
def test_what_the_user_set_stays_and_is_reported(user: dict[str, str], why: str, env: dict[str, str]) -> None:
    env.update(user)
    log = prepare(env)
    found = log.facts()
    log.close()
    assert env == user
    assert found["why"].startswith(why) and set(found) == {"host", "why"}


def test_the_file_of_the_user_is_read_and_kept(env: dict[str, str], tmp_path: Path) -> None:
    env |= {"NCCL_DEBUG": "info", "NCCL_DEBUG_FILE": f"{tmp_path}/50%%.%h.%p.%q"}
    log = prepare(env)
    file = fake_nccl(env, *PATHS)
    assert log.facts()["net"] == "IB"
    log.close()
    assert file.name == f"50%.{HOST}.{os.getpid()}.%q" and file.exists()


def test_a_library_that_wrote_nothing(env: dict[str, str]) -> None:
    log = prepare(env)
    assert "no log" in log.facts()["why"]
    log.close()


def test_no_room_for_a_log(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    log = prepare(env)
    assert "TMPDIR" in log.facts()["why"] and env == {}
    log.close()


def facts(host: str, *messages: str, env: dict[str, str]) -> dict[str, object]:
    log: DebugLog = prepare(env)
    fake_nccl(env, *messages)
    found = log.facts() | {"host": host}
    log.close()
    return found


def test_the_ranks_together(env: dict[str, str]) -> None:
    staged = [line.replace("/GDRDMA", "").replace("NET/IB/0", "NET/IB/1").replace("[0]mlx5_0", "[1]mlx5_4") for line in PATHS]
    found = together(
        [facts("node1", *PATHS, CHOICE, env=env), facts("node2", *staged, CHOICE, env=env), {"host": "node3", "why": "no log"}]
    )
    assert found == {
        "processes": 3, "told": 2, "why": "no log", "versions": [], "nets": ["IB"],
        "transports": {"NET/IB/0/GDRDMA": 2, "P2P/CUMEM": 2, "NET/IB/1": 2},
        "channels": {"NET/IB/0/GDRDMA": [0], "NET/IB/1": [0], "P2P/CUMEM": [0]},
        "nics": {"NET/IB/0": ["mlx5_0:1/IB"], "NET/IB/1": ["mlx5_4:1/IB"]},
        "gdr": {"send": True, "receive": True, "staged": 2, "refused": []}, "hosts_without_gdr": ["node2"],
        "stated": {"coll": 2, "collnet": 0, "nvls": 0, "p2p": 4}, "choices": [CHOSEN | {"calls": 2}], "warnings": [],
        "sentence": "NET/IB/1 on 1 of 1 channel, NET/IB/0/GDRDMA on 1, P2P/CUMEM on 1",
    }  # fmt: skip


def test_devices_that_do_the_same_are_one_part_of_the_sentence(env: dict[str, str]) -> None:
    lines = [f"Channel {c:02d}/0 : 0[0] -> 2[0] [send] via NET/IB/{c % 2}/GDRDMA" for c in range(16)]
    inside = [f"Channel {c:02d}/0 : 0[0] -> 1[1] via P2P/CUMEM" for c in range(24)]
    assert together([facts("a", *lines, *inside, env=env)])["sentence"] == "NET/IB/0,1/GDRDMA on 16 of 24 channels, P2P/CUMEM on 24"


def test_ranks_without_a_log_give_the_reason() -> None:
    found = together([{"host": "a", "why": "NCCL wrote no log"}])
    assert (found["sentence"], found["told"], found["transports"]) == ("NCCL wrote no log", 0, {})
