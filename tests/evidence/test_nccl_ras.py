"""NCCL's RAS, queried before an abort: ranks that lag or are gone, from a fake server with any answer."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.readers.text import printable
from collbench.measure.nccl_paths import RasReply, query_ras

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
                replies = {
                    "CLIENT PROTOCOL 2": greeting,
                    "TIMEOUT 1": "OK",
                    "SET FORMAT JSON": "OK" if knows_json else "ERROR: Unknown command",
                }
                lines.write(replies[command] + "\n")
                lines.flush()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield {"NCCL_RAS_ADDR": f"127.0.0.1:{listener.getsockname()[1]}"}
    thread.join(5)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            answer(rank(0, 18), rank(1, 18), rank(3, 17)),
            "NCCL's RAS: rank 3 on node2 lags: 17 of 18 AllReduce launched (2 of 3 ranks have all)",
        ),
        (
            answer(rank(0, 18), missing=[{"rank": 2, "host": "node3", "status": {"unresponsive": True, "considered_dead": True}}]),
            "NCCL's RAS: rank 2 on node3 is considered dead",
        ),
        (answer(missing=[{"rank": 2, "host": "node3", "status": {"unresponsive": True}}]), "NCCL's RAS: rank 2 on node3 does not answer"),
        (answer(rank(0, 18, error=6), rank(1, 18)), "NCCL's RAS: rank 0 on node2 has asynchronous error 6"),
        (answer(rank(0, 18), rank(1, 18, error=7)), "NCCL's RAS reaches all 2 ranks, and none is behind"),
        (json.dumps({"communicators": []}), "NCCL's RAS lists no communicators"),
        (
            answer(rank(0, 1), rank(1, 0, host="\x1b[31mnode")),
            "NCCL's RAS: rank 1 on ?[31mnode lags: 0 of 1 AllReduce launched (1 of 2 ranks have all)",
        ),
    ],
)  # fmt: skip
def test_json(said: str, sentence: str) -> None:
    with fake_ras_server(said) as env:
        assert query_ras(env) == RasReply(sentence)


def test_many_ranks_are_counted_not_listed() -> None:
    with fake_ras_server(answer(rank(0, 2), *(rank(number, 1) for number in range(1, 9)))) as env:
        sentence = query_ras(env).sentence
    assert sentence is not None and sentence.startswith("NCCL's RAS: rank 1 on node2 lags: 1 of 2") and sentence.endswith("; and 4 more")


def test_text_where_the_server_has_no_json() -> None:
    with fake_ras_server(TEXT, knows_json=False) as env:
        assert query_ras(env) == RasReply(
            "NCCL's RAS: #0-0 (27a079b828ff1a75) MISMATCH; Communicator ranks have different AllReduce operation counts; "
            "Rank 1 has launched up to operation 7 -- GPU 0 managed by process 17 on node 10.0.0.2"
        )


def test_text_without_complaints() -> None:
    with fake_ras_server(TEXT.partition("Warnings")[0], knows_json=False) as env:
        assert query_ras(env) == RasReply("NCCL's RAS reports no errors")


def test_a_silent_server_costs_no_more_than_the_deadline() -> None:
    began = time.monotonic()
    with fake_ras_server("", silent=True) as env:
        found = query_ras(env, deadline_s=0.1)
    assert found.sentence is None and found.why is not None
    assert env["NCCL_RAS_ADDR"] in found.why and found.why.endswith(" 0.1 s")
    assert time.monotonic() - began < 5


def test_another_server_is_not_taken_for_ras() -> None:
    with fake_ras_server("", greeting="HTTP/1.1 400 Bad Request") as env:
        found = query_ras(env)
    assert found.sentence is None and found.why is not None and "answers 'HTTP/1.1 400 Bad Request'" in found.why


def test_without_a_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    found = query_ras({"NCCL_RAS_ADDR": f"127.0.0.1:{port}"})
    assert found.sentence is None and found.why is not None and f"127.0.0.1:{port} cannot be reached" in found.why


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"NCCL_RAS_ENABLE": "0"}, "NCCL_RAS_ENABLE=0 turned NCCL's RAS off"),
        ({"NCCL_RAS_ADDR": "nowhere"}, "NCCL_RAS_ADDR=nowhere is not a valid HOST:PORT"),
        ({"NCCL_RAS_ADDR": "localhost:99999"}, "NCCL_RAS_ADDR=localhost:99999 is not a valid HOST:PORT"),
    ],
)
def test_where_it_cannot_be_asked(env: dict[str, str], why: str) -> None:
    assert query_ras(env) == RasReply(None, why)


_NAMES = ["rank", "ranks", "missing_ranks", "status", "collective_counts", "x"]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.text(max_size=300), _VALUES.map(lambda value: json.dumps({"communicators": [value]})), st.just(TEXT)))
def test_any_answer_is_one_printable_sentence_or_refused(said: str) -> None:
    with fake_ras_server(said) as env:
        found = query_ras(env)
    assert (found.sentence is None) != (found.why is None)
    sentence = found.sentence or found.why or ""
    assert sentence == printable(sentence, 500) and (found.sentence is None or sentence.startswith("NCCL's RAS"))
