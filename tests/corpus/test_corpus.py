"""What commands print and write for stored runs, captures and odd inputs changes only with a commit that records it."""

import pytest

from collbench.plugin import BUILTIN, plugins

if set(BUILTIN) - set(plugins()):
    pytest.skip("the corpus has the outputs of all plug-ins", allow_module_level=True)

from tests.corpus.replay import changed, stored

# The lines of these commands are tests of their packages: peak/test_lines.py, doctor/test_lines.py, plugins/importers/test_lines.py.
ELSEWHERE = {"peak", "doctor", "import"}


@pytest.mark.system
@pytest.mark.timeout(300)  # 95 s of CPU on a slow machine; the limit of other tests would end one of its lines
def test_every_line_of_the_corpus_prints_and_writes_what_is_stored() -> None:
    commands = {name.split()[0] for name in stored()}
    assert commands > ELSEWHERE
    assert not changed(*(commands - ELSEWHERE))
