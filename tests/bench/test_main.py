from __future__ import annotations

from bench.__main__ import BEGIN, END, replace_between_marks


def test_text_around_the_marks_is_kept() -> None:
    text = f"# Benchmarks\n\n{BEGIN}\nold\n{END}\n\n## How to read it\n"
    assert (
        replace_between_marks(text, "new")
        == f"# Benchmarks\n\n{BEGIN}\nnew\n{END}\n\n## How to read it\n"
    )


def test_missing_marks_are_appended() -> None:
    assert (
        replace_between_marks("# Benchmarks\n\n", "new") == f"# Benchmarks\n\n{BEGIN}\nnew\n{END}"
    )


def test_prose_of_the_block_is_wrapped_and_tables_are_not() -> None:
    prose, row = "word " * 30, "| " + "x" * 120 + " |"
    _, first, second, table, _ = replace_between_marks("", f"{prose}\n{row}").split("\n")
    assert (len(first) <= 100, f"{first} {second}", table) == (True, prose.strip(), row)
