"""A recorded step on fewer ranks, with the parallel dimensions of the job: the data-parallel dimension becomes shorter, others stay whole.

The groups of a job with several dimensions (tensor, data, pipeline parallel) form a mesh: rank = sum of coordinate × stride, and a group
has all ranks that differ only in some of the coordinates. The dimensions are found from the groups of the exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.traces.recording import Recording, ShrunkTo
from collbench.plugins.training.workloads.step import Action, Compute, Exchange, Start, Step, Wait, operation_of
from collbench.units import plural

# Operations of data-parallel training. Their buffers are those of the model, so that fewer ranks keep the size of the whole buffer: an
# all-gather of shards has larger shards then.
_DATA_PARALLEL = frozenset({"allreduce", "allgather", "reducescatter", "broadcast", "reduce", "barrier", "gather", "scatter"})


class Dimension(msgspec.Struct, frozen=True):
    """A dimension of the mesh: the ranks of two neighboring coordinates in it differ by `stride`."""

    stride: int
    size: int

    def of(self, rank: int) -> int:
        """Return the coordinate of a rank."""
        return rank // self.stride % self.size


def shrunk(recording: Recording, ranks: int) -> Recording:
    """Return the step on fewer ranks: the outermost dimension in which only data-parallel collectives run becomes shorter.

    An exchange keeps its size by collbench's convention: the whole buffer of an all-gather, reduce-scatter or all-reduce. Ranks keep their
    computing. Raises UsageError if the number of ranks does not divide, the groups are not a mesh, or no dimension can become shorter.
    """
    whole = recording.ranks
    if ranks > whole:
        raise UsageError(f"--ranks {ranks}: the trace is of {whole} ranks, and a replay can have as many or fewer")
    if whole % ranks:
        divisors = ", ".join(str(number) for number in range(2, whole) if whole % number == 0)
        raise UsageError(f"--ranks {ranks} does not divide the {whole} ranks of the trace: choose from {divisors or whole}")
    factor = whole // ranks
    mesh = mesh_of(recording.step.exchanges, whole)
    dimension = _dimension(mesh, recording.step.exchanges, factor, ranks)
    kept = [rank for rank in range(whole) if dimension.of(rank) < dimension.size // factor]
    number = {rank: place for place, rank in enumerate(kept)}
    exchanges: list[Exchange] = []
    index: dict[int, int] = {}
    for place, exchange in enumerate(recording.step.exchanges):
        groups = [tuple(number[rank] for rank in group if rank in number) for group in exchange.groups]
        shorter = tuple(group for group in groups if len(group) > 1)
        if shorter:
            index[place] = len(exchanges)
            root = exchange.root if exchange.root is None or exchange.root < len(shorter[0]) else 0
            exchanges.append(replace(exchange, groups=shorter, root=root))
    timeline: list[tuple[Action, ...]] = []  # of each rank, with the exchanges that are left, by their new numbers
    for rank in kept if recording.step.timeline else ():
        actions: list[Action] = []
        for action in recording.step.timeline[rank]:
            if isinstance(action, Compute):
                actions.append(action)
            elif action.exchange in index:
                actions.append((Start if isinstance(action, Start) else Wait)(index[action.exchange]))
        timeline.append(tuple(actions))
    step = Step(tuple(exchanges), recording.step.payload_bytes, recording.step.note, tuple(timeline))
    recorded = tuple(recording.exchange_s[place] for place in index) if recording.exchange_s else ()
    note = ShrunkTo(whole, ranks, dimension.size, dimension.size // factor, dimension.stride)
    return replace(recording, step=step, ranks=ranks, exchange_s=recorded, step_time_s=None, notes=(*recording.notes, note))


def mesh_of(exchanges: Sequence[Exchange], ranks: int) -> tuple[Dimension, ...]:
    """Return the dimensions of the mesh, innermost first. Raises UsageError, with a group, if the groups are not those of a mesh."""
    groups = {group for exchange in exchanges if not operation_of(exchange).pair for group in exchange.groups}
    cuts = {1, ranks}
    irregular = []
    for group in sorted(groups):
        ordered = sorted(group)
        stride = ordered[1] - ordered[0] if len(ordered) > 1 else 1
        if ordered == list(range(ordered[0], ordered[0] + stride * len(ordered), stride)) and ranks % (stride * len(ordered)) == 0:
            cuts |= {stride, stride * len(ordered)}
        else:
            irregular.append(group)
    chain = sorted(cuts)
    if any(above % below for below, above in pairwise(chain)):
        raise _not_a_mesh(next(iter(sorted(groups))), "their sizes and strides do not fit together")
    mesh = tuple(Dimension(below, above // below) for below, above in pairwise(chain))
    for group in (*irregular, *sorted(groups)):
        free = [dimension for dimension in mesh if len({dimension.of(rank) for rank in group}) > 1]
        size = 1
        for dimension in free:
            size *= dimension.size
        if size != len(group):
            raise _not_a_mesh(group, "it has not all ranks of its dimensions")
    return mesh


def _not_a_mesh(group: Sequence[int], why: str) -> UsageError:
    some = ", ".join(map(str, group[:8])) + (" …" if len(group) > 8 else "")
    return UsageError(f"--ranks: the groups of the trace are not a regular mesh (group {some}: {why}): replay it on the recorded ranks")


def _dimension(mesh: Sequence[Dimension], exchanges: Sequence[Exchange], factor: int, ranks: int) -> Dimension:
    """Return the outermost dimension that can become shorter. Raises UsageError with the reason for each, if none can."""
    reasons = []
    for dimension in reversed(mesh):
        across = {each.operation for each in exchanges if any(len({dimension.of(rank) for rank in group}) > 1 for group in each.groups)}
        name = f"the dimension of {dimension.size} ranks (stride {dimension.stride})"
        if dimension.size % factor or dimension.size == factor:
            rest = " and a rest" if dimension.size % factor else ""
            reasons.append(f"{name} would have {plural(dimension.size // factor, 'rank')}{rest}")
        elif not across:
            reasons.append(f"{name} has no communication")
        elif across - _DATA_PARALLEL:
            reasons.append(f"{name} has {', '.join(sorted(across - _DATA_PARALLEL))}")
        else:
            return dimension
    raise UsageError(f"--ranks {ranks}: no data-parallel dimension can become shorter: {'; '.join(reasons)}: use the recorded ranks")
