"""RDMA devices (InfiniBand, RoCE, EFA, software) as /sys/class/infiniband shows them."""

from __future__ import annotations

from collbench.machine.files import Files
from collbench.machine.model import Machine, Nic
from collbench.machine.readers.doubts import few
from collbench.machine.readers.infiniband_port import Notes, Place, interfaces_of_port, read_port
from collbench.machine.readers.part_names import adapter_name
from collbench.machine.readers.rdma_words import guid, why_software
from collbench.machine.readers.text import numa_of, pci_address, printable, whole

KIND = "InfiniBand sysfs"
CLASS = "/sys/class/infiniband"


def read(files: Files) -> Machine:
    """The RDMA devices with their ports, in the order of their names; an empty machine where there are none. Never raises."""
    notes = Notes()
    nics = tuple(_device(files, name, notes) for name in files.names(CLASS))
    return Machine(sources=(KIND,), nics=nics, unknown=notes.unknown, doubts=few(notes.doubts)) if nics else Machine()


def interfaces_of(files: Files, device: str) -> tuple[str, ...]:
    """The network interfaces of an RDMA device: below a software device, beside it on its PCI function, and in its tables of addresses."""
    folder = f"{CLASS}/{device}"
    below, function = _word(files, f"{folder}/parent"), _function(files, device)
    beside = files.names(f"{function}/net") if function and not below else ()
    named = [name for port in files.names(f"{folder}/ports") for name in interfaces_of_port(files, f"{folder}/ports/{port}")]
    return tuple(dict.fromkeys(name for name in (below, *map(printable, beside), *named) if name))


def owned_interfaces(files: Files) -> set[str]:
    """The network interfaces of RDMA hardware; one below a software device is what carries it."""
    return {owned for name in files.names(CLASS) if not _why_virtual(files, name) for owned in interfaces_of(files, name)}


def pci_folder(path: str | None) -> str:
    """The folder of the PCI function that a path leads through, "" for none; what is on USB is not on its controller's function."""
    parts = (path or "").split("/")
    functions = [index for index, part in enumerate(parts) if part.count(":") == 2 and pci_address(part)]
    on_usb = any(part.startswith("usb") for part in parts)
    return "/".join(parts[: functions[-1] + 1]) if functions and not on_usb else ""


def _device(files: Files, name: str, notes: Notes) -> Nic:
    folder, key, virtual = f"{CLASS}/{name}", printable(name), _why_virtual(files, name)
    function = "" if virtual else _function(files, name)
    if not virtual and not function:
        notes.unknown[f"nics/{key}/address"] = "the files do not say which PCI device it is on"
    kind, interfaces = _word(files, f"{folder}/hca_type"), interfaces_of(files, name)
    ports = (
        read_port(Place(files, f"{folder}/ports/{number}", key, kind, virtual, interfaces), number, notes)
        for number in sorted(int(port) for port in files.names(f"{folder}/ports") if port.isdecimal() and whole(port, 1, 255))
    )
    return Nic(
        name=key,
        address=pci_address(function.rpartition("/")[2]),
        model=adapter_name(kind),
        rdma=True,
        numa=numa_of(files.text(f"{function}/numa_node")) if function else None,
        ports=tuple(ports),
        interfaces=interfaces,
        virtual=virtual,
        firmware=_word(files, f"{folder}/fw_ver"),
        guid=guid(files.text(f"{folder}/node_guid")),
    )


def _function(files: Files, name: str) -> str:
    """The PCI function that a device is on: its class link leads through it, as its device link does."""
    return pci_folder(files.real(f"{CLASS}/{name}")) or pci_folder(files.real(f"{CLASS}/{name}/device"))


def _why_virtual(files: Files, name: str) -> str | None:
    """Software devices may hang below the PCI device that carries their interface: names and files of their own tell them."""
    below = _word(files, f"{CLASS}/{name}/parent")  # rxe alone has it
    software = why_software("rxe" if below else name)
    if software:
        return f"{software} over {below}" if below else software
    return "no hardware behind it" if (files.real(f"{CLASS}/{name}") or "").startswith("/sys/devices/virtual/") else None


def _word(files: Files, path: str) -> str | None:
    return printable(files.text(path) or "") or None
