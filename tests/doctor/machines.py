"""Hand-made machines with one fact changed, and the doctor's findings."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from collbench.machine.doctor.examine import ExaminedLog, examine
from collbench.machine.doctor.finding import Finding
from collbench.machine.model import Machine, PcieLink, System
from collbench.machine.readers.nccl_log import NcclLog


def changed(machine: Machine, part: str, key: str, **facts: Any) -> Machine:
    """The machine with other facts of one part: `part` is "pci", "gpus" or "nics"."""
    parts = getattr(machine, part)
    assert any(each.key == key for each in parts), f"{key} is none of {part}"
    return replace(machine, **{part: tuple(replace(each, **facts) if each.key == key else each for each in parts)})


def with_link(machine: Machine, address: str, link: PcieLink) -> Machine:
    return changed(machine, "pci", address, link=link)


def with_port(machine: Machine, nic: str, **facts: Any) -> Machine:
    ports = next(each.ports for each in machine.nics if each.name == nic)
    return changed(machine, "nics", nic, ports=(replace(ports[0], **facts), *ports[1:]))


def with_system(machine: Machine, **facts: Any) -> Machine:
    system: System = replace(machine.system, **facts)
    return replace(machine, system=system)


def examined(logs: Sequence[NcclLog], machines: Sequence[Machine]) -> Sequence[ExaminedLog]:
    """The logs with their findings, by the plug-in joblogs."""
    if not logs:
        return ()
    from collbench.plugins.joblogs.findings import examined

    return examined(logs, machines)


def codes(*machines: Machine, logs: Sequence[NcclLog] = ()) -> list[str]:
    return [finding.code for finding in examine(machines, examined(logs, machines))]


def found(machine: Machine, code: str, *others: Machine, logs: Sequence[NcclLog] = ()) -> Finding:
    findings = [finding for finding in examine((machine, *others), examined(logs, (machine, *others))) if finding.code == code]
    assert len(findings) == 1, findings
    return findings[0]


class Fault(NamedTuple):
    """A machine with a fault, and its only finding with this code."""

    name: str
    code: str
    severity: str
    machine: Machine
    texts: tuple[str, ...] = ()  # each in "\nWHAT\nEVIDENCE\nREMEDY\n"

    def check(self, *logs: NcclLog) -> None:
        """Assert the finding, of the machine or of these logs."""
        finding = found(self.machine, self.code, logs=logs)
        assert finding.severity == self.severity
        assert finding.what and finding.evidence and finding.remedy and not finding.remedy.endswith(".")
        text = f"\n{finding.what}\n{finding.evidence}\n{finding.remedy}\n"
        assert [each for each in self.texts if each not in text] == [], text
