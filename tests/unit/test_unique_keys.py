"""A sink that upserts has a key that tells the rows of its changelog apart, as far as that can be known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.parse import parse_job
from headrace.kernel.errors import SpecError

EVENT = {"event_time": {"column": "at"}}
COUNT = {"by": ["a", "b"], "aggregate": {"n": "count(*)"}}
COUNTED = {"id": "c", "aggregate": COUNT}
WINDOWED = {"aggregate": {"n": "count(*)"}, "by": ["a"], "early": "1m"}


def top(n: int, by: str | None = "a", order_by: str = "id", **more: str) -> dict[str, Any]:
    return {"id": "t", "running_top": {"n": n, "order_by": order_by, **({"by": by} if by else {}), **more}}


def joined(how: str, on: Any, left: str = "x", right: str = "c") -> dict[str, Any]:
    return {"id": "j", "join": {"left": left, "right": right, "on": on, "how": how, "right_prefix": "r_"}}


GOOD: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([COUNTED], ["a", "b"]),
    ([COUNTED], ["b", "a", "n"]),
    ([COUNTED, {"filter": "n > 1"}, {"drop": "n"}], ["a", "b"]),
    ([{"aggregate": {"aggregate": {"n": "count(*)"}}}], ["n"]),
    ([COUNTED, {"select": {"x": "a", "y": "b", "n": "n"}}], ["x", "y"]),
    ([COUNTED, {"select": ["a as x", "a", "b", "n"]}], ["x", "b"]),
    ([COUNTED, {"with_columns": {"b": "a", "c": "b"}}], ["b", "c"]),
    ([COUNTED, {"with_columns": {"k": "a || b"}}, {"drop": ["a", "b"]}], ["k"]),
    ([COUNTED, {"select": {"k": "cast(a as string)", "b": "b"}}], ["k", "b"]),
    ([top(1)], ["a"]),
    ([top(3, rank="r")], ["a", "r"]),
    ([top(3, rank="r")], ["id"]),  # only the user knows whether ids are unique
    ([top(3)], ["id"]),
    ([top(2, None, rank="r")], ["r"]),
    ([COUNTED, top(2, "a", "n")], ["a", "b"]),
    ([{"window": {"tumbling": "1h", **WINDOWED}}], ["a", "window_start"]),
    ([{"window": {"hopping": "1h", "every": "30m", **WINDOWED}}], ["a", "window_end"]),
    ([{"window": {"cumulating": "1h", "every": "30m", **WINDOWED}}], ["a", "window_end"]),
    ([COUNTED, joined("left", ["a", "b"])], ["id"]),
    ([COUNTED, {"id": "d", "from": "x", "dedup": {"by": "id"}}, joined("left", ["a", "b"], left="d")], ["id"]),
    ([COUNTED, joined("inner", ["a"], left="c", right="x")], ["a", "b", "r_id"]),
    ([{**COUNTED, "id": "l"}, COUNTED, joined("full", ["a"], left="l")], ["a", "b", "r_b"]),
    ([{**COUNTED, "id": "l"}, COUNTED, joined("semi", ["a"], left="l")], ["a", "b"]),
    ([{**COUNTED, "id": "l"}, COUNTED, {"id": "u", "union": ["l", "c"]}], ["n"]),
    ([COUNTED, {"lookup": {"table": "names", "on": "a"}}], ["a", "b"]),
]

BAD: list[tuple[list[dict[str, Any]], list[str], str]] = [
    ([COUNTED], ["a"], "key: [a, b]"),
    ([COUNTED], ["n"], "key: [a, b]"),
    ([COUNTED, {"filter": "n > 1"}, {"select": {"x": "a", "y": "b", "n": "n"}}], ["x"], "key: [x, y]"),
    ([COUNTED, {"select": ["a", "n"]}], ["a"], "running_top"),
    ([top(3)], ["a"], "running_top"),
    ([top(3, rank="r")], ["a"], "key: [a, r]"),
    ([top(3, rank="r")], ["r"], "key: [a, r]"),
    ([COUNTED, top(1, "a", "n")], ["b"], "key: [a]"),
    ([COUNTED, top(2, "a", "n", rank="r")], ["a"], "key: [a, b]"),
    ([{"window": {"tumbling": "1h", **WINDOWED}}], ["a"], "key: [a, window_end]"),
    ([{"window": {"cumulating": "1h", "every": "30m", **WINDOWED}}], ["a", "window_start"], "key: [a, window_end]"),
    ([{**COUNTED, "id": "l"}, COUNTED, joined("full", ["a"], left="l")], ["a", "b"], "key: [a, b, r_b]"),
    ([{**COUNTED, "id": "l"}, COUNTED, joined("left", ["a", "b"], left="l")], ["a"], "key: [a, b]"),
]


def compiled(folder: Path, steps: list[dict[str, Any]], key: list[str], **source: object) -> None:
    frame = pl.DataFrame({"at": [0], "id": [1], "a": ["x"], "b": ["y"]}).cast({"at": pl.Datetime("us", "UTC")})
    frame.write_parquet(folder / "x.parquet")
    frame.select("a", pl.lit("n").alias("name")).write_parquet(folder / "names.parquet")
    spec = {
        "name": "j",
        "sources": {"x": {"history": {"parquet": str(folder / "x.parquet")}, **EVENT, **source}},
        "steps": steps,
        "sinks": [{"id": "out", "kafka": {"topic": "t", "key": key}}],
    }
    if "names" in str(steps):
        spec["tables"] = {"names": {"parquet": str(folder / "names.parquet")}}
    config = load_config(state_path=folder / "state", cwd=folder)
    object.__setattr__(config, "kafka", {"default": {"bootstrap.servers": "127.0.0.1:1"}})
    compile_job(parse_job(spec), config)


@pytest.mark.parametrize(("steps", "key"), GOOD, ids=str)
def test_a_key_that_tells_rows_apart_or_that_only_the_user_knows_of_is_taken(
    steps: list[dict[str, Any]], key: list[str], tmp_path: Path
) -> None:
    compiled(tmp_path, steps, key)


@pytest.mark.parametrize(("steps", "key", "cure"), BAD, ids=str)
def test_a_key_that_several_rows_share_is_refused_with_one_that_they_do_not(
    steps: list[dict[str, Any]], key: list[str], cure: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=r"sink 'out' upserts by .* they would overwrite each other") as caught:
        compiled(tmp_path, steps, key)
    assert caught.value.code == "UPSERT_KEY_NOT_UNIQUE"
    assert cure in caught.value.hint
