"""A signed certificate, and an acceptance on a real Slurm over links of known rate."""

import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.command import ROOT, run
from tests.conftest import enter
from tests.faults.matrix.path_faults import dropped
from tests.testbeds import Hosts, SlurmBed
from tools.benchmarks.trials.series import PROGRAM, shape

SAMPLE = ROOT / "reports/certify"
RATE_MBIT = 200


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_signature_is_valid_and_that_of_a_changed_certificate_is_not(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    (tmp_path / "allowed").write_text(f"me@site {(tmp_path / 'key.pub').read_text()}")
    words = ["--from", str(SAMPLE), "--criteria", str(SAMPLE / "bed.toml"), "--sign", "key"]
    assert run(tmp_path, "certify", *words, "--out", "out").returncode == 1
    assert run(tmp_path, "certify", *words, "--resume", "out").returncode == 1  # replaces the signature
    certificate = tmp_path / "out/certificate.json"

    def verified() -> int:
        command = ["ssh-keygen", "-Y", "verify", "-f", "allowed", "-I", "me@site", "-n", "collbench", "-s", f"{certificate}.sig"]
        return subprocess.run(command, cwd=tmp_path, input=certificate.read_bytes(), capture_output=True, check=False).returncode

    assert verified() == 0
    certificate.write_text(certificate.read_text().replace('"faulty"', '"vetted"', 1))
    assert verified() != 0


@pytest.mark.slurm
@pytest.mark.hosts
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("faulty", [True, False])
def test_an_acceptance_names_the_faulty_hosts_and_vets_the_others(faulty: bool, tmp_path: Path) -> None:
    """Of four hosts one has half the rate, and one loses 1 % of the packets that it gets; or all are healthy."""
    with ExitStack() as stack:
        hosts = enter(stack, Hosts(4, f"{RATE_MBIT}mbit"))
        bed = enter(stack, SlurmBed(hosts))
        hosts.limit_packets(1)
        if faulty:
            shape(hosts, 1, RATE_MBIT // 2, RATE_MBIT // 2)
            stack.enter_context(dropped(hosts, 2, "loss 1"))
        out = tmp_path / "out"
        command = f"{' '.join(PROGRAM)} certify --criteria {SAMPLE / 'bed.toml'} --out {out} --vetted {tmp_path / 'vetted'}"
        done = bed.sbatch(command, ["-N4"], timeout=400)
        document = json.loads((out / "certificate.json").read_text())
        faulty = [host["host"] for host in document["hosts"] if host["verdict"] == "faulty"]
        assert faulty == (hosts.names[1:3] if faulty else [])
        assert (tmp_path / "vetted").read_text().split() == [name for name in hosts.names if name not in faulty]
        assert done.returncode == (1 if faulty else 0)
