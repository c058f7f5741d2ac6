"""Sizes, times and rates as text, both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.units import (
    first_of,
    format_bytes,
    format_duration,
    format_float,
    format_percent,
    format_rate,
    format_size,
    format_span,
    format_time,
    listed,
    parse_duration,
    parse_size,
    parse_sizes,
    plural,
    size_steps,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("1K", KIB), ("1.5K", 1536), ("64MiB", 64 * MIB), ("2gb", 2 * GIB), (" 1 T ", 1 << 40), ("0.5K", 512)],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-1", "1Q", "0", "0.5", "1.0001K", "1e3", "1 2", "８", "８K"])
def test_a_text_that_is_not_a_whole_number_of_bytes_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8,1K", [8, KIB]),
        ("1K,8,8", [8, KIB]),
        ("8-64", [8, 16, 32, 64]),
        ("8-64:", [8, 16, 32, 64]),
        ("8-64:X4", [8, 32]),
        ("8-64:x4", [8, 32]),
        ("8-32:x4", [8, 32]),
        ("1K-4K:+1K", [KIB, 2 * KIB, 3 * KIB, 4 * KIB]),
        ("8-8", [8]),
    ],
)
def test_sizes_include_both_ends_of_a_range(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("64-8", "8-64"), ("8-", "'8-'"), ("-8", "'-8'"), ("8-64:x1", "x1"), ("8-64:y2", "y2"), ("8-64:+", "step"), ("8-64:x２", "x２"),
        ("8-64:1", "'1'"), ("1-1G:+1", "100000"), ("1-100002:+1", "100000"), ("1-1G:x1.0000001", "100000"),
        ("1-60K:+1,60001-120K:+1", "100000"),
    ],
)  # fmt: skip
def test_a_range_that_cannot_be_stepped_through_is_rejected(text: str, part: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_sizes(text)
    assert part in str(error.value)


def test_a_range_may_have_a_hundred_thousand_sizes() -> None:
    assert len(parse_sizes("1-100000:+1")) == len(size_steps(1, 100_001, "+1")) - 1 == 100_000
    assert len(size_steps(1, 200_002, "+2")) == 100_001
    assert parse_sizes("1-50000:+1,50001-100000:+1")[-1] == 100_000


def test_a_factor_in_other_digits_is_rejected() -> None:
    with pytest.raises(UsageError, match="size step 'x٢'"):
        size_steps(8, 64, "x٢")


def test_a_small_factor_gives_each_size_once() -> None:
    assert size_steps(8, 14, "x1.1") == [8, 9, 10, 11, 12, 13]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (8, "8 B"),
        (1000, "1000 B"),
        (KIB, "1 KiB"),
        (1536, "1.5 KiB"),
        (KIB + 128, "1.125 KiB"),
        (KIB + 64, "1088 B"),
        (MIB, "1 MiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (1 << 40, "1 TiB"),
        (1023, "1023 B"),
    ],
)
def test_a_size_is_shown_without_rounding(size: int, text: str) -> None:
    assert format_size(size) == text
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1 KiB"),
        (GIB, "1 GiB"),
        (20.94 * GIB, "20.9 GiB"),
        (999.4 * MIB, "999 MiB"),
        (999.6 * MIB, "999.6 MiB"),
        (1000 * MIB, "1000 MiB"),
        (1010 * MIB, "1010 MiB"),
        (1000.5 * MIB, "1000 MiB"),
        (1 << 40, "1 TiB"),
        (1536 * GIB, "1.5 TiB"),
    ],
)
def test_memory_has_three_digits(amount: float, text: str) -> None:
    assert format_bytes(amount) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (6.8571, "6.857"),
        (0.00012, "0.00012"),
        (999.96, "1000"),
        (1000.4, "1000"),
        (12345.6, "12346"),
        (-12345.6, "-12346"),
        (1e15, "1e+15"),
    ],
)
def test_a_number_has_four_digits(value: float, text: str) -> None:
    assert format_float(value) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "rank", "0 ranks"), (1, "rank", "1 rank"), (2, "rank", "2 ranks"), (1, "switch", "1 switch"), (3, "switch", "3 switches"),
        (2, "bus", "2 buses"), (2, "mesh", "2 meshes"), (2, "box", "2 boxes"), (5000, "path", "5,000 paths"),
    ],
)  # fmt: skip
def test_a_count_has_its_noun(count: int, noun: str, text: str) -> None:
    assert plural(count, noun) == text


def test_many_names_are_cut() -> None:
    names = list("abcdefghi")
    assert [listed(names[:number]) for number in range(3)] == ["", "a", "a and b"]
    assert listed(names[:8]) == "a, b, c, d, e, f, g and h" and listed(names) == "a, b, c, d, e, f, g, h and 1 more"
    assert listed(names[:3], 2, "or") == "a, b or 1 more" and listed(["n"] * 5000, 1) == "n and 4,999 more"
    assert listed(["node1", "node2"]) == "node1 and node2" and listed(["one"]) == "one"
    assert (
        first_of(iter("ab"), 2) == "a, b"
        and first_of(iter("abcdef"), 2) == "a, b and 4 more"
        and first_of("abc", 2, "+") == "a+b and 1 more"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2345e-6, "0.2345"),
        (1.2345e-6, "1.234"),
        (12.345e-6, "12.35"),
        (123.45e-6, "123.5"),
        (1234.5e-6, "1234"),
        (0.104912, "104912"),
        (1e9, "1e+15"),
        (1e14, "1e+20"),
        (0.0, "0.0000"),
    ],
)
def test_a_time_has_four_digits(seconds: float, text: str) -> None:
    assert format_time(seconds) in (text, {"1.234": "1.235", "12.35": "12.34", "123.5": "123.4"}.get(text, text))


@pytest.mark.parametrize(("seconds", "text"), [
    (0.25e-6, "0.2500 µs"), (999.94e-6, "999.9 µs"), (1e-3, "1.000 ms"), (0.1402, "140.2 ms"), (9.5, "9500 ms"), (10, "10.00 s"),
    (12.5, "12.50 s"),
])  # fmt: skip
def test_a_time_with_its_unit(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


def test_an_interval_has_the_unit_of_its_time() -> None:
    assert format_span(1.2e-3, 0.9e-3, 1.6e-3) == "1.200 ms [0.9000, 1.600]"
    assert format_span(1.2e-3, None, 1.6e-3) == "1.200 ms"


@pytest.mark.parametrize(
    ("gb_per_s", "text"),
    [
        (400, "400"),
        (100, "100"),
        (99.97, "100"),
        (99.94, "99.9"),
        (42, "42.0"),
        (1, "1.00"),
        (0.118, "0.118"),
        (0.00031, "0.000310"),
        (0.00001, "0.00001"),
        (1e-6, "<0.00001"),
        (0.0, "0.00"),
    ],
)
def test_a_rate_has_three_digits(gb_per_s: float, text: str) -> None:
    assert format_rate(gb_per_s * 1e9) == text


@pytest.mark.parametrize(("percent", "text"), [(100, "100 %"), (84.4, "84 %"), (10, "10 %"), (9.94, "9.9 %"), (0.6, "0.6 %"), (0, "0.0 %")])
def test_a_percentage_is_whole_from_10_on(percent: float, text: str) -> None:
    assert format_percent(percent) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (7259, "2 h 00 min"),
        (90000, "25 h 00 min"),
    ],
)
def test_a_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("180ms", 0.18), ("0.18", 0.18), ("0.18s", 0.18), (" 900 us ", 900e-6), ("900µs", 900e-6), ("900\u03bcs", 900e-6), ("2", 2.0),
     (".5S", 0.5), ("180MS", 0.18), ("2m", 120.0), ("2 min", 120.0), ("1h", 3600.0),
     ("1e-1", 0.1)],
)  # fmt: skip
def test_a_time_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "0ms", "-1", "８", "5d", "ms", "inf", "nan", "1,5", "180ms 3", "180m\u017f", "9" * 400])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="not a valid time"):
        parse_duration(text)


@given(st.floats(0.001, 1e6), st.sampled_from([("s", 1.0), ("ms", 1e-3), ("us", 1e-6)]))
def test_units_scale(number: float, unit: tuple[str, float]) -> None:
    assert parse_duration(f"{number:.6f}{unit[0]}") == pytest.approx(round(number, 6) * unit[1], rel=1e-6)


@given(st.text(max_size=12))
def test_any_text_is_a_time_or_a_sentence(text: str) -> None:
    try:
        assert parse_duration(text) > 0
    except UsageError as error:
        assert str(error).startswith(f"'{text}' is ")


def test_letters_that_look_like_units_are_named() -> None:
    with pytest.raises(UsageError, match=r"\(it contains CYRILLIC CAPITAL LETTER KA\)"):
        parse_sizes("8,1К")
    with pytest.raises(UsageError, match=r"CYRILLIC CAPITAL LETTER KA and CYRILLIC CAPITAL LETTER EM\)"):
        parse_sizes("1КМ")
    with pytest.raises(UsageError, match=r"CYRILLIC CAPITAL LETTER EM and 1 more\)"):
        parse_sizes("1КМТ")
    for text in ("1Q", "1\x80"):  # a control character has no name
        with pytest.raises(UsageError) as error:
            parse_sizes(text)
        assert "contains" not in str(error.value)


def test_a_duration_without_a_meaning_is_short() -> None:
    assert format_duration(1e99) == format_duration(float("inf")) == "more than 1,000,000 h"
    assert format_duration(3.6e9 - 3600) == "999999 h 00 min"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("99999999999999999999", "below 8 EiB"),
        ("8388608T", "below 8 EiB"),
        ("1K..1M", "write 1K-1M"),
        ("1..x", "not a valid number of bytes"),
    ],
)
def test_a_size_without_a_meaning_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_sizes(text)


def test_a_time_of_more_than_a_century_is_refused() -> None:
    with pytest.raises(UsageError, match="too long"):
        parse_duration("1e99")
    assert parse_duration("1000000h") == 3.6e9
