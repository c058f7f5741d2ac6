"""Measure real steps of a framework: PyTorch's DistributedDataParallel or FSDP2 trains a small model over a backend's library.

A step computes, too, so that its time is not set against a network's rate. What the step exchanges is recorded by PyTorch's own
execution-trace observer, and compared with the list of `workloads.frameworks`, operation by operation. Then the parameters after a step are
compared: with those of all other ranks, and with those of one process that trains on the whole batch.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.errors import CollbenchError, RunFailed
from collbench.machine.peak.ceiling import no_ceiling
from collbench.measuring.engine import Measured
from collbench.measuring.prepared_case import BackendContext, PreparedCase
from collbench.measuring.sampling import Measurement
from collbench.measuring.session import LaunchSession
from collbench.measuring.verification import DataError
from collbench.operations.data import Mismatch
from collbench.operations.unsupported import FrameworkUnsupported
from collbench.plugins.traces.c10d import dtype_in, dtype_of, kind_of, width_of
from collbench.plugins.traces.model import DTYPES, KINDS, NONE
from collbench.plugins.training.records import PartRow, StepRow
from collbench.plugins.training.step_task import LibraryTraining, LibraryWork, StepLoop, TrainingRun
from collbench.plugins.training.workloads.frameworks import DDP, ModelTensors, tensors_of
from collbench.plugins.training.workloads.registry import regimes
from collbench.plugins.training.workloads.shape import BUCKET
from collbench.plugins.training.workloads.step import Regime, Shape, Step, bytes_of
from collbench.reason import Fact, as_json, decode
from collbench.units import format_bytes, parse_size, plural

_CAPABLE = ("gloo", "torch-nccl")
_WARMUPS = 3  # after the first step DistributedDataParallel rebuilds its buckets, within the second one
_SEED = 0  # of the parameters before training
_SETTLE_S = 0.5  # torch 2.13 frees a stopped observer without regard to threads that still end an operation
_COPIES = 7  # of the parameters: two models with gradients, buckets, and the values that are compared
_NO_REFERENCE = "the step computes, too"
_OF_UPDATE = {2: 0.1, 4: 1e-3, 8: 1e-6}  # tolerated difference from one process, of the largest update, by bytes of an element


class Exchanged(Fact, frozen=True):
    """An operation of a step: its name, bytes as collbench counts the operation's size, and data type."""

    text = "{operation} of {size_bytes:bytes} {dtype}"
    operation: str
    size_bytes: int
    dtype: str


class TrafficEqual(Fact, frozen=True):
    """A framework exchanged exactly what the model of it lists: the same operations, sizes and types in the same order on all ranks.

    models, modelled_bytes   the regime that models this kind of training, and the bytes of its operations
    """

    framework: str
    operations: int
    size_bytes: int
    models: str
    modelled_bytes: int

    def render(self) -> str:
        """Return the sentence below a table."""
        recorded = f"{plural(self.operations, 'operation')} of {format_bytes(self.size_bytes)} in all"
        more = self.size_bytes - self.modelled_bytes
        modelled = "the same bytes"
        if more:
            modelled = f"{format_bytes(abs(more))} {'less' if more > 0 else 'more'}, because of padding"
        return f"recorded: {recorded}, byte for byte what {self.framework} is expected to exchange; {self.models} has {modelled}"


class TrafficDiffers(Fact, frozen=True):
    """A framework exchanged something else than the model of it lists: the first difference, by rank and by operation of the step."""

    framework: str
    rank: int
    at: int
    recorded: Exchanged | None
    expected: Exchanged | None

    def render(self) -> str:
        """Return the sentence below a table."""
        recorded, expected = (operation.render() if operation else "nothing" for operation in (self.recorded, self.expected))
        return (
            f"recorded traffic differs from what {self.framework} is expected to exchange, first at operation {self.at + 1} of a step "
            f"on rank {self.rank}: {recorded}, expected {expected}"
        )


Traffic = TrafficEqual | TrafficDiffers


