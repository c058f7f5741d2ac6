"""The lines of `collbench import` in the corpus print and write what is stored."""

from tests.conftest import needs_all_plugins


@needs_all_plugins
def test_lines_of_import() -> None:
    from tests.corpus.replay import changed  # it reads samples of plug-ins

    assert not changed("import")
