"""Facts with templates: fields, units and counted nouns."""

import pytest

from collbench.reason import Fact, Text, as_json, decode


class _Sample(Fact, frozen=True, tag="sample_of_a_test"):
    """A fact of this test."""

    text = "{name} moved {size:size} in {calls:call}, {share:share} of {links:list}, {ratio:.1f} times {inner}"

    name: str
    size: int
    calls: int
    share: float
    links: tuple[str, ...]
    ratio: float
    inner: Text


SAMPLE = _Sample("gloo", 65536, 1, 0.84, ("eth0", "eth1"), 1.25, Text("of {this}"))


def test_a_template_has_fields_units_and_counted_nouns() -> None:
    assert SAMPLE.render() == "gloo moved 64 KiB in 1 call, 84 % of eth0 and eth1, 1.2 times of {this}"


class _Optional(Fact, frozen=True, tag="optional_of_a_test"):
    """A fact with words that an empty value leaves out."""

    text = "moved{calls:? in {calls:call}}{why:?: {why}}"

    calls: int = 0
    why: str = ""


def test_a_template_leaves_out_words_for_an_empty_value() -> None:
    assert [str(_Optional()), str(_Optional(2)), str(_Optional(1, "a: {b}"))] == ["moved", "moved in 2 calls", "moved in 1 call: a: {b}"]


def test_a_template_is_no_stored_field() -> None:
    assert "text" not in as_json(SAMPLE)
    assert decode(as_json(SAMPLE), _Sample) == SAMPLE


@pytest.mark.parametrize("fact", [Text("100 % {of} it"), Text("")])
def test_a_stored_text_is_no_template(fact: Text) -> None:
    assert fact.render() == fact.text
    assert decode(as_json(fact), Text) == fact