@dataclass(frozen=True)
class FrameworkTraining(LibraryTraining):
    """A training that a framework runs, and the exchanges that are expected of it."""

    regime: Regime
    shape: Shape
    step: Step

    @property
    def expected(self) -> list[Exchanged]:
        """The operations of a step, in order."""
        return [
            Exchanged(exchange.operation, exchange.size_bytes, exchange.dtype)
            for exchange in self.step.exchanges
            for _ in range(exchange.times)
        ]

    @property
    def modelled_bytes(self) -> int:
        """The bytes of all operations of the regime that models this training, for the same model."""
        return sum(exchange.size_bytes * exchange.times for exchange in regimes()[self.regime.models].step(self.shape).exchanges)

    def refusal(self, backend: Backend) -> FrameworkUnsupported | None:
        """Return why the framework does not run over a backend, or None."""
        return None if backend.name in _CAPABLE else FrameworkUnsupported(self.regime.name, backend.name, _CAPABLE)

    def bytes_at(self, rank: int) -> int:
        """Return the bytes of host memory that a rank needs."""
        return _COPIES * self.shape.gradient_bytes

    def measure(self, run: TrainingRun, session: LaunchSession) -> StepRow | None:
        """Measure on all ranks. Return the row at rank 0, None elsewhere. Raises RunFailed if the framework fails."""
        import torch

        device = "cuda" if run.backend.name == "torch-nccl" else "cpu"
        seed = session.request.sweep.each[0].seed
        context = BackendContext(run.backend, {}, None)
        work = FrameworkWork(context, run.title, self.step, list(range(session.world.size)), self, device, seed)
        try:
            result = session.engine.measure(work, session.request.budget)
        except (CollbenchError, MemoryError):
            raise
        except Exception as error:
            raise RunFailed(f"{run.title} failed: {type(error).__name__}: {error}") from error
        assert isinstance(result, Measured)
        if result.measured is None or result.wrong is None:
            return None
        name = f"{'DistributedDataParallel' if self.regime.name == DDP.name else 'FSDP2'} of torch {torch.__version__}"
        traffic = compared(name, self.expected, result.gathered, self)
        flags = ["oversubscribed"] if session.crowded(run.backend, device) else []
        if isinstance(traffic, TrafficDiffers):
            flags.append("model_differs")
        row = run.measured(
            session, result, flags, result.wrong, result.checked, traffic=as_json(traffic),
            recorded=dict(Counter(exchange.render() for exchange in result.gathered[0])),
        )  # fmt: skip
        return row.replace(note=traffic.render(), parts=self.parts(), ceiling=no_ceiling(_NO_REFERENCE), device=device)

    def parts(self) -> tuple[PartRow, ...]:
        """Return the expected operations as a row's `parts`; neighbors of equal size are one."""
        parts = []
        for _, neighbors in groupby(self.step.exchanges, lambda exchange: (exchange.operation, exchange.size_bytes)):
            alike = list(neighbors)
            first = alike[0]
            last = alike[-1]
            moved = max(bytes_of(first, len(first.groups[0])))
            part = PartRow(
                what=first.what if first is last else f"{first.what} … {last.what}", ends=(first.what, last.what),
                operation=first.operation, groups=len(first.groups), group_ranks=len(first.groups[0]), size_bytes=first.size_bytes,
                times=len(alike), moved_bytes=moved * len(alike), time_s=None, busbw_bytes_per_s=None, ceiling=no_ceiling(_NO_REFERENCE),
            )  # fmt: skip
            parts.append(part)
        return tuple(parts)


