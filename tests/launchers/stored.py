"""What a launcher's command wrote: a summary of its run."""

from pathlib import Path

from collbench.results.reader import Run, read_run
from tests.cli.command import Finished
from tests.testbeds import Hosts


def stored(done: Finished, folder: Path) -> Run:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    found = read_run(folder / "run")
    assert found.finished and not found.warnings
    return found


def measured(found: Run) -> dict[str, tuple[int, int, int] | str]:
    """By backend: (ranks, hosts, wrong elements), or why it was not measured."""
    return {row.backend: row.na or (row.ranks, row.nodes, -1 if row.wrong is None else row.wrong) for row in found.rows}


def reached(bed: Hosts, variables: dict[str, str], interface: str = "eth0") -> list[str]:
    """How an mpiexec of MPICH or Intel MPI starts one rank on each host, with these variables; interface: "" for its own choice."""
    hosts = ",".join(bed.names)
    passed = [word for name, value in variables.items() for word in ("-genv", name, value)]
    line = ["-launcher", "ssh", "-launcher-exec", bed.rsh, "-hosts", hosts, "-ppn", "1", "-n", str(len(bed.names)), *passed]
    return ["-iface", interface, *line] if interface else line


def nic_busbw(found: Run, backend: str, size: int) -> float:
    """The bus bandwidth in parts of 1 Gbit/s; fails unless the row's ceiling is that NIC."""
    (row,) = (row for row in found.rows if (row.backend, row.size_bytes) == (backend, size))
    assert row.ceiling and row.ceiling.limited_by == "NIC eth0 1 Gb/s, TCP" and row.busbw_bytes_per_s
    return row.busbw_bytes_per_s / 125e6
