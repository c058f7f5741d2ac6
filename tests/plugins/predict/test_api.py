"""A prediction in a notebook."""

from pathlib import Path

import collbench
from tests.api.test_html import check_fragment
from tests.results.rows import make_row, store


def test_a_prediction_shows_its_cases(tmp_path: Path) -> None:
    counts = (2, 4, 8)
    paths = [store(tmp_path / str(nodes), [make_row(1 << 20, nodes=nodes, ranks=nodes)]) for nodes in counts]
    found = collbench.predict(paths, nodes=16)
    texts = check_fragment(found._repr_html_())  # type: ignore[attr-defined]
    assert "1 MiB" in texts and repr(found) == f"<Prediction: {found.predicted} of 1 time on 16 nodes>"
