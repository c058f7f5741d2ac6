"""A GPU as cupy shows it."""

from __future__ import annotations

from cupy.cuda import runtime


class Device:
    """One GPU; a context manager that makes it current."""

    def __init__(self, device: int | None = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)
        self._before: list[int] = []

    def __enter__(self) -> Device:
        self._before.append(runtime.getDevice())
        runtime.setDevice(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        runtime.setDevice(self._before.pop())

    def use(self) -> None:
        runtime.setDevice(self.id)

    def synchronize(self) -> None:
        with self:
            runtime.deviceSynchronize()

    @property
    def compute_capability(self) -> str:
        """ "90"."""
        return "".join(str(runtime.deviceGetAttribute(part, self.id)) for part in (75, 76))

    @property
    def pci_bus_id(self) -> str:
        """ "0000:10:00.0"."""
        return runtime.deviceGetPCIBusId(self.id)

    @property
    def mem_info(self) -> tuple[int, int]:
        with self:
            return runtime.memGetInfo()
