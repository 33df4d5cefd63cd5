"""The one error for input that is wrong. It lives alone so that nothing heavy is imported with it."""

from __future__ import annotations

from collections.abc import Iterable


class VotesError(ValueError):
    """Input that cannot be used, with what is wrong, where, and how to mend it in the message."""


def some(rows: Iterable, limit: int = 5) -> str:
    """'3, 8, 21, 34, 55 and 7 more': the first few offending rows of a message."""
    rows = list(rows)
    text = ", ".join(str(row) for row in rows[:limit])
    return f"{text} and {len(rows) - limit} more" if len(rows) > limit else text
