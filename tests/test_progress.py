"""What `sluice run` prints of each table, and of the whole run."""

from sluice.api import Event, RunResult
from sluice.cli.progress import line, summary
from sluice.model.ledger import RowCounts


def done(rows: int, seconds: float) -> Event:
    return Event("done", "bronze.orders", cause="records", rows=RowCounts(inserted=rows), seconds=seconds)


def test_the_rate_of_many_rows_is_printed() -> None:
    many = done(rows=200_000, seconds=4)
    assert line(many) == f"bronze.orders{' ' * 19}4.0 s  200,000 inserted, 50,000 rows/s  [dim](records)[/dim]"
    said = summary(RunResult((many,), seconds=5.0, up_to_date=0))
    assert said == "200,000 records landed and 0 rows changed in silver and gold in 5.0 s (40,000 records/s)."


def test_of_a_few_rows_no_rate_is_printed() -> None:
    few = done(rows=6, seconds=4)
    assert line(few) == f"bronze.orders{' ' * 19}4.0 s  6 inserted  [dim](records)[/dim]"
    said = summary(RunResult((few,), seconds=5.0, up_to_date=0))
    assert said == "6 records landed and 0 rows changed in silver and gold in 5.0 s."
