"""Numbers, PCI addresses, rates and sets of CPUs out of text; untrusted XML, and what of it is rejected before it costs time."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.machine.readers import text as texts

READINGS: dict[Callable[[Any], Any], dict[str | None, Any]] = {
    texts.pci_address: {"19:00.0": "0000:19:00.0", "0000:19:00.0": "0000:19:00.0", "00000000:AF:00.1": "0000:af:00.1",
        "000A:03:00.0": "000a:03:00.0", "10001:03:00.0": "10001:03:00.0", "00010001:03:00.0": "00010001:03:00.0",
        "0000:19:00": "0000:19:00.0", "nothing": None, "": None, "0000:19:00.0 GPU": None},
    texts.gigatransfers: {"16.0 GT/s PCIe": 16.0, "32GT/s": 32.0, "2.5 GT/s": 2.5, "3.5 GT/s": None, "Unknown": None, "": None},
    texts.lanes: {"16": 16, "x8": 8, "0": None, "63": None, "255": None, "": None},
    texts.cpu_list: {"0-3,8": {0, 1, 2, 3, 8}, "": set(), "0-99999999999": set(), "0-999999": set(), "3-1": set(), "a": set(),
        "0,,1": set()},
    texts.cpu_mask: {"3": {0, 1}, "00000001,80000000": {31, 32}, "0,": set(), "0x00000003": {0, 1}, "0x1,,0x00000001": {0, 64},
        "0x0": set(), ",ffffffff": set(range(32)), "00ff00ff": {*range(8), *range(16, 24)}, "xyz": None, "": None, None: None,
        "0xf...f": None, "0xfffffffff": None, "-5": None, "f," * 3000 + "f": None, "f" * (1 << 20): None},
    texts.numa_of: {"0": 0, "7": 7, "-1": None, "N/A": None, None: None, "4096": None, "0x10": 16},
    lambda text: texts.whole(text, -1): {"0": 0, "7": 7, "-1": -1, "N/A": None, None: None, "4096": 4096, "0x10": 16},
}  # fmt: skip


@pytest.mark.parametrize(("read", "text", "expected"), [(read, *case) for read, cases in READINGS.items() for case in cases.items()])
def test_addresses_rates_lanes_cpus_and_numa_nodes_out_of_short_texts(read: Callable[[Any], Any], text: str | None, expected: Any) -> None:
    assert read(text) == expected


@given(st.frozensets(st.integers(0, 300)))
def test_lists_are_written_as_the_kernel_writes_them(numbers: frozenset[int]) -> None:
    assert texts.cpu_list(texts.written(numbers)) == numbers


def test_lists_are_short() -> None:
    assert (texts.written({0, 1, 2, 5, 7, 8}), texts.written(())) == ("0-2,5,7-8", "")
    assert [texts.several(list(names)) for names in ("a", "abcd", "abcdef")] == ["a", "a, b, c, d", "a, b, c, d and 2 more"]
    assert (texts.few([]), texts.few(["a", "b"])) == ((), ("a", "b"))
    many = texts.few([str(number) for number in range(100)])[7:]
    assert many == ("7", "92 more doubts of this kind: the source is damaged, or not of one machine")


LIMITS = texts.FileLimits("a machine's file", "save it again", characters=4 << 20, depth=5, elements=50)
WITH_DOCTYPE = texts.FileLimits("a machine's file", "save it again", 4 << 20, depth=5, elements=50, doctype=True)


def refused(text: str, limits: texts.FileLimits = LIMITS) -> str:
    with pytest.raises(texts.Unreadable) as why:
        texts.top_element(text, "f\x1b.xml", limits)
    assert str(why.value).startswith("f?.xml ")
    assert str(why.value).endswith(": save it again")
    return str(why.value).removeprefix("f?.xml ").removesuffix(": save it again")


def test_the_top_element_with_all_below_it() -> None:
    top = texts.top_element('\ufeff \n<a b="1">x<c>&lt;&#65;</c><!-- note --></a>', "f", LIMITS)
    assert (top.tag, top.attrib, top.text, [(child.tag, child.text) for child in top]) == ("a", {"b": "1"}, "x", [("c", "<A")])


def test_a_doctype_is_read_where_the_kind_has_one_and_entities_nowhere() -> None:
    text = '<!DOCTYPE a SYSTEM "a.dtd"><a/>'
    assert texts.top_element(text, "f", WITH_DOCTYPE).tag == "a"
    assert "broken XML" in refused(text)
    for entity in ('<!ENTITY e "ee">', '<!ENTITY e SYSTEM "file:///etc/passwd">'):
        assert "broken XML" in refused(f"<!DOCTYPE a [{entity}]><a>&e;</a>", WITH_DOCTYPE)


LONG = "x" * texts.LONGEST_TAG


@pytest.mark.parametrize(("text", "why"), [
    ("<a>" * 6, "nests deeper"), ("<a>" + "<b/>" * 50 + "</a>", "more elements"), (" " * (5 << 20), "has 5 Mi characters"),
    *((text, "is broken XML (") for text in ("", " ", "text", "<a>", "<a></b>", "<a/><a/>", "\x00", "\ud800")),
    *((tag, "tag longer than 1 Mi ")
        for tag in (f"<a b='{LONG}'/>", f"<a b='{'>' * texts.LONGEST_TAG}'/>", f"<a {LONG}='1'/>", f"<b{LONG}/>")),
], ids=range(15))  # fmt: skip
def test_what_is_no_xml_of_a_machine_is_refused(text: str, why: str) -> None:
    assert why in refused(text)


def test_a_token_is_parsed_once_however_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fed in blocks, a token of n characters costs n²: 24 Mi of them took 14 s. Counted here: the blocks that expat is fed."""
    from defusedxml.ElementTree import XMLParser

    fed: list[int] = []
    feed = XMLParser.feed
    monkeypatch.setattr(XMLParser, "feed", lambda parser, data: (fed.append(len(data)), feed(parser, data))[1])
    comment = "<a><!--" + ">" * (1 << 20) + "--></a>"
    assert texts.top_element(comment, "f", LIMITS).tag == "a"
    assert fed == [len(comment)]