class TorchTraining:
    """A model with an optimizer, and the batch of one or several ranks.

    seeds     of the batches, one per rank, that are trained on together
    regime    the framework that the ranks train with; None: one process
    """

    def __init__(self, shape: Shape, seeds: Sequence[int], device: str, regime: Regime | None = None) -> None:
        import torch

        tensors = tensors_of(shape)
        torch.manual_seed(_SEED)
        self.plain = _model_of(torch, shape, tensors).to(device)
        self._trained = self.plain
        if regime is not None and regime.name == DDP.name:
            # its default is not given, because that has a smaller first bucket
            bucket_mib = None if shape.bucket_bytes == parse_size(BUCKET) else shape.bucket_bytes / 2**20
            self._trained = torch.nn.parallel.DistributedDataParallel(self.plain, bucket_cap_mb=bucket_mib)
        elif regime is not None:
            self._trained = _sharded(self.plain)
        self._optimizer = torch.optim.SGD(self.plain.parameters(), lr=0.1)
        batches = [_batch(torch, shape, tensors, seed) for seed in seeds]
        self._tokens, self._targets = (torch.cat(parts).to(device) for parts in zip(*batches, strict=True))
        self._finish: Any = torch.cuda.synchronize if device == "cuda" else lambda: None

    def step(self) -> None:
        """Train one step, to the end of its work on the device."""
        self._optimizer.zero_grad()
        output = self._trained(self._tokens)
        loss: Any = (output - self._targets).square().sum(-1).mean()
        loss.backward()
        self._optimizer.step()
        self._finish()

    def values(self) -> list[Any]:
        """Return all parameters, whole and on the host. All ranks must call it, because FSDP2 gathers them."""
        parameters = self.plain.parameters()
        whole = (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter for parameter in parameters)
        return [parameter.detach().cpu().clone() for parameter in whole]


def _model_of(torch: Any, shape: Shape, tensors: ModelTensors) -> Any:
    """Return the model that `tensors` describes. It has no dropout, so that a step depends on the batch alone."""
    module: Any = torch.nn.Module

    class SmallModel(module):  # type: ignore[misc]
        """Encoder layers after an embedding; `left_over` has the parameters that fill no row of it."""

        def __init__(self) -> None:
            super().__init__()
            self.left_over = torch.nn.Parameter(torch.zeros(tensors.left_over)) if tensors.left_over else None
            self.embedding = torch.nn.Embedding(tensors.rows, shape.hidden)
            self.layers = torch.nn.ModuleList(
                torch.nn.TransformerEncoderLayer(shape.hidden, 1, 4 * shape.hidden, dropout=0.0, batch_first=True)
                for _ in range(tensors.layers)
            )

        def forward(self, tokens: Any) -> Any:
            """Return the output of the last layer."""
            hidden = self.embedding(tokens)
            if self.left_over is not None:
                hidden = hidden + self.left_over.sum()
            for layer in self.layers:
                hidden = layer(hidden)
            return hidden

    model: Any = SmallModel
    return model().to(getattr(torch, shape.dtype))


def _batch(torch: Any, shape: Shape, tensors: ModelTensors, seed: int) -> tuple[Any, Any]:
    """Return (tokens, targets) of one rank."""
    source = torch.Generator().manual_seed(seed)
    tokens = torch.randint(tensors.rows, (shape.microbatch, shape.sequence), generator=source)
    targets = torch.randn(shape.microbatch, shape.sequence, shape.hidden, generator=source)
    return tokens, targets.to(getattr(torch, shape.dtype))


def _sharded(model: Any) -> Any:
    """Return the model under FSDP2: a unit per layer, and the root."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def recorded_step(torch: Any, training: TorchTraining) -> list[Exchanged]:
    """Train a step, and return what this rank exchanged in it, in order."""
    from torch.profiler import ExecutionTraceObserver

    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        observer = ExecutionTraceObserver()
        observer.register_callback(str(path))
        observer.start()
        training.step()
        observer.stop()
        time.sleep(_SETTLE_S)
        observer.unregister_callback()
        return exchanged(json.loads(path.read_bytes())["nodes"])


def exchanged(nodes: Iterable[Mapping[str, Any]]) -> list[Exchanged]:
    """Return the communication operations among the nodes of an execution trace, in the order in which they were called."""
    operations = []
    for node in sorted(nodes, key=lambda node: int(node["id"])):
        name = str(node["name"])
        if name.startswith("c10d::"):
            elements = max(map(_elements, node["inputs"]["shapes"]), default=0)
            kind = kind_of(name)
            torch_dtype = dtype_in(node["inputs"]["types"])
            number, _ = dtype_of(torch_dtype)
            dtype = torch_dtype if number == NONE else DTYPES[number]
            operations.append(Exchanged(name if kind is None else KINDS[kind], elements * (width_of(torch_dtype) or 1), dtype))
    return operations


def _elements(shape: Any) -> int:
    """Return the elements of a tensor's shape, or of the tensors of a list; 0 for other values."""
    if shape and isinstance(shape[0], list):
        return sum(map(_elements, shape))
    return int(np.prod(shape)) if shape else 0


