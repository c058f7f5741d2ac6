"""What a user allows a cell: time before counts. Without numpy, since every command line makes one."""

from __future__ import annotations

from dataclasses import dataclass

_SMALL, _MIDDLE = 16 * 1024, 1024 * 1024
_TARGETS = (0.03, 0.02, 0.005)  # half-widths aimed at for small, middle and large sizes


@dataclass(frozen=True)
class Budget:
    """What a user allows a cell.

    max_time_s   wall time, which goes before all counts
    iterations   exactly so many samples (None: until the precision is reached)
    warmup       exactly so many (None: until it settles)
    precision    half-width aimed at, relative (None: 3, 2 or 0.5 % by size)
    """

    max_time_s: float = 5.0
    iterations: int | None = None
    warmup: int | None = None
    precision: float | None = None

    def target(self, size_bytes: int) -> float:
        """The relative half-width of the median's interval that ends the measurement."""
        small, middle, large = _TARGETS
        by_size = small if size_bytes <= _SMALL else middle if size_bytes <= _MIDDLE else large
        return self.precision if self.precision is not None else by_size
