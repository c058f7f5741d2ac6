"""Hand-made trees of /sys, as kernels write them."""

from pathlib import Path
from typing import Any


def interface(root: Path, name: str = "eth0", *beside: str, type: str = "1", **counts: Any) -> None:
    """An interface with these statistics; `beside` are other entries of its folder ("device", "lower_eth0")."""
    folder = root / "sys/class/net" / name
    (folder / "statistics").mkdir(parents=True, exist_ok=True)
    (folder / "type").write_text(f"{type}\n")
    for entry in beside:
        (folder / entry).mkdir(exist_ok=True)
    for counter, value in counts.items():
        (folder / "statistics" / counter).write_text(f"{value}\n")


def port(root: Path, name: str = "mlx5_0/1", state: str = "4: ACTIVE", hw: dict[str, Any] | None = None, **counts: Any) -> None:
    device, _, number = name.partition("/")
    folder = root / "sys/class/infiniband" / device / "ports" / number
    for kind, values in (("counters", counts), ("hw_counters", hw or {})):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for counter, value in values.items():
            (folder / kind / counter).write_text(f"{value}\n")
    (folder / "state").write_text(f"{state}\n")
