"""Why a test case cannot run: one fact per kind of reason, for rows marked n/a.

An operation's `needs` and a backend's `supports` return one of these, or a sentence, which becomes a `Text`.
"""

# ruff: noqa: D102 - `render`, `cause` and `remedy` are described in the base classes
from __future__ import annotations

from typing import Any, Literal

from collbench.launch.mpi import BackendStartFailed
from collbench.reason import Fact, Text, decode_or_text
from collbench.units import format_bytes, listed


class TooFewRanks(Fact, frozen=True):
    """The operation needs more ranks than the launch or the group has."""

    text = "{operation} needs {needed:rank}"
    operation: str
    needed: int = 2


class NotPowerOfTwo(Fact, frozen=True):
    """The operation needs a number of ranks that is a power of two."""

    text = "{operation} needs 2, 4, 8, 16 … ranks, not {ranks}"
    operation: str
    ranks: int


class NoInPlaceForm(Fact, frozen=True):
    """The operation has no in-place form."""

    text = "{operation} has no in-place form: omit --in-place"
    operation: str


class RedopUndefined(Fact, frozen=True):
    """The reduction op is not defined for the data type: bitwise ops for floats, the average for integers."""

    redop: str
    dtype: str

    def render(self) -> str:
        if self.redop == "avg":
            return f"avg of {self.dtype}: libraries define the average of integers differently"
        return f"{self.redop} is defined for integers only, not for {self.dtype}"


class AverageNotRepresentable(Fact, frozen=True):
    """The data type cannot hold 1/n, by which the library multiplies to average over n ranks."""

    text = "avg over {ranks} ranks: {dtype} cannot hold 1/{ranks} (smallest: 1/{smallest_denominator})"
    dtype: str
    ranks: int
    smallest_denominator: int


class DeviceUnsupported(Fact, frozen=True):
    """The backend does not run on this device here."""

    backend: str
    device: str
    devices: tuple[str, ...]
    cause: str = ""

    def render(self) -> str:
        return self.cause or f"{self.backend} runs on {listed(self.devices)} here, not on {self.device}"


class OperationUnsupported(Fact, frozen=True):
    """The backend's library does not have the operation, or only one of its forms."""

    backend: str
    operation: str
    form: Literal["", "in place", "out of place"] = ""
    note: str = ""

    def render(self) -> str:
        if self.form:
            return f"{self.backend} supports {self.operation} {self.form} only"
        return f"{self.backend} does not support {self.operation}{': ' * bool(self.note)}{self.note}"


class StartUnsupported(Fact, frozen=True):
    """The backend cannot start the operation and wait for it later."""

    text = "{backend} cannot start {operation} without waiting for it"
    backend: str
    operation: str


class PersistentUnsupported(Fact, frozen=True):
    """The library has no persistent form of the operation; `function` is the one that it lacks, if it has persistent calls at all."""

    library: str
    operation: str
    function: str = ""

    def render(self) -> str:
        return f"{self.library} has no persistent form of {self.operation}{f' ({self.function})' if self.function else ''}"


class TimelineUnsupported(Fact, frozen=True):
    """The backend cannot run a step in which ranks compute while they communicate."""

    text = "{backend} cannot run computing and communication together, with one rank per process: choose another backend"
    backend: str


class PairsOnly(Fact, frozen=True):
    """The backend connects two ranks at a time, so it has point-to-point operations only."""

    text = "{backend} connects pairs of ranks: it supports point-to-point operations only"
    backend: str


class RedopUnsupported(Fact, frozen=True):
    """The library does not have the reduction op, or not in this operation."""

    library: str
    redop: str
    operation: str = ""
    supported: tuple[str, ...] = ()

    def render(self) -> str:
        where = f" in {self.operation}" if self.operation else ""
        return f"{self.library} does not support {self.redop}{where}" + (f" (only {listed(self.supported)})" if self.supported else "")


class DtypeUnsupported(Fact, frozen=True):
    """The library cannot reduce or send elements of the data type."""

    library: str
    dtype: str
    what: Literal["reduce", "send"] = "reduce"
    operation: str = ""

    def render(self) -> str:
        where = f" with {self.operation}" if self.operation else ""
        return f"{self.library} cannot {self.what} {self.dtype}{where}"


class ArchitectureUnsupported(Fact, frozen=True):
    """The GPU's compute capability is too low for reductions of the data type."""

    text = "{library} reduces {dtype} on compute capability {needed} and higher only; this GPU is {architecture}"
    library: str
    dtype: str
    architecture: str
    needed: str


class VersionNeeded(Fact, frozen=True):
    """The loaded library is older than the first version that has the feature."""

    text = "{feature} needs {library} {needed} or newer; {loaded} is loaded"
    library: str
    feature: str
    needed: str
    loaded: str


class Fp8FormatUnsupported(Fact, frozen=True):
    """The GPU's 8-bit floats have another format than the OCP standard's, which collbench's data has. architecture "": unknown."""

    library: str
    dtype: str
    architecture: str

    def render(self) -> str:
        have = f"this GPU is {self.architecture}" if self.architecture else "this GPU's architecture is unknown"
        return f"{self.library} reduces {self.dtype} in the OCP format on gfx950 and gfx12 only; {have}"


