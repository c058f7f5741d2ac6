"""A rank's own log of NCCL, the state of GPUDirect RDMA in a run, and NCCL's RAS, which is queried before an abort."""

import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.distance import STATES
from collbench.machine.model import Machine
from collbench.machine.readers.text import printable
from collbench.measuring.nccl_paths import DebugLog, RasReply, prepare, query_ras, resetter, state_of_run, together
from tests.doctor.machines import with_system
from tests.machine.machines import dgx, laptop

HOST = socket.gethostname().partition(".")[0]
PATHS = [
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>", "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA",
    "Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "2 coll channels, 0 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer",
]  # fmt: skip
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


def test_what_nccl_is_asked_for_and_that_nothing_of_it_is_left(env: dict[str, str]) -> None:
    log = prepare(env)
    assert (env["NCCL_DEBUG"], env["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET,GRAPH")
    assert env["NCCL_DEBUG_FILE"].endswith("/1.%h.%p.log") and "/100%%h/" in env["NCCL_DEBUG_FILE"]
    log.close()
    assert env == {}
    log = prepare(env, tuning=True)  # a line per call, only where it is asked for
    assert env["NCCL_DEBUG_SUBSYS"] == "INIT,NET,GRAPH,TUNING"
    folder = Path(env["NCCL_DEBUG_FILE"]).parent
    del log  # not closed
    assert not folder.exists()


def test_in_a_local_start_it_lies_where_the_parent_removes_everything(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    env["COLLBENCH_LOCAL"] = str(tmp_path / "start")
    log = prepare(env)
    assert Path(env["NCCL_DEBUG_FILE"]).parent.parent == tmp_path / "start"
    log.close()


@pytest.mark.parametrize("given", [{}, {"NCCL_DEBUG_SUBSYS": "ALL"}, {"NCCL_DEBUG_SUBSYS": "ALL", "NCCL_ALGO": "Ring"}])
def test_each_library_has_a_log_of_its_own_and_the_users_settings_stay(given: dict[str, str], env: dict[str, str]) -> None:
    env.update(given)
    first = prepare(env)
    of_first = env["NCCL_DEBUG_FILE"]
    second = prepare(env)
    assert first.of_user(env) == second.of_user(env) == given
    assert env["NCCL_DEBUG_FILE"] != of_first and env["NCCL_DEBUG_SUBSYS"] == given.get("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH")
    first.close()
    assert env["NCCL_DEBUG_FILE"] != of_first and env["NCCL_DEBUG"] == "INFO"
    second.close()
    assert env == given


def test_the_facts_of_a_process(env: dict[str, str]) -> None:
    log = prepare(env)
    fake_nccl(env, *PATHS, CHOICE)
    assert log.facts() == {
        "host": HOST, "version": None, "net": "IB", "transports": {"NET/IB/0/GDRDMA": 2, "P2P/CUMEM": 1},
        "channels": {"NET/IB/0/GDRDMA": [0], "P2P/CUMEM": [0]}, "nics": {"NET/IB/0": "mlx5_0:1/IB"},
        "gdr": {"send": True, "receive": True, "staged": 0, "refused": []}, "stated": {"coll": 2, "collnet": 0, "nvls": 0, "p2p": 4},
        "choices": [CHOSEN], "warnings": [], "tuning": [],
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
    before = dict(env)
    with log.witness(None) as seen:  # of a library that cannot be asked again
        assert env == before
    assert seen == []
    log.close()


@pytest.mark.parametrize(("version", "can"), [(23203, True), (22602, False)])
def test_which_libraries_can_be_asked_again(version: int, can: bool) -> None:
    reset = object()
    assert resetter(SimpleNamespace(ncclResetDebugInit=reset), version) is (reset if can else None)
    assert resetter(SimpleNamespace(), version) is None


@pytest.mark.parametrize(("user", "why"), [
    ({"NCCL_DEBUG": "WARN"}, "NCCL_DEBUG=WARN is set, which logs no paths: unset it, or set INFO"),
    ({"NCCL_DEBUG": "INFO"}, "NCCL_DEBUG is set and is written to the output: unset it, or set NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log, too"),
    ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/dev/stderr"}, "NCCL_DEBUG is set and is written to the output"),
    ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/x.%%p"}, "NCCL_DEBUG_FILE=/tmp/x.%%p has no %p, so the ranks of a host overwrite"),
    ({"NCCL_DEBUG_FILE": "/tmp/x.%p"}, "NCCL_DEBUG_FILE is set without NCCL_DEBUG, so NCCL writes no log"),
])  # fmt: skip
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
    of_hosts = [facts("node1", *PATHS, CHOICE, env=env), facts("node2", *staged, CHOICE, env=env), {"host": "node3", "why": "no log"}]
    assert together(of_hosts) == {
        "processes": 3, "told": 2, "why": "no log", "versions": [], "nets": ["IB"],
        "transports": {"NET/IB/0/GDRDMA": 2, "P2P/CUMEM": 2, "NET/IB/1": 2},
        "channels": {"NET/IB/0/GDRDMA": [0], "NET/IB/1": [0], "P2P/CUMEM": [0]},
        "nics": {"NET/IB/0": ["mlx5_0:1/IB"], "NET/IB/1": ["mlx5_4:1/IB"]},
        "gdr": {"send": True, "receive": True, "staged": 2, "refused": []}, "hosts_without_gdr": ["node2"],
        "stated": {"coll": 2, "collnet": 0, "nvls": 0, "p2p": 4}, "choices": [CHOSEN | {"calls": 2}], "warnings": [],
        "tuning": [],
        "sentence": "NET/IB/1 on 1 of 1 channel, NET/IB/0/GDRDMA on 1, P2P/CUMEM on 1",
    }  # fmt: skip


def test_devices_that_do_the_same_are_one_part_of_the_sentence_and_ranks_without_a_log_give_the_reason(env: dict[str, str]) -> None:
    lines = [f"Channel {c:02d}/0 : 0[0] -> 2[0] [send] via NET/IB/{c % 2}/GDRDMA" for c in range(16)]
    inside = [f"Channel {c:02d}/0 : 0[0] -> 1[1] via P2P/CUMEM" for c in range(24)]
    assert together([facts("a", *lines, *inside, env=env)])["sentence"] == "NET/IB/0,1/GDRDMA on 16 of 24 channels, P2P/CUMEM on 24"
    silent = together([{"host": "a", "why": "NCCL wrote no log"}])
    assert (silent["sentence"], silent["told"], silent["transports"]) == ("NCCL wrote no log", 0, {})


CAPABLE = "nvidia_peermem is loaded, PIX apart"


def run_facts(
    send: bool = False, receive: bool = False, staged: int = 0, refused: tuple[str, ...] = (), **transports: int
) -> dict[str, Any]:
    """Facts of a run; the underscores of names are slashes."""
    named = {name.replace("_", "/"): count for name, count in transports.items()}
    return {"transports": named, "gdr": {"send": send, "receive": receive, "staged": staged, "refused": list(refused)}}


BARE = with_system(dgx(), peer_memory=(), dma_buf=False)
MIXED = run_facts(True, True, staged=4, NET_IB_0_GDRDMA=12, NET_IB_1=4) | {"hosts_without_gdr": [f"n{i}" for i in range(6)]}
BOTH = run_facts(True, True, NET_IB_0_GDRDMA=16)
# A run's facts, its machines, the bytes that left over RDMA ports, the state, and how the reason begins and ends.
RUNS: dict[str, tuple[dict[str, Any], list[Machine], int | None, str, str, str]] = {
    "both directions prove it": (run_facts(True, True, NET_IB_0_GDRDMA=16, P2P_CUMEM=8), [], None, "proven used", "16 of 16 ", ""),
    "hosts that do not use it are named": (MIXED, [], None, "proven used", "12 of 16 ", " n0, n1, n2, n3 and 2 more"),
    "one direction alone": (run_facts(True, False, NET_IB_0_GDRDMA=1), [dgx()], None, "unknown", "", "only for [send]"),
    "ways that carried bytes": (BOTH, [dgx()], 1 << 30, "proven used", "", ""),
    "ways that carried no byte": (BOTH, [dgx()], 0, "capable, not used", "", "no RDMA port"),
    "staged": (run_facts(staged=8, NET_IB_0=8), [dgx()], None, "capable, not used", "", f" 8 network connections staged *; {CAPABLE}"),
    "sockets": (run_facts(NET_Socket_0=2), [dgx()], None, "capable, not used", "", " 2 network connections over TCP "),
    "NCCL's own word goes before the modules": (run_facts(staged=8, refused=("mlx5_0", "mlx5_1"), NET_IB_0=8), [dgx()], None, "not capable",
        "", "Disabled for mlx5_0, mlx5_1"),
    "the worst GPU of all machines": (run_facts(staged=8, NET_IB_0=8), [dgx(), BARE], None, "not capable", "", "dma-buf"),
    "inside one host": (run_facts(P2P_CUMEM=8), [dgx()], None, "capable, not used", "", f"; {CAPABLE}"),
    "without a log": ({"transports": {}, "why": "NCCL_DEBUG=WARN is set"}, [dgx()], None, "unknown", f"NCCL_DEBUG=WARN is set; {CAPABLE}",
        ""),
    "nothing known": ({}, [laptop()], None, "unknown", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_state_of_a_run(name: str) -> None:
    shown, machines, rdma_bytes, state, start, has = RUNS[name]
    found = state_of_run(shown, machines, rdma_bytes=rdma_bytes)
    assert found.state == state in STATES
    assert found.why.startswith(start) and all(part in found.why for part in has.split("*"))


TEXT = """NCCL version 2.24.3 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          1            1          2        2

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         1         2         2   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 1 has launched up to operation 7 -- GPU 0 managed by process 17 on node 10.0.0.2

"""


def rank(number: int, launched: int, error: int = 0, host: str = "node2") -> dict[str, Any]:
    counts = {"AllReduce": launched, "Reduce": 0}
    return {"rank": number, "host": host, "pid": 1, "status": {"async_error": error}, "collective_counts": counts}


def answer(*ranks: dict[str, Any], missing: list[dict[str, Any]] | None = None) -> str:
    return json.dumps({"nccl_version": "2.28.9", "communicators": [{"size": 4, "ranks": list(ranks), "missing_ranks": missing or []}]})


@contextmanager
def fake_ras_server(
    said: str, *, knows_json: bool = True, greeting: str = "SERVER PROTOCOL 2", silent: bool = False
) -> Iterator[dict[str, str]]:
    """A fake of NCCL's RAS service: the same lines, no NCCL behind it. Gives the environment in which it is found."""

    def serve() -> None:
        connection = listener.accept()[0]
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                if silent:
                    continue
                command = line.strip().upper()
                if command.endswith("STATUS"):
                    lines.write(said)
                    break
                replies = {"CLIENT PROTOCOL 2": greeting, "TIMEOUT 1": "OK", "SET FORMAT JSON": "OK" if knows_json else "ERROR: Unknown"}
                lines.write(replies[command] + "\n")
                lines.flush()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield {"NCCL_RAS_ADDR": f"127.0.0.1:{listener.getsockname()[1]}"}
    thread.join(5)


LAGS = answer(rank(0, 2), *(rank(number, 1) for number in range(1, 9)))
DEAD = {"rank": 2, "host": "node3", "status": {"unresponsive": True, "considered_dead": True}}
OPERATIONS = (
    "NCCL's RAS: #0-0 (27a079b828ff1a75) MISMATCH; Communicator ranks have different AllReduce operation counts; "
    "Rank 1 has launched up to operation 7 -- GPU 0 managed by process 17 on node 10.0.0.2"
)
# What the server says and is like, and what is reported of it: how a sentence begins and ends, or a part of the reason for none.
REPLIES: dict[str, tuple[str, dict[str, Any], tuple[str, str], str]] = {
    "a rank lags": (answer(rank(0, 18), rank(1, 18), rank(3, 17)), {},
        ("NCCL's RAS: rank 3 on node2 lags: 17 of 18 AllReduce launched ", "(2 of 3 ranks have all)"), ""),
    "a rank is dead": (answer(rank(0, 18), missing=[DEAD]), {}, ("NCCL's RAS: rank 2 on node3 is considered dead", ""), ""),
    "a rank does not answer": (answer(missing=[{"rank": 2, "host": "node3", "status": {"unresponsive": True}}]), {},
        ("NCCL's RAS: rank 2 on node3 does not answer", ""), ""),
    "an asynchronous error": (answer(rank(0, 18, error=6), rank(1, 18)), {}, ("NCCL's RAS: rank 0 on node2 has asynchronous error 6", ""),
        ""),
    "none is behind": (answer(rank(0, 18), rank(1, 18, error=7)), {}, ("NCCL's RAS reaches all 2 ranks, and none is behind", ""), ""),
    "no communicators": (json.dumps({"communicators": []}), {}, ("NCCL's RAS lists no communicators", ""), ""),
    "a name with control characters": (answer(rank(0, 1), rank(1, 0, host="\x1b[31mnode")), {},
        ("NCCL's RAS: rank 1 on ?[31mnode lags: 0 of 1 AllReduce launched ", "(1 of 2 ranks have all)"), ""),
    "many ranks are counted": (LAGS, {}, ("NCCL's RAS: rank 1 on node2 lags: 1 of 2", "; and 4 more"), ""),
    "text where the server has no JSON": (TEXT, {"knows_json": False}, (OPERATIONS, OPERATIONS), ""),
    "text without complaints": (TEXT.partition("Warnings")[0], {"knows_json": False}, ("NCCL's RAS reports no errors", ""), ""),
    "another server": ("", {"greeting": "HTTP/1.1 400 Bad Request"}, ("", ""), "answers 'HTTP/1.1 400 Bad Request'"),
    "nothing": ("", {}, ("", ""), "sends an empty answer"),
    "a part": ('{"a"', {}, ("", ""), "sends an incomplete answer"),
    "another form": ("[]", {}, ("", ""), "sends an answer of an unknown form"),
}  # fmt: skip


@pytest.mark.contract
@pytest.mark.parametrize(("said", "server", "sentence", "why"), REPLIES.values(), ids=REPLIES)
def test_a_reply_of_ras(said: str, server: dict[str, Any], sentence: tuple[str, str], why: str) -> None:
    start, end = sentence
    with fake_ras_server(said, **server) as env:
        reply = query_ras(env)
    assert (reply.sentence is None, reply.why is None) == (bool(why), not why)
    assert (reply.sentence or "").startswith(start) and (reply.sentence or "").endswith(end) and why in (reply.why or "")
    assert not start or end or reply == RasReply(start)


@pytest.mark.contract
def test_a_silent_server_costs_no_more_than_the_deadline() -> None:
    began = time.monotonic()
    with fake_ras_server("", silent=True) as env:
        found = query_ras(env, deadline_s=0.1)
    assert found.sentence is None and found.why is not None
    assert env["NCCL_RAS_ADDR"] in found.why and found.why.endswith(" 0.1 s")
    assert time.monotonic() - began < 5


@pytest.mark.contract
def test_without_a_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    found = query_ras({"NCCL_RAS_ADDR": f"127.0.0.1:{port}"})
    assert found.sentence is None and found.why is not None and f"127.0.0.1:{port} cannot be reached" in found.why


@pytest.mark.parametrize(("env", "why"), [
    ({"NCCL_RAS_ENABLE": "0"}, "NCCL_RAS_ENABLE=0 turned NCCL's RAS off"),
    ({"NCCL_RAS_ADDR": "nowhere"}, "NCCL_RAS_ADDR=nowhere is not a valid HOST:PORT"),
    ({"NCCL_RAS_ADDR": "localhost:99999"}, "NCCL_RAS_ADDR=localhost:99999 is not a valid HOST:PORT"),
])  # fmt: skip
def test_where_it_cannot_be_asked(env: dict[str, str], why: str) -> None:
    assert query_ras(env) == RasReply(None, why)


_NAMES = ["rank", "ranks", "missing_ranks", "status", "collective_counts", "x"]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.contract
@settings(max_examples=50, deadline=None)
@given(st.one_of(st.text(max_size=300), _VALUES.map(lambda value: json.dumps({"communicators": [value]})), st.just(TEXT)))
def test_any_answer_is_one_printable_sentence_or_refused(said: str) -> None:
    with fake_ras_server(said) as env:
        found = query_ras(env)
    assert (found.sentence is None) != (found.why is None)
    sentence = found.sentence or found.why or ""
    assert sentence == printable(sentence, 500) and (found.sentence is None or sentence.startswith("NCCL's RAS"))
