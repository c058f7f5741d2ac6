"""What a measuring command reports beside its rows: backends, cores, disturbances, wrong data, samples of pairs, resumed runs."""

import pytest

from collbench.launch.software import Build, mismatch
from collbench.measuring.open_backends import NO_BACKEND
from collbench.measuring.verification import LeftEarly
from tests.helpers import said

OLD, NEW = Build(1, "0.1.0", "abc"), Build(2, "0.2.0", "def")

WORDS = {
    "no backend": (lambda: NO_BACKEND,
        "no backend is installed: run pip install 'collbench[mpich]' or 'collbench[torch]' (`collbench backends` lists what is "
        "missing)"),
    "other build": (lambda: mismatch(1, "n2", OLD, "n1", NEW),
        "rank 1 (n2) runs collbench 0.1.0+abc, rank 0 (n1) 0.2.0+def: install the same build on all nodes"),
    "older build": (lambda: mismatch(1, "n2", None, "n1", NEW),
        "rank 1 (n2) runs collbench of an older build, rank 0 (n1) 0.2.0+def: install the same build on all nodes"),
    "left a barrier early": (lambda: LeftEarly(1, 0, 210e-6, 0.01).sentence(),
        "rank 1 left after 210.0 µs, before rank 0 entered, which waited 10000 µs"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call, text):
    assert said(call) == text
