"""Forecast of the day without refused applications, for manually calculated lines."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

TODAY = date(2026, 11, 20)
DOES_NOT, NONE_LEFT, PACE = "not decreasing", "none left", "at the current rate"


def before(*refused, last=1, apart=1):
    """Refused applications by day, for days that end some days before today and are `apart` days
    apart.
    """
    return {
        TODAY - timedelta(days=last + apart * place): count
        for place, count in enumerate(reversed(refused))
    }


def seen(spark, days):
    from reports.analysis.trend import forecast
    from reports.ingest.small_tables import small_table

    return forecast(
        small_table(
            spark,
            [(str(day), count) for day, count in days.items()],
            "date date, refused_applications bigint",
        ),
        TODAY,
    )


@pytest.mark.parametrize(
    ("days", "per_day", "after", "why"),
    [
        pytest.param(before(3, 3, 3, 3, 3, 3, 3), 0, None, DOES_NOT, id="level"),
        pytest.param(before(1, 2, 3, 4, 5, 6, 7), 1, None, DOES_NOT, id="more"),
        pytest.param(before(0, 0, 0, 0, 0, 0, 0), 0, 0, NONE_LEFT, id="none"),
        pytest.param(before(6, 5, 4, 3, 2, 1, 0), -1, 0, NONE_LEFT, id="none any more"),
        # 7 today, 2 fewer per day: zero after 3.5 days.
        pytest.param(before(21, 19, 17, 15, 13, 11, 9), -2, 4, PACE, id="less"),
        # The same over two weeks: the line is fitted to dates, not to rows.
        pytest.param(
            before(21, 19, 17, 15, 13, 11, 9, apart=2), -1, 8, PACE, id="less, of every other day"
        ),
        # The line is at or below zero today, but the last day had a refused application.
        pytest.param(before(7, 6, 5, 4, 3, 2, 1), -1, 0, PACE, id="one yesterday"),
        pytest.param(
            before(21, 19, 17, 15, 13, 11, 9, last=11), -2, 0, PACE, id="less, and silent since"
        ),
        # 7299 today, 2 fewer per day: zero after 3649.5 days; with two more after 3650.5.
        pytest.param(
            before(7313, 7311, 7309, 7307, 7305, 7303, 7301), -2, 3650, PACE, id="in ten years"
        ),
        pytest.param(
            before(7315, 7313, 7311, 7309, 7307, 7305, 7303),
            -2,
            None,
            DOES_NOT,
            id="in more than ten years",
        ),
    ],
)
def test_day_is_where_regression_line_reaches_zero(spark, days, per_day, after, why):
    found = seen(spark, days)
    assert (found.days, found.why) == (7, why)
    assert found.per_day == pytest.approx(per_day)
    assert found.reaches_zero == (None if after is None else TODAY + timedelta(days=after))


@pytest.mark.parametrize(
    ("refused", "per_day"), [((6, 5, 4, 3, 2, 1), pytest.approx(-1)), ((6,), None), ((), None)]
)
def test_fewer_than_seven_days_give_no_forecast(spark, refused, per_day):
    days = before(*refused)
    found = seen(spark, days | {TODAY: 0})
    assert (found.days, found.per_day, found.reaches_zero) == (len(days), per_day, None)
    assert found.why == f"needs 7 full days of data, has {len(days)}"


def test_current_day_is_incomplete_and_ignored(spark):
    days = before(21, 19, 17, 15, 13, 11, 9)
    assert seen(spark, days | {TODAY: 1000}) == seen(spark, days)
