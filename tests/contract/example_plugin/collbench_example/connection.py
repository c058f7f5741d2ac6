"""A backend: messages between the two ranks of a pair through Python's own multiprocessing.connection."""

import ctypes
import secrets
from multiprocessing.connection import Client, Listener
from platform import python_version

from collbench.backends.backend import Available
from collbench.backends.host import HostBackend
from collbench.backends.messages import MessageBinding
from collbench.operations.program import PythonCall


class Messages:  # the calls of a pair; a send returns when the system has its bytes, a posted receive reads when it is waited for
    def __init__(self, connection):
        self.connection, self.due = connection, []

    def call(self, what, *words):  # words: address, bytes
        part = [memoryview((ctypes.c_char * words[1]).from_address(words[0])).cast("B")] if words else []
        send, take = self.connection.send_bytes, self.connection.recv_bytes_into
        does = {"send": send, "receive": take, "post_send": send, "post_receive": self.due.append}
        does["waitall"] = lambda: [take(self.due.pop(0)) for _ in self.due[:]]
        return PythonCall(what, lambda: does[what](*part))


class ConnectionBackend(HostBackend):  # buffers in the host's memory, filled and verified by collbench; calls that block
    name = api = "connection"  # an operation may have calls for this api (`steps`)
    passes_messages = True  # it supports every operation that is defined by messages

    @classmethod
    def probe(cls):
        return Available(f"multiprocessing.connection of Python {python_version()}")

    def open(self, world, settings):
        self.rank, self.ranks, key = world.rank, world.size, secrets.token_hex()
        with Listener((world.me.address, 0), backlog=world.size, authkey=key.encode()) as listener:
            peers = world.allgather([listener.address[1], key], "listening for connections")
            incoming = [listener.accept() for _ in range(self.rank)]  # each lower rank connects to each higher one
        out = {each.rank: (each.address, *peers[each.rank]) for each in world.members[self.rank + 1 :]}
        out = {rank: Client((host, port), authkey=key.encode()) for rank, (host, port, key) in out.items()}
        for each in out.values():
            each.send(self.rank)
        self.to = out | {each.recv(): each for each in incoming}

    def communicator(self, ranks):  # the `handle` of a group
        return self.to

    def binding(self, group, buffers, slot):  # the x of the operations' steps
        return MessageBinding(Messages(group.handle[group.ranks[1 - group.driven[0]]]), buffers, slot)

    def supports(self, operation, case):  # the reason why not, or None
        return None if operation.pair and not operation.bidirectional else "connection supports pairs of ranks, in one direction at a time"

    def versions(self):
        return {"python": python_version()}

    def close(self):
        for each in self.to.values():
            each.close()