class DeviceApiUnsupported(Fact, frozen=True):
    """The library has a device API, but collbench has no kernel that makes the operation's calls."""

    library: str
    registration: str
    operation: str
    loaded: str

    def render(self) -> str:
        calls = "network calls of kernels (GIN)" if self.registration == "gin" else "calls of kernels"
        return f"collbench has no kernel for {self.operation}: {self.library} {self.loaded} offers {calls} through its device API only"


class OptionUnsupported(Fact, frozen=True):
    """The option does not apply to this backend, operation or device."""

    options: tuple[str, ...]
    subject: str
    only_for: str

    def render(self) -> str:
        verb = "apply" if len(self.options) > 1 else "applies"
        return f"{listed(self.options)} {verb} to {self.only_for} only, not to {self.subject}"


class LimitExceeded(Fact, frozen=True):
    """The value is higher than the library or collbench supports."""

    library: str
    what: str
    most: int
    bytes: bool = False

    def render(self) -> str:
        return f"{self.library} supports at most {format_bytes(self.most) if self.bytes else f'{self.most:,}'} {self.what}"


class GroupOrderUnsupported(Fact, frozen=True):
    """The library orders a group's parts by rank, and this group lists its ranks in another order."""

    text = "{library} orders the parts of {operation} by rank; this group has a different order"
    library: str
    operation: str


class SharedMemoryTooSmall(Fact, frozen=True):
    """The windows of one-sided operations need more shared memory than is free."""

    path: str
    windows: int
    needed_bytes: int
    free_bytes: int

    def render(self) -> str:
        windows = "one window needs" if self.windows == 1 else f"{self.windows} windows need"
        memory = f"{format_bytes(self.needed_bytes)} of {self.path}, {format_bytes(self.free_bytes)} is free"
        return f"{windows} {memory}: enlarge it (docker run --shm-size) or use smaller sizes"


class ClockUnsupported(Fact, frozen=True):
    """`--slowed` cannot delay the backend, because it needs blocking calls and CLOCK_MONOTONIC."""

    backend: str
    enqueues: bool

    def render(self) -> str:
        why = "only enqueues its work" if self.enqueues else "has its own clock"
        return f"--slowed needs blocking calls and CLOCK_MONOTONIC; {self.backend} {why}"


class CaseFailed(Fact, frozen=True):
    """A rank could not allocate, bind or call a test case.

    stage   what failed; rank: of the process
    reason  the error of the library, or of the operating system
    """

    text = "{reason}"
    stage: Literal["groups", "allocation", "binding", "first call"]
    rank: int
    reason: str


class HostMemoryNeeded(Fact, frozen=True):
    """A parameter server, or asynchronous training, needs a backend in host memory."""

    needed_by: Literal["server", "asynchronous training"]

    def render(self) -> str:
        if self.needed_by == "server":
            return "a server adds in host memory: use a backend on the CPU (--device cpu)"
        return "asynchronous training is measured in host memory: use --device cpu"


class ServersUnsupported(Fact, frozen=True):
    """The backend cannot carry this training with parameter servers.

    defect   it simulates its ranks, its server cannot wait for the next worker, it has no asynchronous updates, or its messages are small
    capable  the backends that can
    """

    backend: str
    defect: Literal["simulated", "no waiting", "asynchronous", "message size"]
    capable: tuple[str, ...] = ()

    def render(self) -> str:
        use = " or ".join(self.capable)
        return {
            "simulated": f"{self.backend} simulates its ranks in one process, where no rank can be ahead: use {use}",
            "no waiting": f"on {self.backend} a server cannot wait for the next worker: use {use}",
            "asynchronous": f"{self.backend}'s parameter servers support --update synchronous and sharded: for asynchronous use {use}",
            "message size": f"{self.backend} sends a bucket as one message, and gRPC messages must be below 2 GiB: use a smaller --bucket",
        }[self.defect]


class FrameworkUnsupported(Fact, frozen=True):
    """The backend is not one through which the framework of this workload communicates; `capable` are those."""

    text = "{workload} runs PyTorch itself, which does not communicate over {backend}: use {capable:or}"
    workload: str
    backend: str
    capable: tuple[str, ...]


# All of them, for decoding what other ranks send and what a run folder holds.
Unsupported = (
    TooFewRanks | NotPowerOfTwo | NoInPlaceForm | RedopUndefined | AverageNotRepresentable | DeviceUnsupported | OperationUnsupported
    | PairsOnly | RedopUnsupported | DtypeUnsupported | ArchitectureUnsupported | VersionNeeded | OptionUnsupported | LimitExceeded
    | GroupOrderUnsupported | SharedMemoryTooSmall | ClockUnsupported | CaseFailed | StartUnsupported | PersistentUnsupported
    | Fp8FormatUnsupported | DeviceApiUnsupported | HostMemoryNeeded | ServersUnsupported | TimelineUnsupported | BackendStartFailed
    | Text
)  # fmt: skip


def decode_reason(value: Any) -> Fact | None:
    """Return the reason that another rank sent, or that a run folder holds; a sentence becomes a `Text`."""
    return None if value is None else decode_or_text(value, Unsupported)
