"""The steps of a certificate: launches of other commands, each into a folder of its own, which --resume skips where it is complete."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from collbench.errors import UsageError
from collbench.launch.explain import srun_line, waits_for_srun
from collbench.launch.slurm import hosts_of as slurm_hosts
from collbench.machine.doctor.finding import same_host
from collbench.measuring.probing import launched
from collbench.plugins.certify.certificate import VETTED
from collbench.plugins.certify.criteria import GROUP_STEPS, Criteria
from collbench.plugins.certify.judging import judge
from collbench.plugins.certify.sources import DOCTOR, EvidenceSet
from collbench.report.screen import write_line
from collbench.report.writers import write_whole
from collbench.untrusted import list_of

_PROGRAM = (sys.executable, "-P", "-m", "collbench")
_EXAMPLE = "--launcher 'mpirun -n {nodes} -host {hosts}' --hosts 'node[1-4]'"


class StepLauncher(msgspec.Struct, frozen=True):
    """The words before a command, in which {hosts} and {nodes} are replaced, and the hosts."""

    words: Sequence[str]
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, launcher: str | None, hosts: str | None, env: Mapping[str, str]) -> StepLauncher:
        """Return the launcher that the options name, else srun in a Slurm allocation, else this host alone. Raises UsageError."""
        import hostlist

        try:
            words = shlex.split(launcher or "")
            names = tuple(hostlist.expand_hostlist(hosts or ""))
        except (ValueError, hostlist.BadHostlist) as error:
            raise UsageError(f"--hosts or --launcher is not valid ({error}): use {_EXAMPLE}") from error
        if launcher and names and "{hosts}" in launcher:
            return cls([*words, *_PROGRAM], names)
        if launcher or (names and not waits_for_srun(env)):
            raise UsageError(f"outside of a Slurm allocation, --hosts and --launcher with {{hosts}} need each other: {_EXAMPLE}")
        if launched(env):
            raise UsageError("certify starts its steps itself: start it once, without srun or mpirun")
        srun = srun_line(env) if waits_for_srun(env) else None
        if waits_for_srun(env) and srun is None:
            raise UsageError("this is a Slurm allocation, but srun is not in PATH: add it, or use --launcher and --hosts")
        if srun is not None:
            return cls([srun[0], "--nodes={nodes}", "--nodelist={hosts}", *srun[1:]], names or slurm_hosts(env))
        return cls(_PROGRAM, (os.uname().nodename,))

    def line(self, hosts: Sequence[str], words: Sequence[str]) -> list[str]:
        """Return the command line on these hosts."""
        return [*(word.replace("{hosts}", ",".join(hosts)).replace("{nodes}", str(len(hosts))) for word in self.words), *words]


def run_steps(criteria: Criteria, folder: Path, launcher: StepLauncher) -> EvidenceSet:
    """Run the steps that the folder lacks, and return the evidence in it. Raises UsageError if a command cannot start."""
    evidence = EvidenceSet(requested=launcher.hosts)
    for step, command in criteria.steps.items():
        hosts = launcher.hosts
        if step in GROUP_STEPS and len(hosts) > 1:
            passed = [host.host for host in judge(criteria.of_hosts(), evidence)[1] if host.verdict == VETTED]
            hosts = tuple(host for host in hosts if any(same_host(host, name) for name in passed))
        if command and len(hosts) < min(2, len(launcher.hosts)):
            write_line(sys.stderr, f"step {step} is left out: {len(hosts)} of {len(launcher.hosts)} hosts passed so far")
        elif command:
            _add_step(evidence, folder / step, shlex.split(command), launcher, hosts)
    return evidence


def _add_step(evidence: EvidenceSet, path: Path, words: list[str], launcher: StepLauncher, hosts: Sequence[str]) -> None:
    """Add the evidence of a step: of a folder that has it complete, else measured now. Print why there is none."""
    is_doctor = words[0] == "doctor"
    stored = path.with_name(DOCTOR) if is_doctor else path
    number = 1
    while stored.exists() and not is_doctor and not _is_complete(stored, words, hosts):
        number += 1
        stored = path.with_name(f"{path.name}-{number}")
    if _is_complete(stored, words, hosts):
        write_line(sys.stderr, f"{stored} is complete: {shlex.join(words)}")
        evidence.add(stored)
        return
    write_line(sys.stderr, f"{stored}, {len(hosts)} hosts: collbench {shlex.join(words)}")
    if is_doctor:
        stored.unlink(missing_ok=True)  # of other hosts or another command: a step that fails has no evidence
    line = launcher.line(hosts, words if is_doctor else [*words, "--out", str(stored)])
    try:
        done = subprocess.run(line, stdout=subprocess.PIPE if is_doctor else sys.stderr, text=True, check=False)
    except OSError as error:
        raise UsageError(f"{line[0]} cannot start ({error.strerror}): check --launcher") from error
    if is_doctor and done.stdout.startswith("{"):
        write_whole(stored, done.stdout, "--out")
    try:
        evidence.add(stored)
    except UsageError as error:
        write_line(sys.stderr, f"{path.name} has no evidence (exit code {done.returncode}): {error}")


def _is_complete(stored: Path, words: Sequence[str], hosts: Sequence[str]) -> bool:
    """Return whether a stored step has ended, with the same command on the same hosts."""
    part = EvidenceSet()
    try:
        part.add(stored)
    except UsageError:
        return False
    for run in part.runs:
        typed = list_of(run.info.get("command"), str)[1:]
        at = typed.index("--out") if "--out" in typed else len(typed)
        if not run.finished or [*typed[:at], *typed[at + 2 :]] != list(words):
            return False
    return len(part.hosts) == len(hosts) and all(any(same_host(host, name) for name in part.hosts) for host in hosts)
