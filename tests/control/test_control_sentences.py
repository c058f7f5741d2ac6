"""The control plane: hangs and their causes, refused connections, errors of ranks that do not meet."""

import pytest

from collbench.control.addresses import routes_to
from collbench.control.members import Member, addressed
from collbench.control.path import PathFault
from collbench.control.security import secret_of
from collbench.control.server import unreadable
from collbench.control.tree import ranks_apart
from collbench.control.wire import Malformed, parsed
from collbench.errors import Interrupted
from collbench.launch.info import LaunchInfo
from tests.helpers import said


def path(problem, **more):
    return PathFault(problem, "node0", "node1", 1000, 1500, 12, 41, 4, 1, **more)


def one_secret(env):
    return secret_of(LaunchInfo("torchrun", 0, 2, 0, 1, "tcp://node0", "token"), env)


def read(*frames):
    try:
        return str(parsed(frames))
    except Malformed as error:
        return unreadable(str(error))


WORDS = {
    "ranks apart": (lambda: ranks_apart("rank 1", ("opening gloo", 7), "rank 0", ("looking for GPUs", 7)),
        "rank 1 is at 'opening gloo' while rank 0 is at 'looking for GPUs': an error occurred on one of them alone, or they were "
        "started with other arguments"),
    "ranks apart in steps of one name": (lambda: ranks_apart("rank 1", ("gathering", 3), "rank 0", ("gathering", 4)),
        "rank 1 is at 'gathering' (step 3) while rank 0 is at 'gathering' (step 4): an error occurred on one of them alone, or they "
        "were started with other arguments"),
    "no family": (lambda: addressed([
        Member(0, "a", 0, 1, ()), Member(1, "b", 0, 1, (), routes=(("10.0.0.2", "10.0.0.1"),)),
        Member(2, "c", 0, 1, (), routes=(("fd00::3", "fd00::1"),)),
    ]),
        "the hosts have no address family in common: rank 2 (c, pid 1) cannot reach rank 0 over IPv4, and rank 1 (b, pid 1) cannot "
        "reach rank 0 over IPv6; give every host addresses of one family"),
    "unresolved": (lambda: routes_to("tcp://no.such.host.invalid"),
        "rank 0's host 'no.such.host.invalid' does not resolve to an address on this host: set MASTER_ADDR to its address"),
    "short secret": (lambda: one_secret({"COLLBENCH_SECRET": "short"}),
        "the secret in COLLBENCH_SECRET has 5 characters, but needs 16: make one with openssl rand -hex 16"),
    "no secret": (lambda: one_secret({}),
        "HOME is not set, so the secret with which ranks join cannot be stored: set COLLBENCH_SECRET to the same 16 or more "
        "characters for all ranks (openssl rand -hex 16)"),
    "unreadable": (read,
        "a rank sent a message that cannot be read (not a valid message of 0 frames): install the same build on all nodes"),
    "unreadable version": (lambda: read(b"hello", b"0"),
        "a rank sent a message that cannot be read (not a message of this version): install the same build on all nodes"),
    "unreadable step": (lambda: read(b"m\x92\xa5grant\xa1x"),
        "a rank sent a message that cannot be read (Expected `int`, got `str` - at `$[1]`): install the same build on all nodes"),
    "interrupted": (lambda: Interrupted(15), "interrupted by SIGTERM"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call, text):
    assert said(call) == text
