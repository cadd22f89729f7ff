"""Numbers of examples of properties that need more or fewer than others.

The profiles of `conftest.py` change only the number of properties without one.
"""

from __future__ import annotations

from hypothesis import settings

#: Hypothesis's default, and the number of `make test`.
DEFAULT = 100


def scaled(number: int) -> int:
    """`number` if the profile has DEFAULT examples, otherwise in proportion to those it has."""
    return max(1, number * settings().max_examples // DEFAULT)
