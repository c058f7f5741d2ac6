"""All interfaces' counters from one file, /proc/net/dev, and from their own files where it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.measure import counters

HEAD = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
"""
ROWS = "  eth0: 1000  10    1    2    0     0          0         0 2000      20    3    4    0     0       0          0\n"
KNOWN = dict(zip(("rx_bytes", "rx_packets", "rx_errors", "rx_dropped"), (1000, 10, 1, 2), strict=True)) | dict(
    zip(("tx_bytes", "tx_packets", "tx_errors", "tx_dropped"), (2000, 20, 3, 4), strict=True)
)


def machine(root: Path, table: str | bytes | None, *names: str) -> str:
    """Return a copied /sys with these interfaces, each with 7 bytes sent, and a table."""
    for name in names:
        (root / "sys/class/net" / name / "statistics").mkdir(parents=True)
        (root / "sys/class/net" / name / "statistics/tx_bytes").write_text("7\n")
    if table is not None:
        (root / "proc/net").mkdir(parents=True)
        (root / "proc/net/dev").write_bytes(table if isinstance(table, bytes) else table.encode())
    return str(root)


def test_the_columns_have_their_names(tmp_path: Path) -> None:
    assert counters.read(machine(tmp_path, HEAD + ROWS, "eth0")) == ({"eth0": KNOWN}, frozenset({"eth0"}))


@pytest.mark.parametrize(
    "table",
    [
        None,
        HEAD,
        HEAD + "eth0: 1 2 3\n",
        HEAD + "eth0: a b c d e f g h i j k l m n o p\n",
        HEAD + "eth0:1: " + "1 " * 16,
        HEAD + "eth0: " + "1" * 5000 + " 1" * 15,
    ],
)
def test_an_interface_that_the_table_lacks_is_read_from_its_own_files(tmp_path: Path, table: str | None) -> None:
    assert counters.read(machine(tmp_path, table, "eth0"))[0] == {"eth0": {"tx_bytes": 7}}


def test_the_same_is_read_here_either_way() -> None:
    counts, _ = counters.read()
    for name, counted in counts.items():
        assert set(counted) - {"carrier_changes"} == set(counters.NAMES), name


@given(st.binary(max_size=400))
def test_no_content_of_the_table_is_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = machine(tmp_path_factory.mktemp("machine"), content, "eth0")
    assert set(counters.read(root)[0]) == {"eth0"}
