"""The evidence of a certificate: stored runs, doctor's findings and gate verdicts, with the digests of all files."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec

from collbench.analysis.ceilings import hosts_of
from collbench.analysis.launches import check_once, launch_folders, runs_in
from collbench.errors import UsageError
from collbench.gating.verdict import Verdict, read_verdict
from collbench.machine.doctor.finding import Finding, same_host
from collbench.plugins.certify.certificate import InputDigest, MeasuredRun
from collbench.results.reader import Run
from collbench.results.store import read_object
from collbench.untrusted import dict_of, list_of, open_file

DOCTOR, GATE = "doctor.json", "verdict.json"
_STORED = (".json", ".jsonl", ".bin")
_WANTED = "name a run's folder, what `collbench doctor --format json` printed, or a verdict.json of `collbench gate --out`"


def _may_be_evidence(path: Path) -> bool:
    """Return whether a part of a folder that was named is read; a damaged run is, too, so that its error is not hidden."""
    has_rows = (path / "run.json").is_file() or (path / "cells.jsonl").is_file()
    return path.name in (DOCTOR, GATE) or has_rows or bool(launch_folders(path))


class Examination(msgspec.Struct, frozen=True):
    """What doctor printed, and the file."""

    findings: tuple[Finding, ...]
    hostnames: tuple[str, ...]
    not_looked_at: tuple[str, ...] = ()
    source: str = ""


class EvidenceSet(msgspec.Struct):
    """The evidence, in the order in which it was named."""

    runs: list[Run] = msgspec.field(default_factory=list)
    examinations: list[Examination] = msgspec.field(default_factory=list)
    verdicts: list[tuple[Path, Verdict]] = msgspec.field(default_factory=list)
    inputs: list[InputDigest] = msgspec.field(default_factory=list)
    paths: list[Path] = msgspec.field(default_factory=list)  # of what was read: naming them again gives the same evidence
    left_out: list[Path] = msgspec.field(default_factory=list)  # in folders that were named, and no evidence
    requested: tuple[str, ...] = ()  # hosts that were to be measured

    @property
    def hosts(self) -> list[str]:
        """Return all hosts, each once."""
        examined = [host for examination in self.examinations for host in examination.hostnames]
        measured = [host for run in self.runs for host in hosts_of(run)]
        aliases = self.aliases()
        names = list(dict.fromkeys(aliases.get(host, host) for host in [*examined, *measured]))
        return names + [host for host in self.requested if not any(same_host(host, name) for name in names)]

    def aliases(self) -> dict[str, str]:
        """Return by name the name that counts of a host that evidence names both with and without its domain: that of the runs.

        Two hosts of equal names in different domains stay two.
        """
        measured = [host for run in self.runs for host in hosts_of(run)]
        examined = [host for examination in self.examinations for host in examination.hostnames]
        in_findings = [finding.hostname for examination in self.examinations for finding in examination.findings if finding.hostname]
        names = list(dict.fromkeys([*measured, *examined, *in_findings]))
        aliases: dict[str, str] = {}
        for short in [name for name in names if "." not in name]:
            same = [name for name in names if same_host(short, name)]
            if len([name for name in same if "." in name]) <= 1:
                aliases |= dict.fromkeys(same, same[0])
        return aliases

    def add(self, path: Path) -> None:
        """Read a run, launches, a file, or a folder of these. Raises UsageError for anything else, and for a run that is named twice."""
        try:
            is_file = path.is_file()
        except OSError as error:
            raise UsageError(f"--from {str(path)[:80]} cannot be read ({error.strerror}): {_WANTED}") from error
        if is_file:
            self._add_file(path)
        elif (path / "run.json").is_file() or (path / "cells.jsonl").is_file() or launch_folders(path):
            runs = runs_in(path)
            self.runs += runs
            check_once(self.runs)
            self.paths.append(path)
            self._digest(file for run in runs for file in sorted(run.path.iterdir()) if file.suffix in _STORED and file.is_file())
        else:
            named = sorted(path.iterdir()) if path.is_dir() else []
            parts = [part for part in named if _may_be_evidence(part)]
            self.left_out += [part for part in named if part not in parts and (part.is_dir() or part.suffix == ".json")]
            if not parts:
                raise UsageError(f"--from {path} has no evidence: {_WANTED}")
            for part in parts:
                self.add(part)

    def measured(self) -> tuple[MeasuredRun, ...]:
        """Return the runs with their commands and versions."""
        described = []
        for run in self.runs:
            versions = [f"collbench {run.info.get('collbench')}"]
            for libraries in dict_of(run.info.get("backends")).values():
                versions += [f"{name} {version}" for name, version in dict_of(libraries).items()]
            command = shlex.join(list_of(run.info.get("command"), str))
            began = str(run.info.get("started_utc", ""))
            described.append(MeasuredRun(run=str(run.path), began=began, command=command, versions=", ".join(dict.fromkeys(versions))))
        return tuple(described)

    def _add_file(self, path: Path) -> None:
        try:
            document = read_object(path)
            if "candidates" in document:
                self.verdicts.append((path, read_verdict(path, "--from")))
            else:
                self.examinations.append(msgspec.convert({**document, "source": str(path)}, Examination))
        except (OSError, ValueError) as error:
            raise UsageError(f"--from {path} is not evidence ({getattr(error, 'strerror', None) or error}): {_WANTED}") from error
        self.paths.append(path)
        self._digest([path])

    def _digest(self, files: Iterable[Path]) -> None:
        for file in files:
            digest = hashlib.sha256()
            try:
                with open_file(file) as content:
                    for part in iter(partial(content.read, 1 << 20), b""):
                        digest.update(part)
                self.inputs.append(InputDigest(file=str(file), sha256=digest.hexdigest()))
            except OSError as error:
                raise UsageError(f"--from {file} cannot be read ({error.strerror or error}): check its permissions") from error
