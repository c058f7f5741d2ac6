"""How large the arrays are that the kernels' speed is measured on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collbench.device.bandwidth import fitting_size
from collbench.errors import UsageError

MIB = 1 << 20


def gpus(*free_mib: int) -> list[Any]:
    return [
        SimpleNamespace(index=i, name="FAKE GPU (test double)", free_bytes=lambda free=free: free * MIB) for i, free in enumerate(free_mib)
    ]


@pytest.mark.parametrize(("free_mib", "size_mib"), [((80_000,), 512), ((80_000, 900), 256), ((1600,), 512), ((1599,), 256), ((70,), 2)])
def test_usually_512_mib_and_halved_until_three_fit_into_every_gpu(free_mib: tuple[int, ...], size_mib: int) -> None:
    assert fitting_size(gpus(*free_mib), None) == size_mib * MIB


def test_what_is_asked_for_is_taken_as_it_is() -> None:
    assert fitting_size(gpus(80_000), 1040) == 1040


def test_what_does_not_fit_is_reported_before_it_is_tried() -> None:
    with pytest.raises(UsageError, match=r"3 arrays of 1 GiB .* GPU 1 .* 3 GiB is free"):
        fitting_size(gpus(80_000, 3072), 1024 * MIB)
    with pytest.raises(UsageError, match=r"3 arrays of 1 MiB .* GPU 0"):
        fitting_size(gpus(60), None)


@pytest.mark.parametrize("size", [16, 1000, 1025])
def test_a_size_that_no_kernel_takes_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=f"--size {size}: .*16 bytes"):
        fitting_size(gpus(80_000), size)
