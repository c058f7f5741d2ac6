"""Numbers, PCI addresses and rates out of text."""

from __future__ import annotations

import pytest

from collbench.machine.readers.text import gigatransfers, lanes, numa_of, pci_address, whole


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("19:00.0", "0000:19:00.0"),
        ("0000:19:00.0", "0000:19:00.0"),
        ("00000000:AF:00.1", "0000:af:00.1"),
        ("000A:03:00.0", "000a:03:00.0"),
        ("10001:03:00.0", "10001:03:00.0"),
        ("00010001:03:00.0", "00010001:03:00.0"),
        ("0000:19:00", "0000:19:00.0"),
        ("nothing", None),
        ("", None),
        ("0000:19:00.0 GPU", None),
    ],
)
def test_a_pci_address_in_its_full_form(text: str, address: str | None) -> None:
    assert pci_address(text) == address


@pytest.mark.parametrize(
    ("text", "rate"), [("16.0 GT/s PCIe", 16.0), ("32GT/s", 32.0), ("2.5 GT/s", 2.5), ("3.5 GT/s", None), ("Unknown", None), ("", None)]
)
def test_a_rate_of_pcie(text: str, rate: float | None) -> None:
    assert gigatransfers(text) == rate


@pytest.mark.parametrize(("text", "number"), [("16", 16), ("x8", 8), ("0", None), ("63", None), ("255", None), ("", None)])
def test_a_number_of_lanes(text: str, number: int | None) -> None:
    assert lanes(text) == number


@pytest.mark.parametrize(("text", "node"), [("0", 0), ("7", 7), ("-1", None), ("N/A", None), (None, None), ("4096", None), ("0x10", 16)])
def test_a_numa_node(text: str | None, node: int | None) -> None:
    assert numa_of(text) == node
    assert whole(text, -1) == (-1 if text == "-1" else 4096 if text == "4096" else node)
