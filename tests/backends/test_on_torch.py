"""How torch is loaded, without looks for garbage meanwhile and exempt from them afterwards; and where its store listens."""

import gc
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from collbench.addresses import is_own
from collbench.backends import torch_distributed
from collbench.backends.torch_distributed import load_torch, store_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("looked", [True, False])
def test_the_collector_is_as_it_was_and_looks_at_torch_no_more(monkeypatch, looked):
    torch, calls = ModuleType("torch"), []
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name in ("enable", "disable", "freeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(gc, "isenabled", lambda: looked)
    assert load_torch() is torch
    assert calls == ["disable", *(["enable"] if looked else []), "freeze"]


def test_where_it_does_not_load_the_collector_looks_again(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError):
        load_torch()
    assert gc.isenabled()


# A process of its own: torch must not be loaded into that of the tests.
STORE = """
import json, sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
import torch.distributed as dist
from collbench.backends.torch_distributed import store_of

address = sys.argv[1]
world = SimpleNamespace(rank=0, size=2, members=[SimpleNamespace(address=address)], broadcast=lambda value, what: value)
store = store_of("gloo", world, timedelta(seconds=10))
other = dist.TCPStore(address, store.port, None, is_master=False, timeout=timedelta(seconds=10))
other.set("key", "value")
lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]]
listening = [fields[1] for fields in lines if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == store.port]  # TCP_LISTEN
print(json.dumps([store.get("key").decode(), [each.partition(":")[0] for each in listening]]))
"""


def world_at(address):
    """A world of one rank at this address."""
    return SimpleNamespace(rank=0, size=2, members=[SimpleNamespace(address=address)], broadcast=lambda value, what: value)


@pytest.mark.system
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch beside this Python")
@pytest.mark.parametrize(("address", "raw"), [("127.0.0.1", "0100007F"), ("::1", "00000000000000000000000001000000")])
def test_the_store_listens_at_one_address(address, raw):
    if not is_own(address):
        pytest.skip(f"{address} is not an address of this machine")
    done = subprocess.run([sys.executable, "-c", STORE, address], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == ["value", [raw]]


@pytest.mark.contract
@pytest.mark.parametrize(("takes", "how"), [("libuv", {}), ("sockets", {"use_libuv": False}), ("none", None)])
def test_a_torch_that_takes_no_listening_socket_opens_its_store_itself(monkeypatch, takes, how):
    made = []

    class Store:
        def __init__(self, host, port, ranks, master_listen_fd=None, **options):
            given = master_listen_fd is not None
            if given and (takes == "none" or (takes == "sockets" and "use_libuv" not in options)):
                with suppress(OSError):
                    os.close(master_listen_fd)
                raise RuntimeError("not supported")
            self.port = port
            made.append((given, options.get("use_libuv", True)))

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=SimpleNamespace(TCPStore=Store)))
    monkeypatch.setattr(torch_distributed, "listen_at", lambda address, backlog: socket.create_server((address, 0)))
    store = store_of("gloo", world_at("127.0.0.1"), timedelta(seconds=1))
    assert made == [(how is not None, (how or {}).get("use_libuv", True))]
    assert (store.port > 0) == (how is not None)
