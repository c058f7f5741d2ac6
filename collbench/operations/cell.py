"""The cell: one thing to measure, before anything about it is known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from collbench.operations.dtypes import DType
from collbench.operations.split import Split
from collbench.operations.traffic import Traffic


@dataclass(frozen=True)
class Cell:
    """operation × backend × device × dtype × redop × mode × placing × root × buffers × window × size.

    size_bytes   what the user asked for, rounded down to whole elements (nccl-tests' size)
    redop, root  None where the operation has none
    in_place     None: out of place where the library has it, else in place (told on the row)
    buffers      "fixed" or "rotating"; window: messages in flight (p2p bandwidth), else None
    registration how the library knows the buffers: "none", "registered", "symmetric"; None where it has no such thing
    algorithm, protocol   what the library is told to use; None: its own choice
    split        how the ranks fall into groups that run at the same time; None: one group of all
    traffic      who sends how much to whom (alltoallv), else None; streams: TCP connections per pair (socket), else None
    flags        words already known before measuring, such as "size_rounded"
    """

    operation: str
    backend: str
    dtype: DType
    size_bytes: int
    device: str = "cpu"
    redop: str | None = None
    root: int | None = None
    mode: str = "isolated"
    in_place: bool | None = None
    buffers: str = "fixed"
    window: int | None = None
    seed: int = 0
    flags: tuple[str, ...] = field(default=())
    registration: str | None = None
    algorithm: str | None = None
    protocol: str | None = None
    split: Split | None = None
    traffic: Traffic | None = None
    streams: int | None = None

    def placed(self, in_place: bool) -> Cell:
        """The same cell with its placing decided."""
        return replace(self, in_place=in_place)

    def title(self) -> str:
        """The cell in a few words, for progress and errors: "allreduce 64 MiB on mpi (float32, sum)", "barrier on mpi"."""
        from collbench.units import format_size

        root = f"root {self.root}" if self.root is not None else None
        words = [
            self.dtype.name,
            self.redop,
            root,
            self.algorithm,
            self.protocol,
            str(self.split or ""),
            self.traffic and self.traffic.name,
        ]
        about = ", ".join(word for word in words if word)
        if not self.size_bytes:
            return f"{self.operation} on {self.backend}"
        return f"{self.operation} {format_size(self.size_bytes)} on {self.backend} ({about})"
