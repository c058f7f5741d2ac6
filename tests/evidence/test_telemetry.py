"""The sampling process: samples on command, ends with its input, and costs nothing without anything to sample."""

import fcntl
import json
import os
import resource
import subprocess
import sys
import threading

import pytest

from collbench.measuring.telemetry import Telemetry, sample
from tests.cli.command import until

HZ = 500.0  # faster than users may ask for: the tests need not wait


class FAKEGauges:
    """Counts how often it was read."""

    def __init__(self):
        self.reads = 0

    def clocks(self):
        self.reads += 1
        return {"0000:19:00.0": {"power_w": self.reads}}


def sampled(commands, least=0):
    """Return the lines of a sampler with `commands`, each after as many lines as the one before wants; descriptors from `least`."""
    (first, ours), (out, into), gauges = os.pipe(), os.pipe(), FAKEGauges()
    theirs = fcntl.fcntl(first, fcntl.F_DUPFD, least)
    os.close(first)
    sampler = threading.Thread(target=sample, args=(gauges, HZ, theirs, into))
    sampler.start()
    lines = []
    with os.fdopen(out) as actual:
        for command, wanted in commands:
            os.write(ours, command)
            lines += [json.loads(actual.readline()) for _ in range(wanted)]
        os.close(ours)
        sampler.join(10)
        ended = not sampler.is_alive()
        os.close(into)
        rest = actual.read()
    os.close(theirs)
    return lines, rest, ended, gauges


MANY_FILES = pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1100, reason="no descriptor above 1023 is allowed")


@pytest.mark.parametrize("least", [0, pytest.param(1100, marks=MANY_FILES)])
def test_it_samples_while_switched_on_and_ends_with_its_input(least):
    lines, _, ended, _ = sampled([(b"1", 3)], least)
    assert [line["gpus"]["0000:19:00.0"]["power_w"] for line in lines] == [1, 2, 3] and ended
    assert lines[0]["monotonic_s"] < lines[2]["monotonic_s"]


def test_switched_off_it_reads_nothing():
    lines, rest, ended, gauges = sampled([(b"0", 0), (b"10", 0)])
    assert (lines, rest, ended, gauges.reads) == ([], "", True, 0)


@pytest.mark.contract
def test_a_process_without_nvml_samples_nothing():
    line = [sys.executable, "-P", "-m", "collbench.measuring.telemetry", "1"]
    done = subprocess.run(line, input=b"1", capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


SAMPLER = """#!/bin/sh
printf '{"monotonic_s":1}\\n{"mono'
head -c 1 >switched
printf 'tonic_s":2}\\n'
"""


@pytest.mark.contract
def test_only_whole_lines_are_taken_each_once_and_a_process_that_ended_is_no_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "sampler"
    program.write_text(SAMPLER)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    telemetry, taken = Telemetry(1.0), []
    until(lambda: taken.extend(telemetry.taken()) or taken, "the first line")
    assert (taken, telemetry.taken()) == ([{"monotonic_s": 1}], [])
    telemetry.switch(True)
    until(lambda: taken.extend(telemetry.taken()) or len(taken) > 1, "the second line")
    assert (taken[1:], (tmp_path / "switched").read_text()) == ([{"monotonic_s": 2}], "1")
    telemetry.switch(False)
    telemetry.close()
