"""Ranks that cannot join compare their builds over UDP; unauthenticated queries get no answer, and a replayed call changes nothing."""

import hmac
import json
import os
import resource
import secrets
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from collbench.control.builds import BuildAddresses, BuildServer, addresses_of, ask_rank_0
from collbench.control.security import Secret
from collbench.launch.software import Build, read_build
from tests.control.ends_here import free_port

OURS, THEIRS = Build(1, "0.1.0", "abc"), Build(2, "0.2.0", "def")
MAGIC = b"collbench build 1\n"
NOBODY_S = 0.4


def place():
    return BuildAddresses(Secret(secrets.token_bytes(32), "a test"), None, ["127.0.0.1"])


@pytest.fixture
def here():
    return place()


@pytest.fixture
def calls(here):
    taken = []
    with BuildServer(here, OURS, taken.append):
        yield taken


def rank_1(where, seconds=5.0):
    return ask_rank_0(where, 1, THEIRS, threading.Event(), seconds, about={"python": "3.12"})


def test_both_sides_learn_the_other_build_and_a_rank_that_asks_again_is_noted_once(here, calls):
    for _ in range(2):
        reply = rank_1(here)
        assert reply and (read_build(reply.build), reply.noted) == (OURS, True)
        (call,) = calls
        assert (call.rank, call.host, read_build(call.build), call.about) == (1, socket.gethostname(), THEIRS, {"python": "3.12"})


def test_a_taken_port_is_passed_over_and_one_that_the_launch_fixes_comes_first(here):
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as other:
        other.bind(("127.0.0.1", here.ports[0]))
        with BuildServer(here, OURS, lambda _: None):
            assert rank_1(here)
        port = free_port()
    fixed = BuildAddresses(here.secret, port, here.addresses)
    assert fixed.ports == [port, *here.ports]
    with BuildServer(fixed, OURS, lambda _: None):
        assert rank_1(fixed)
    assert rank_1(here, NOBODY_S) is None  # no answer comes where rank 0 is not


def test_a_process_with_more_than_1024_open_files_gets_the_answer(here, calls):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip(f"a process may open {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.enter_context(Path(os.devnull).open())
        assert rank_1(here).noted
    assert len(calls) == 1


def test_another_secret_gets_no_answer(here, calls):
    stranger = BuildAddresses(place().secret, here.ports[0], here.addresses)
    assert rank_1(stranger, NOBODY_S) is None and calls == []


def recorded(where, said):
    """A call as a rank sends it: the magic, the code of its text, and the text."""
    text = json.dumps(said).encode()
    return MAGIC + hmac.digest(where.secret.derived("build call"), text, "sha256") + text


CALL = {"rank": 1, "host": "n2", "build": THEIRS.as_json(), "nonce": "a" * 32, "echo": "b" * 32, "about": {}}


def first_answer(where, *datagrams):
    """Send datagrams from one socket. Rank 0 reads them in this order, so the first answer shows which ones got none."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as rank:
        rank.settimeout(5)
        for datagram in datagrams:
            rank.sendto(datagram, ("127.0.0.1", where.ports[0]))
        return json.loads(rank.recv(4096)[len(MAGIC) + 32 :])


def test_a_recorded_call_is_answered_but_not_noted(here, calls):
    """It names the nonce of another start, so it may be as old as it likes: no launch ends for it."""
    answer = first_answer(here, recorded(here, CALL))
    assert (answer["noted"], answer["nonce"]) == (False, CALL["nonce"])
    assert calls == []


@pytest.mark.parametrize("datagram", [b"", MAGIC, MAGIC + bytes(64), b"\xff\0\0\0\0\0\0\0\1\x7f", bytes(2000)])
def test_what_is_not_sealed_gets_no_answer(datagram, here, calls):
    assert first_answer(here, datagram, recorded(here, CALL | {"nonce": "c" * 32}))["nonce"] == "c" * 32
    assert calls == [] and rank_1(here)  # and the server goes on


@pytest.mark.parametrize("bad", [{"rank": 0}, {"rank": "1"}, {"rank": True}, {"host": "\x1b[2Jn2"}, {"nonce": "short"}, {"about": []}])
def test_a_sealed_call_that_is_not_sound_gets_no_answer(bad, here, calls):
    datagrams = [recorded(here, CALL | bad), recorded(here, CALL | {"nonce": "c" * 32})]
    assert first_answer(here, *datagrams)["nonce"] == "c" * 32
    assert calls == []


def test_places_give_their_addresses_once():
    assert addresses_of(["ipc://@x", "tcp://10.0.0.1:20000", "tcp://10.0.0.1:20001", "tcp://[fd00::1]:1"]) == ["10.0.0.1", "fd00::1"]
    assert addresses_of(["ipc:///tmp/x"]) == ["127.0.0.1"]
