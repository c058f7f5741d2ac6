"""What one kernel was measured to do on one GPU, or between two. No statistics: the samples as they came."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One kernel of cuda_kernels/, timed and checked.

    kernel              its name: "copy", "peer_read"; "copy_engine" is the driver's own copy between two GPUs
    gpus                the GPUs by CUDA's index: the one it runs on, then the one whose memory it reaches
    size_bytes          N of cuda_kernels/README.md; 0 where the figure is a latency
    moved_bytes         what one run moves as the floor counts it: read plus written, or over the link in one direction; 0: a latency
    seconds             of one run, one round trip or one load, in the order measured; empty: not measured, and `why` says why not
    floor_bytes_per_s   the rate that the hardware allows, None where none is known or none applies
    floor               what that rate is and where it comes from, or why there is none
    wrong               elements (of `read_memory`: sums; of a chase: ends) that were not what they had to be; None: not checked
    """

    kernel: str
    gpus: tuple[int, ...]
    size_bytes: int = 0
    moved_bytes: int = 0
    seconds: tuple[float, ...] = ()
    floor_bytes_per_s: float | None = None
    floor: str = ""
    wrong: int | None = None
    why: str | None = None
