"""Whether an MPI library takes CUDA memory: asked, never assumed; one that does not would read a GPU's address as its own and crash."""

from __future__ import annotations

import ctypes

_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA, MPICH's mpi.h


def why_not_cuda(library: ctypes.CDLL, name: str) -> str | None:
    """Why this library, `name` ("MPICH 5.0.2"), takes no CUDA memory, with the remedy; None where it says it does. Once MPI has begun."""
    said = _says(library)
    if said:
        return None
    answer = "does not say whether it takes" if said is None else "says it does not take"
    return f"{name} {answer} CUDA memory: load the site's CUDA-aware MPI (Open MPI and MPICH are, built with --with-cuda)"


def _says(library: ctypes.CDLL) -> bool | None:
    """What the library itself answers, None where it has neither function: MPICH's kind of question first, then Open MPI's."""
    if hasattr(library, "MPIX_GPU_query_support"):
        supported = ctypes.c_int(0)
        return library.MPIX_GPU_query_support(ctypes.c_int(_CUDA), ctypes.byref(supported)) == 0 and bool(supported.value)
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    return None
