import polars as pl

import headrace

job = (
    headrace.Job("flight-delays")
    .source(
        "flights",
        history={"table": "lake.flights.archive"},
        tail={"topic": "flights"},
        event_time={"column": "time_hour", "out_of_orderness": "2d"},
    )
    .table("airlines", table="lake.flights.airlines")
    .filter(pl.col("dep_delay").is_not_null())
    .lookup("airlines", on="carrier", columns=["name"])
    .window(
        "1h",
        by=["carrier", "name", "origin"],
        aggregate={"flights": "count(*)", "total_delay": "sum(dep_delay)"},
    )
    .sink_iceberg("lake.flights.hourly_delays", create=True)
    .sink_kafka("hourly-delays", key=["carrier", "origin"], create=True)
)
