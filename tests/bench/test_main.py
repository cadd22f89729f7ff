from __future__ import annotations

from bench.__main__ import BEGIN, END, replace_between_marks


def test_what_people_wrote_around_the_table_stays() -> None:
    text = f"# Benchmarks\n\n{BEGIN}\nold\n{END}\n\n## How to read it\n"
    assert (
        replace_between_marks(text, "new")
        == f"# Benchmarks\n\n{BEGIN}\nnew\n{END}\n\n## How to read it\n"
    )


def test_marks_that_are_missing_are_put_at_the_end() -> None:
    assert (
        replace_between_marks("# Benchmarks\n\n", "new") == f"# Benchmarks\n\n{BEGIN}\nnew\n{END}"
    )
