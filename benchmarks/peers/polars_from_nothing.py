"""Polars computes the four tables from the whole log each time, and delta-rs replaces them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from benchmarks.peers.shared import Refresh, segments

payloads: dict[str, dict[str, pl.DataType | type[pl.DataType]]] = {
    "sales": {"id": pl.String, "customer": pl.String, "sold_at": pl.String, "amount": pl.Float64},
    "customers": {"customer": pl.String, "changed_at": pl.String, "segment": pl.String},
}


def records(topic: str, files: Sequence[str]) -> pl.LazyFrame:
    """The parsed records of segments, in the order of partitions and offsets."""
    payload = pl.col("value").str.json_decode(pl.Struct(payloads[topic]))
    return pl.scan_ndjson(list(files), schema={"value": pl.String}).select(payload).unnest("value")


def time(column: str) -> pl.Expr:
    return pl.col(column).str.to_datetime("%+", time_unit="us", time_zone="UTC")


def sales_of(files: Sequence[str]) -> pl.DataFrame:
    sales = records("sales", files).with_columns(time("sold_at"), pl.col("amount").cast(pl.Decimal(12, 2)))
    return sales.unique("id", keep="first", maintain_order=True).collect()


def customers_of(files: Sequence[str]) -> pl.DataFrame:
    """The versions of each customer; a change to the same segment opens none."""
    changes = records("customers", files).with_columns(time("changed_at")).sort("customer", "changed_at")
    opens_one = pl.col("segment").ne_missing(pl.col("segment").shift().over("customer"))
    valid_to = pl.col("changed_at").shift(-1).over("customer")
    return (
        changes.filter(opens_one)
        .select("customer", "segment", pl.col("changed_at").alias("valid_from"), valid_to.alias("valid_to"))
        .collect()
    )


def sold_of(sales: pl.DataFrame, customers: pl.DataFrame) -> pl.DataFrame:
    joined = sales.sort("sold_at").join_asof(
        customers.select("customer", "segment", "valid_from").sort("valid_from"),
        left_on="sold_at",
        right_on="valid_from",
        by="customer",
        check_sortedness=False,
        coalesce=False,
    )
    buyer = pl.when(pl.col("valid_from").is_not_null()).then(pl.struct("segment", "valid_from"))
    return joined.select(*sales.columns, buyer.alias("buyer"))


def revenue_of(sold: pl.DataFrame) -> pl.DataFrame:
    segment = pl.col("buyer").struct.field("segment")
    groups = sold.group_by(segment, pl.col("sold_at").dt.date().alias("day"))
    return groups.agg(pl.len().cast(pl.Int64).alias("sales"), pl.col("amount").sum())


@contextmanager
def driver(log: Path, lake: Path) -> Iterator[Refresh]:
    def refresh() -> None:
        files = segments(log)
        sales, customers = sales_of(files["sales"]), customers_of(files["customers"])
        sold = sold_of(sales, customers)
        written = {"silver/sales": sales, "silver/customers": customers, "silver/sold": sold}
        for table, rows in (written | {"gold/revenue": revenue_of(sold)}).items():
            rows.write_delta(str(lake / table), mode="overwrite")

    yield refresh
