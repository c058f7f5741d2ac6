"""An autopsy in a notebook."""

from __future__ import annotations

import collbench
from tests.api.test_html import check_fragment
from tests.plugins.traces.test_autopsy_command import HANG


def test_an_autopsy_shows_its_findings() -> None:
    found = collbench.autopsy(*HANG)
    assert (found.code, len(found.findings)) == ("autopsy_verdict", 1)
    texts = check_fragment(found._repr_html_())  # type: ignore[attr-defined]
    assert texts[0] == found.render() and found.findings[0].cause.value in texts
    assert repr(found) == f"<AutopsyVerdict: {found.render()}>"
