"""A test double of NVML's Python binding with one GPU, the one that the fake libcuda has. It measures nothing."""

import os
from types import SimpleNamespace

GPU = "FAKE GPU (test double)"
DRIVER = "580.0-FAKE"
UUID = "GPU-fa4e0000-0000-0000-0000-000000000000"
ADDRESS = "00000000:10:00.0"
MEMORY_BYTES = 4 << 30
LANES = 16


class NVMLError(Exception):
    """The only error."""


def nvmlInit() -> None: ...


def nvmlShutdown() -> None: ...


def nvmlSystemGetDriverVersion() -> str:
    return DRIVER


def nvmlDeviceGetCount() -> int:
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetPciInfo(_gpu: int) -> SimpleNamespace:
    return SimpleNamespace(busId=ADDRESS, pciDeviceId=0x233010DE)


def nvmlDeviceGetCudaComputeCapability(_gpu: int) -> tuple[int, int]:
    return 9, 0


def nvmlDeviceGetMemoryInfo(_gpu: int) -> SimpleNamespace:
    return SimpleNamespace(total=MEMORY_BYTES)


def nvmlDeviceGetName(_gpu: int) -> str:
    return GPU


def nvmlDeviceGetUUID(_gpu: int) -> str:
    return UUID


def nvmlDeviceGetGpuMaxPcieLinkGeneration(_gpu: int) -> int:
    return 5


def nvmlDeviceGetMaxPcieLinkWidth(_gpu: int) -> int:
    return int(os.environ.get("FAKE_NVML_LANES", LANES))
