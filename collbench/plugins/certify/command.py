"""collbench certify: run or take the evidence, judge it, and write the certificate, its page and the vetted hosts."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from collbench.cli.help import HelpEntry
from collbench.cli.parser import Parser, add_command, add_format
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.plugins.certify.certificate import Certificate
    from collbench.plugins.certify.sources import EvidenceSet

_SUMMARY = "accept a cluster or repaired nodes: a page, a certificate, and the hosts that passed"
_ABOUT = (
    "runs doctor, hunt, a suite and check, or takes stored runs (--from), and judges each figure as a share of what this hardware should "
    "reach. Inside a Slurm allocation it starts its steps with srun. Exit code 0: certified; 1: a criterion fails; 3: evidence is missing."
)
_HELP = HelpEntry(
    follows="gate",
    examples=(
        ("certify --vetted hosts", "in a Slurm allocation: measure, and write the hosts that passed"),
        ("certify --from runs/*", "judge stored runs, and print what is missing"),
        ("certify --criteria site.toml --sign ~/.ssh/id_ed25519", "a site's own criteria, and a signature"),
    ),
)
_NAME, _PAGE = "certificate.json", "certificate.html"
_MOST_LEFT_OUT = 4


def add_certify(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "certify", _SUMMARY, call_certify, _add_options, entry=_HELP, description=_ABOUT)


def _add_options(parser: Parser) -> None:
    taken = "judge these instead of measuring: runs, folders of runs, what `doctor --format json` printed, verdict.json of the gate"
    parser.add_argument("--from", dest="sources", metavar="RUN", nargs="+", type=Path, help=taken)
    criteria = (
        "cpu-cluster, gpu-cluster, host, or a TOML file that extends one of them (default: cpu-cluster or host; gpu-cluster for stored "
        "runs on GPUs)"
    )
    parser.add_argument("--criteria", metavar="FILE", help=criteria)
    parser.add_argument("--hosts", metavar="LIST", help="the hosts, such as node[1-4] (default: those of the Slurm allocation)")
    launcher = "starts a step on {hosts}, such as 'mpirun -n {nodes} -host {hosts}' (default: srun)"
    parser.add_argument("--launcher", metavar="COMMAND", help=launcher)
    vetted = "write the hosts that passed, a line each, for a hostfile or `srun -w FILE`"
    parser.add_argument("--vetted", metavar="FILE", type=Path, help=vetted)
    signed = "sign certificate.json with ssh-keygen and this private key, or with minisign if it is its key"
    parser.add_argument("--sign", metavar="KEY", type=Path, help=signed)
    out = "folder of the certificate, its page and the steps (default: runs/<time>-certify-<id>)"
    parser.add_argument("--out", metavar="DIR", type=Path, help=out)
    resume = "continue in this folder: steps that it has with the same command and hosts are not measured again"
    parser.add_argument("--resume", metavar="DIR", type=Path, help=resume)
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the page there; with --from and without --out, write nothing else")
    add_format(parser, "table", "csv", "json")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")


def call_certify(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure or read, judge, print and write; return the exit code. Raises UsageError."""
    from collbench.plugins.certify.certificate import EXIT_CODES
    from collbench.plugins.certify.page import page, print_judgements
    from collbench.plugins.hunt.managers import is_name
    from collbench.report.writers import check_file, confirm_written, write_whole
    from collbench.results.folder import run_name
    from collbench.results.store import to_page

    for option, path in (("--vetted", arguments.vetted), ("--html", arguments.html)):
        if path:
            check_file(path, option)
    writes_certificate = bool(arguments.out or not (arguments.sources and arguments.html))
    if arguments.sign and not writes_certificate:
        raise UsageError("--sign signs certificate.json: add --out DIR to write it")
    if arguments.sources and (arguments.hosts or arguments.launcher):
        raise UsageError("--from judges stored runs: leave out --hosts and --launcher, which are for measuring")
    signer = _signer(arguments.sign)
    folder = arguments.resume or arguments.out or Path("runs") / run_name("certify")
    kind, evidence = _evidence(arguments, folder)
    certificate = _certificate(kind, evidence, argv)
    files = {arguments.html or folder / _PAGE: page(certificate)}
    if writes_certificate:
        _make(folder)
        files[folder / _NAME] = to_page(certificate.as_json())
    if arguments.vetted:
        files[arguments.vetted] = "".join(f"{host}\n" for host in certificate.vetted if is_name(host))
    for path, text in files.items():
        write_whole(path, text, "--out")
    print_judgements(certificate, arguments.format, arguments.color)
    confirm_written(files, sys.stderr)
    if signer and folder / _NAME in files:
        _sign(signer, folder / _NAME)
    return EXIT_CODES[certificate.verdict]


