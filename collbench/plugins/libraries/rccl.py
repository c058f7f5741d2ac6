"""RCCL, AMD's library with NCCL's interface, on HIP: the calls of the backend nccl, with RCCL's own facts.

It was written from the headers of RCCL and HIP, and has run on a test double only, never on hardware: each row has the flag
"not_run_on_hardware". Data is filled and verified by copies to the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar

from msgspec.structs import replace

from collbench.backends.backend import Available, Group, Unavailable
from collbench.backends.host import AnyBuffers
from collbench.backends.nccl.backend import Load, NcclBackend
from collbench.backends.nccl.library import CHOSEN, DATATYPES, LibraryDialect, NcclLibrary, Word, load
from collbench.device.platform import GpuPlatform
from collbench.operations.case import Case
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import NonBlocking
from collbench.operations.unsupported import Fp8FormatUnsupported, OptionUnsupported, StartUnsupported
from collbench.plugins.libraries.hip import hip
from collbench.reason import Fact

# Sources: src/nccl.h.in of ROCm/rccl (commit 0cbce2a7, 2024-10-24: 2.21.5) and of ROCm/rocm-systems (projects/rccl, commit 03a89144), and
# the history of both for the versions. A test compares the numbers with the facts in tests/fake_gpu/facts.
_FP8_SINCE = (2, 20)  # "Enable fp8 support", in RCCL 2.20.5 of ROCm 6.2
OWN_DATATYPES: Mapping[str, Word] = {
    **DATATYPES,
    "float8_e4m3fn": Word("ncclFloat8e4m3", 10, _FP8_SINCE),  # ncclFp8E4M3 in 2.20 and 2.21
    "float8_e5m2": Word("ncclFloat8e5m2", 11, _FP8_SINCE),
}
OWN_NAMES = {"ncclAlltoAll": "ncclAllToAll"}  # since 2.7, before NCCL had one of another name
# Where the 8-bit floats are those of the OCP standard, as collbench's data is. gfx942 and older have others (FNUZ) in hardware, which
# rccl_float8.h and hip_fp8.h use there.
_OCP_FP8 = re.compile(r"gfx(?:95\d|12\d\d)")
_INSTALL = f"install ROCm's package rccl, load your site's module, or set {CHOSEN} to the library's path"


def fp8_on_hip(library: str, dtype: str, arch: str) -> Reason | None:
    """Return why RCCL cannot reduce the OCP standard's 8-bit floats on this GPU ("gfx942"), or None."""
    return None if _OCP_FP8.fullmatch(arch) else Fp8FormatUnsupported(library, dtype, arch)


RCCL = LibraryDialect("RCCL", "librccl.so.1", OWN_DATATYPES, fp8_on_hip, _INSTALL, aliases=OWN_NAMES)


def load_rccl(env: Mapping[str, str]) -> NcclLibrary:
    """Return the library in COLLBENCH_NCCL, else the one that this process has loaded, else the system's. Raises NcclNotFound."""
    return load(env, RCCL)


class RcclBackend(NcclBackend):
    """The backend rccl, on the memory of AMD GPUs. Not run on hardware."""

    name = "rccl"
    uses_nccl = False  # the reader of NCCL's log has not been tried on that of a measurement
    flags = ("not_run_on_hardware",)
    dialect: ClassVar[LibraryDialect] = RCCL
    platform: ClassVar[Callable[[], GpuPlatform]] = staticmethod(hip)
    load: ClassVar[Load] = staticmethod(load_rccl)

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether HIP shows a GPU here and RCCL loads."""
        answer = super().probe()
        if isinstance(answer, Unavailable):
            return answer
        return replace(answer, about=f"{answer.about}, not run on hardware")

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why this RCCL version cannot run the case, else None. It may use MSCCL's algorithms in place of one that is forced."""
        options = ("--algorithms",) * bool(case.algorithm) + ("--protocols",) * bool(case.protocol)
        return OptionUnsupported(options, self.name, "nccl") if options else super().supports(operation, case)

    def bind_nonblocking(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> NonBlocking | Fact:
        """Return that overlap is not measured: collbench has no kernel that computes on these GPUs."""
        return StartUnsupported(self.name, operation.name)
