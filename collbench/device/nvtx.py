"""Ranges of NVTX, the annotations that Nsight Systems shows: through the package `nvtx`, or through cupy where that is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

DOMAIN = "collbench"  # with the package `nvtx`; cupy has only the default domain


class NvtxMissing(Exception):
    """Neither package is installed. The text has the remedy."""


def open_ranges() -> Callable[[str], AbstractContextManager[None]]:
    """Return a function that makes a range of a name, for a `with` block. Ranges nest. Raises NvtxMissing with the remedy."""
    push, pop = _calls()

    @contextmanager
    def range_of(name: str) -> Iterator[None]:
        push(name)
        try:
            yield
        finally:
            pop()

    return range_of


def _calls() -> tuple[Callable[[str], object], Callable[[], object]]:
    """Return (push a range, pop the last one)."""
    try:
        import nvtx
    except ImportError:
        pass
    else:
        domain = nvtx.get_domain(DOMAIN)
        return lambda name: domain.push_range(domain.get_event_attributes(message=name)), domain.pop_range
    try:
        from cupy.cuda import nvtx as cupy_nvtx

        return cupy_nvtx.RangePush, cupy_nvtx.RangePop
    except (ImportError, AttributeError) as error:
        raise NvtxMissing("--nvtx needs a package for NVTX: pip install 'collbench[nvtx]'") from error