def _evidence(arguments: argparse.Namespace, folder: Path) -> tuple[str, EvidenceSet]:
    """Return the name of the criteria, and the evidence that is named or measured now. Raises UsageError."""
    from collbench.plugins.certify.criteria import read_criteria
    from collbench.plugins.certify.sources import EvidenceSet
    from collbench.plugins.certify.steps import StepLauncher, run_steps
    from collbench.report.frame import printable
    from collbench.report.screen import write_line

    evidence = EvidenceSet()
    if not arguments.sources:
        launcher = StepLauncher.of(arguments.launcher, arguments.hosts, os.environ)
        kind = arguments.criteria or ("cpu-cluster" if len(launcher.hosts) > 1 else "host")
        criteria = read_criteria(kind)
        if folder.exists() and not arguments.resume:
            raise UsageError(f"--out {folder} exists: use --resume {folder} to continue it, or another folder")
        _make(folder)
        return kind, run_steps(criteria, folder, launcher)
    for path in arguments.sources:
        evidence.add(path)
    if evidence.left_out:
        names = ", ".join(printable(str(path))[:80] for path in evidence.left_out[:_MOST_LEFT_OUT])
        more = f" and {len(evidence.left_out) - _MOST_LEFT_OUT} more" if len(evidence.left_out) > _MOST_LEFT_OUT else ""
        write_line(sys.stderr, f"not read (neither a run nor doctor.json nor verdict.json): {names}{more}")
    kind = "cpu-cluster" if len(evidence.hosts) > 1 else "host"
    if any(row.device == "cuda" for run in evidence.runs for row in run.rows):
        kind = "gpu-cluster"
    return arguments.criteria or kind, evidence


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be made ({error.strerror}): choose another folder") from error


def _certificate(kind: str, evidence: EvidenceSet, argv: Sequence[str]) -> Certificate:
    import msgspec

    from collbench import __version__
    from collbench.plugins.certify.certificate import FAIL, INCOMPLETE, PASS, VETTED, Certificate, Word
    from collbench.plugins.certify.criteria import read_criteria
    from collbench.plugins.certify.judging import judge

    criteria = read_criteria(kind)
    judgements, hosts = judge(criteria, evidence)
    verdict: Word = PASS if hosts and all(host.verdict == VETTED for host in hosts) else INCOMPLETE
    repeat = ["collbench", "certify", "--criteria", kind, "--from", *map(str, evidence.paths)]
    if any(judgement.verdict == FAIL for judgement in judgements):
        verdict = FAIL
    return Certificate(
        verdict=verdict, title=criteria.title, collbench=__version__, command=f"collbench {shlex.join(argv)}", repeat=shlex.join(repeat),
        criteria=msgspec.to_builtins(criteria.criteria), criteria_files=criteria.files, hosts=tuple(hosts), judgements=tuple(judgements),
        runs=evidence.measured(), inputs=tuple(evidence.inputs),
    )  # fmt: skip


def _signer(key: Path | None) -> list[str] | None:
    """Return the command that signs a file with this key; None without a key. Raises UsageError without the tool."""
    from collbench.untrusted import read_file

    if key is None:
        return None
    try:
        is_minisign = b"minisign" in read_file(key, 1 << 16)[:200]
    except OSError as error:
        raise UsageError(f"--sign {key} cannot be read ({error.strerror}): name a private key of ssh-keygen or minisign") from error
    words = ["minisign", "-S", "-s", str(key), "-m"] if is_minisign else ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "collbench"]
    if not which(words[0]):
        raise UsageError(f"--sign {key} needs {words[0]}, which is not in PATH: install it, or leave --sign out")
    return words


def _sign(signer: Sequence[str], signed: Path) -> None:
    """Sign the certificate, and print how to verify it. Raises UsageError."""
    is_minisign = signer[0] == "minisign"
    signature = signed.with_name(f"{signed.name}.{'minisig' if is_minisign else 'sig'}")
    signature.unlink(missing_ok=True)  # ssh-keygen would ask
    done = subprocess.run([*signer, str(signed)], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode or not signature.is_file():
        raise UsageError(f"--sign: {signer[0]} failed ({done.stderr.strip()[-200:]}): check the key")
    verify = f"ssh-keygen -Y verify -f ALLOWED_SIGNERS -I SIGNER -n collbench -s {signature} < {signed}"
    print(f"to verify: {f'minisign -V -p PUBLIC_KEY -m {signed}' if is_minisign else verify}", file=sys.stderr)
