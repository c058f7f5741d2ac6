"""A case is set up on all ranks in step: no rank continues after another has failed."""

from contextlib import nullcontext
from types import SimpleNamespace

from collbench.backends.backend import Group
from collbench.measure.prepared_case import BackendContext, prepare
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.unsupported import CaseFailed
from collbench.reason import as_json
from tests.helpers import make_case

EVERYONE = (0, 1)


class OtherRank:
    """Rank 0 of a world in which rank 1 fails in the step `when`."""

    rank = 0

    def __init__(self, when, failure=None):
        self.when, self.failure, self.watchdog = when, failure, SimpleNamespace(phase=lambda name: nullcontext())

    def first_error(self, mine, what):
        return mine or (as_json(self.failure) if what.endswith(self.when) else None)


def stage(calls):
    def bind(*_):
        calls.append("bind")
        raise AttributeError("the library has no ncclAllReduce")

    buffers = SimpleNamespace(fill=lambda slot, for_check: calls.append("fill"))
    backend = SimpleNamespace(api="mpi", passes_messages=False, ranks=2, allocate=lambda *_: buffers, bind=bind, clock=None)
    return BackendContext(backend, {EVERYONE: Group(EVERYONE, (0,))}, None)


def test_calls_on_gpus_are_bound_only_when_every_rank_has_memory():
    calls = []
    other = CaseFailed("allocation", 1, "no memory is left")
    assert prepare(ALLREDUCE, make_case(device="cuda"), stage(calls), OtherRank("allocating", other)) == other
    assert calls == ["fill"]


def test_what_the_library_lacks_is_the_reason_at_every_rank():
    calls = []
    own = CaseFailed("binding", 0, "the library has no ncclAllReduce")
    assert prepare(ALLREDUCE, make_case(), stage(calls), OtherRank("nothing")) == own
    assert prepare(ALLREDUCE, make_case(), stage(calls), OtherRank("binding its calls", CaseFailed("binding", 1, "x"))) == own
    assert calls == ["fill", "bind"] * 2
