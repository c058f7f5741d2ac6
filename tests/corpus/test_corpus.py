"""What commands print and write for stored runs, captures and odd inputs changes only with a commit that records it."""

from __future__ import annotations

import pytest

from collbench.plugin import BUILTIN, plugins

if set(BUILTIN) - set(plugins()):
    pytest.skip("the corpus has the outputs of all plug-ins", allow_module_level=True)

from tests.corpus.replay import difference, outputs, stored

MOST_SHOWN = 5


@pytest.mark.system
@pytest.mark.timeout(300)  # 95 s of CPU on a slow machine; the limit of other tests would end one of its lines
def test_every_line_of_the_corpus_prints_and_writes_what_is_stored() -> None:
    right = stored()
    present = outputs()
    changed = [name for name, text in present.items() if right.get(name) != text]
    shown = [difference(name, right.get(name, ""), present[name]) for name in changed[:MOST_SHOWN]]
    assert not changed, "\n\n".join([f"{len(changed)} of {len(present)} lines differ:", *shown])
    assert right.keys() == present.keys()
