"""What a user may type that some language would take for more than text; and the same at random."""

from hypothesis import strategies as st

# what shells, YAML, Jinja, Python, sbatch (%j) or an option parser would read as something else
HOSTILE = (
    "two words", "it's", 'a "word"', "$HOME", "$(touch injected)", "`touch injected`", "${IFS}", "$$(HOME)", "{{ inventory_hostname }}",
    "{% raw %}", "{# not a remark #}", "<< job >>", "# no comment", "a # b", "key: value", "- item", "[list]", "*alias", "&anchor",
    "!unsafe x", "!!python/object:x", "yes", "null", "0x10", "1_000", "2026-01-01", "~", "%j", "%%", "-dash", "--out-of-order",
    "back\\slash", "\\n", "a;b", "a|b>c<d&e", "!history", "*?[a]", "grüße 計算 😀", "",
)  # fmt: skip
# every one of these is a line's end somewhere, or moves a terminal
UNPRINTABLE = ("a\nb", "a\rb", "a\tb", "a\x00b", "a\x1b[2Jb", "a\x7fb", "a\x85b", "a\u2028b", "a\u202eb", "a\udc80b", "a\ufeffb")

texts = st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(" '\"$`{}%#\\:-!&*<>"), max_size=20).filter(str.isprintable)
