"""Revenue by day and country over Parquet files alone, written with Polars expressions."""

import polars as pl

import headrace

job = (
    headrace.Job("revenue-by-day")
    .source(
        "orders",
        history={"parquet": "data/orders/*.parquet", "where": pl.col("status") != "cancelled"},
        event_time={"column": "ordered_at"},
    )
    .with_columns(revenue=pl.col("price") * pl.col("quantity"))
    .window("1d", by=["country"], aggregate={"orders": "count(*)", "revenue": "sum(revenue)"})
    .sink_iceberg("local.shop.revenue_by_day", create=True, partition_by="month(window_start)")
    .checkpoint(rows=5_000_000)
)