def compared(framework: str, expected: Sequence[Exchanged], by_rank: Sequence[Sequence[Exchanged]], training: FrameworkTraining) -> Traffic:
    """Return whether all ranks exchanged what is expected; else the first difference of the first rank that has one."""
    for rank, recorded in enumerate(by_rank):
        for index, (got, wanted) in enumerate(zip_longest(recorded, expected)):
            if got != wanted:
                return TrafficDiffers(framework, rank, index, got, wanted)
    total = sum(operation.size_bytes for operation in expected)
    return TrafficEqual(framework, len(expected), total, training.regime.models, training.modelled_bytes)


@dataclass
class FrameworkWork(LibraryWork):
    """The steps of a framework on this rank's device. recorded: what this rank exchanged in one of them."""

    framework: FrameworkTraining
    device: str
    seed: int
    recorded: Sequence[Exchanged] = ()

    def loop(self, world: World) -> StepLoop:
        """Train the first steps, and record one."""
        import torch

        with world.watchdog.phase(f"{self.title}: training"):
            training = TorchTraining(self.framework.shape, [self.seed + world.rank], self.device, self.framework.regime)
            loop = StepLoop(training.step, torch.distributed.barrier, world)
            loop.run(_WARMUPS)
            self.recorded = recorded_step(torch, training)
        return loop

    def gather(self, ready: PreparedCase, measured: Measurement | None, world: World) -> list[list[Exchanged]]:
        """Return what each rank exchanged, at rank 0."""
        all_ranks = world.gather([as_json(exchange) for exchange in self.recorded], f"{self.title}: gathering")
        return [[decode(exchange, Exchanged) for exchange in of_rank] for of_rank in all_ranks or []]

    def verify(self, ready: PreparedCase, world: World, calls: int) -> tuple[int, Sequence[DataError] | None]:
        """Compare the parameters after a step."""
        import torch

        with world.watchdog.phase(f"{self.title}: verifying"):
            wrong = _verify(torch, self.framework, world, self.device, self.seed)
        return 1, self.gathered(wrong, world)


def _verify(torch: Any, framework: FrameworkTraining, world: World, device: str, seed: int) -> list[Mismatch]:
    """Train one step from the start, and return the mismatches of this rank's parameters with rank 0's, and with those of one process.

    One process sums in another order, so that a difference of `_OF_UPDATE` of the largest update is tolerated. The parameters of all ranks
    must be equal bit for bit.
    """
    shape = framework.shape
    together = TorchTraining(shape, [seed + world.rank], device, framework.regime)
    alone = TorchTraining(shape, [seed + rank for rank in range(world.size)], device)
    before = _flat(torch, alone.values())
    together.step()
    alone.step()
    got = _flat(torch, together.values())
    right = _flat(torch, alone.values())
    digests = world.allgather(hashlib.sha256(got.view(torch.uint8).numpy().tobytes()).hexdigest(), "comparing the ranks' parameters")
    wrong = []
    if digests[world.rank] != digests[0]:
        what = "hash of the parameters, of rank 0 and of this rank"
        wrong.append(Mismatch(world.rank, 1, 0, digests[0][:8], digests[world.rank][:8], what))
    tolerance = _OF_UPDATE[shape.element_bytes] * float((right - before).double().abs().max())
    bad = torch.nonzero(~((got - right).double().abs() <= tolerance)).flatten()
    if len(bad):
        first = int(bad[0])
        wrong.append(Mismatch(world.rank, len(bad), first, f"{float(right[first])}", f"{float(got[first])}", "parameters of one process"))
    return wrong


def _flat(torch: Any, values: Sequence[Any]) -> Any:
    return torch.cat([value.flatten() for value in values])
