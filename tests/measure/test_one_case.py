"""A case is set up on all ranks in step: no rank continues after another has failed."""

from contextlib import nullcontext
from types import SimpleNamespace

from collbench.backends.backend import Group
from collbench.measure.prepared_case import BackendContext, prepare
from collbench.operations.builtin.allreduce import ALLREDUCE
from tests.helpers import make_case

EVERYONE = (0, 1)


class OtherRank:
    """A world in which another rank has the reason `reason` in the step `when`."""

    def __init__(self, when, reason):
        self.when, self.reason, self.watchdog = when, reason, SimpleNamespace(phase=lambda name: nullcontext())

    def first_error(self, mine, what):
        return mine or (self.reason if what.endswith(self.when) else None)


def stage(calls):
    def bind(*_):
        calls.append("bind")
        raise AttributeError("the library has no ncclAllReduce")

    buffers = SimpleNamespace(fill=lambda slot, for_check: calls.append("fill"))
    backend = SimpleNamespace(api="mpi", passes_messages=False, ranks=2, allocate=lambda *_: buffers, bind=bind, clock=None)
    return BackendContext(backend, {EVERYONE: Group(EVERYONE, (0,))}, None)


def test_calls_on_gpus_are_bound_only_when_every_rank_has_memory():
    calls = []
    assert (
        prepare(ALLREDUCE, make_case(device="cuda"), stage(calls), OtherRank("allocating", "rank 1 has none left"))
        == "rank 1 has none left"
    )
    assert calls == ["fill"]


def test_what_the_library_lacks_is_the_reason_at_every_rank():
    calls = []
    assert prepare(ALLREDUCE, make_case(), stage(calls), OtherRank("nothing", "")) == "the library has no ncclAllReduce"
    assert prepare(ALLREDUCE, make_case(), stage(calls), OtherRank("binding its calls", "rank 1 lacks it")) in {
        "the library has no ncclAllReduce", "rank 1 lacks it",
    }  # fmt: skip
    assert calls == ["fill", "bind"] * 2
