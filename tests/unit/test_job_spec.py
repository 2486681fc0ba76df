"""The job spec: YAML, JSON and Python give one model, and its graph resolves ids and references."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import polars as pl
import pytest

import headrace
from headrace.jobs.column_types import parse_schema, parse_type, type_name
from headrace.jobs.graph import build_graph
from headrace.jobs.loading import load_job, load_job_text
from headrace.jobs.parse import parse_job
from headrace.jobs.spec import JobSpec, json_schema
from headrace.jobs.spec_sources import StartAtTimestamp, TableHistory
from headrace.jobs.spec_steps import WindowStep
from headrace.jobs.spec_yaml import read_yaml
from headrace.kernel.errors import NotFoundError, SpecError
from headrace.runtime.graph import Stream

EXAMPLES = Path(__file__).parents[2] / "examples"
YAML_EXAMPLES = sorted(EXAMPLES.rglob("*.yaml"))

SPEC = """name: delays
sources:
  flights:
    history: {table: lake.flights.archive, snapshot: 7161825482103941731}
    tail: {topic: flights}
    event_time: {column: time_hour, out_of_orderness: 2h}
tables:
  airlines: {table: lake.flights.airlines}
steps:
  - filter: dep_delay is not null
  - filter: dep_delay > 0
  - lookup: {table: airlines, on: carrier}
  - window: {tumbling: 1h, by: carrier, aggregate: {flights: count(*)}}
sinks:
  - iceberg: {table: lake.flights.hourly}
  - kafka: {topic: late}
    from: window.late
  - kafka: {topic: broken}
    from: flights.errors
"""


def spec_with(old: str, new: str) -> JobSpec:
    assert old in SPEC
    return load_job_text(SPEC.replace(old, new), "job.yaml", environ={})


def tail_job(**tail: object) -> dict[str, object]:
    return {
        "name": "j",
        "sources": {"s": {"tail": {"topic": "t", "schema": {"a": "int64"}} | tail}},
        "sinks": [{"kafka": {"topic": "out"}}],
    }


class TestYaml:
    def test_values_are_those_of_yaml_1_2(self) -> None:
        spec = spec_with("on: carrier", "on: [carrier, yes, 1:30]")
        assert spec.to_json()["steps"][2]["lookup"]["on"] == ["carrier", "yes", "1:30"]

    def test_defaults_and_durations(self) -> None:
        spec = spec_with("name: delays", "name: delays")
        source = spec.sources["flights"]
        assert spec.uid == "delays"
        assert spec.checkpoint.interval == 10_000_000
        assert source.event_time is not None
        assert source.event_time.out_of_orderness == 7_200_000_000
        assert isinstance(source.history, TableHistory)
        assert source.history.snapshot == 7161825482103941731
        assert isinstance(spec.steps[3], WindowStep)
        assert spec.steps[3].window.by == ("carrier",)

    def test_references_to_the_environment_keep_their_type(self) -> None:
        text = SPEC.replace("{topic: flights}", "\n      topic: '${TOPIC:-flights}'\n      rate_limit: ${RATE}")
        tail = load_job_text(text, "job.yaml", environ={"RATE": "500"}).sources["flights"].tail
        assert tail is not None
        assert (tail.topic, tail.rate_limit) == (("flights",), 500)

    def test_escaped_reference_stays(self) -> None:
        spec = spec_with("dep_delay is not null", "\"origin <> '$${HOME}'\"")
        assert spec.to_json()["steps"][0]["filter"] == "origin <> '${HOME}'"

    def test_place_of_any_path(self) -> None:
        spec = spec_with("name: delays", "name: delays")
        assert spec.place("steps", 3, "window", "by") == "job.yaml:13:28: steps[3].window.by"
        assert spec.place("steps", 3, "window", "every") == "job.yaml:13:5: steps[3].window.every"
        error = spec.problem("steps", 0, "filter", message="no column 'x'", hint="did you mean 'y'?")
        assert error.message == "job.yaml:10:5: steps[0].filter: no column 'x'"

    def test_problems_come_in_the_order_of_the_file(self) -> None:
        with pytest.raises(SpecError) as caught:
            load_job_text(SPEC.replace("2h", "2 hours").replace("1h", "1 hour"), "job.yaml", environ={})
        assert caught.value.message.startswith("job.yaml:6:")
        assert "job.yaml:13:" in caught.value.detail


class TestGraph:
    def test_ids_and_inputs(self) -> None:
        graph = build_graph(spec_with("name: delays", "name: delays"))
        assert [(node.id, str(node.input)) for node in graph.steps] == [
            ("filter", "flights"),
            ("filter-2", "filter"),
            ("lookup", "filter-2"),
            ("window", "lookup"),
        ]
        assert [(node.id, node.input) for node in graph.sinks] == [
            ("iceberg-lake.flights.hourly", Stream("window")),
            ("kafka-late", Stream("window", "late")),
            ("kafka-broken", Stream("flights", "errors")),
        ]
        assert graph.source_of(Stream("window", "late")) == "flights"
        assert [node.id for node in graph.readers(Stream("window"))] == ["iceberg-lake.flights.hourly"]

    def test_given_ids_keep_their_names_and_default_ids_avoid_them(self) -> None:
        graph = build_graph(spec_with("- filter: dep_delay > 0", "- filter: dep_delay > 0\n    id: filter"))
        assert [node.id for node in graph.steps][:2] == ["filter-2", "filter"]

    def test_two_sources_need_from(self) -> None:
        other = "  other:\n    history: {table: a.b.c}\ntables:"
        with pytest.raises(SpecError, match="must say which source it reads"):
            spec_with("tables:", other)


class TestSections:
    @pytest.mark.parametrize(
        ("start", "expected"),
        [
            ("latest", "latest"),
            ({"timestamp": "2026-01-01T00:00:00Z"}, StartAtTimestamp(timestamp=datetime(2026, 1, 1, tzinfo=UTC))),
        ],
    )
    def test_start(self, start: object, expected: object) -> None:
        tail = parse_job(tail_job(start=start)).sources["s"].tail
        assert tail is not None
        assert tail.start == expected

    def test_offsets_have_numbers_as_keys(self) -> None:
        spec = parse_job(tail_job(start={"offsets": {"0": 5, "1": 2**62}}))
        assert spec.to_json()["sources"]["s"]["tail"]["start"] == {"offsets": {"0": 5, "1": 2**62}}

    @pytest.mark.parametrize(("given", "size"), [(1000, 1000), ("64MiB", 2**26), ("1 GB", 10**9)])
    def test_sizes(self, given: object, size: int) -> None:
        assert parse_job(tail_job() | {"checkpoint": {"bytes": given}}).checkpoint.bytes == size

    def test_json_form_is_read_back(self) -> None:
        spec = spec_with("name: delays", "name: delays")
        again = parse_job(json.loads(json.dumps(spec.to_json())))
        assert again.model_dump() == spec.model_dump()


class TestPython:
    def test_builder_gives_the_same_model_as_yaml(self) -> None:
        job = (
            headrace.Job("delays")
            .source(
                "flights",
                history={"table": "lake.flights.archive", "snapshot": 7161825482103941731},
                tail={"topic": "flights"},
                event_time={"column": "time_hour", "out_of_orderness": timedelta(hours=2)},
            )
            .table("airlines", table="lake.flights.airlines")
            .filter("dep_delay is not null")
            .filter("dep_delay > 0")
            .lookup("airlines", on="carrier")
            .window("1h", by="carrier", aggregate={"flights": "count(*)"})
            .sink_iceberg("lake.flights.hourly")
            .sink_kafka("late", from_="window.late")
            .sink_kafka("broken", from_="flights.errors")
        )
        assert job.spec().model_dump() == spec_with("name: delays", "name: delays").model_dump()

    def test_jobs_are_immutable(self) -> None:
        base = headrace.Job("j").source("s", history={"parquet": "x.parquet"})
        base.filter("a > 1")
        assert base.sink_kafka("out").spec().steps == ()

    def test_polars_expressions(self) -> None:
        job = (
            headrace.Job("j")
            .source("s", history={"parquet": "x.parquet"})
            .filter(pl.col("a") > 1)
            .with_columns(b=pl.col("a") * 2)
            .select({"b": pl.col("b")})
            .sink_kafka("out")
        )
        spec = job.spec()
        assert "polars: " in json.dumps(spec.to_json())
        assert spec.steps[0].filter.meta.root_names() == ["a"]  # type: ignore[union-attr]

    def test_errors_name_the_path(self) -> None:
        job = headrace.Job("j").source("s", history={"parquet": "x"}).window("1h", aggregate={"n": "count(*)"})
        with pytest.raises(SpecError, match=r"^steps\[0\].window: window 'window' needs an event time"):
            job.sink_kafka("out").spec()


class TestFiles:
    @pytest.mark.parametrize("path", [*YAML_EXAMPLES, EXAMPLES / "orders.py"], ids=lambda path: path.name)
    def test_examples_parse(self, path: Path) -> None:
        assert load_job(path).name

    @pytest.mark.parametrize("path", YAML_EXAMPLES, ids=lambda path: path.name)
    def test_examples_fit_the_json_schema(self, path: Path) -> None:
        jsonschema.Draft202012Validator(json_schema()).validate(read_yaml(path.read_text(), path.name, {}).value)

    def test_json_schema_refuses_a_typo(self) -> None:
        validator = jsonschema.Draft202012Validator(json_schema())
        validator.check_schema(json_schema())
        assert not validator.is_valid(tail_job() | {"stepz": []})
        assert not validator.is_valid(tail_job() | {"steps": [{"fliter": "a > 1"}]})
        assert validator.is_valid(tail_job() | {"steps": [{"filter": "a > 1"}]})

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("x = 1\n1 / 0\n", r"job.py:2: the job file fails\n  detail: ZeroDivisionError"),
            ("job = (\n", r"job.py:1: the job file fails\n  detail: SyntaxError"),
            ("raise SystemExit(3)\n", r"job.py:1: the job file fails"),
            ("x = 1\n", r"must define a module-level 'job'\n  detail: found nothing"),
            ("import headrace\njob = headrace.Job('j')\n", r"job.py: sources: must not be empty"),
        ],
    )
    def test_bad_python_files(self, tmp_path: Path, source: str, message: str) -> None:
        file = tmp_path / "job.py"
        file.write_text(source)
        with pytest.raises(SpecError, match=message):
            load_job(file)

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match=r"nope.yaml does not exist"):
            load_job(tmp_path / "nope.yaml")

    def test_other_suffix(self, tmp_path: Path) -> None:
        (tmp_path / "job.txt").touch()
        with pytest.raises(SpecError, match="neither YAML, JSON nor Python"):
            load_job(tmp_path / "job.txt")


class TestColumnTypes:
    @pytest.mark.parametrize(
        ("text", "dtype"),
        [
            ("long", pl.Int64()),
            ("decimal(10, 2)", pl.Decimal(10, 2)),
            ("timestamptz", pl.Datetime("us", "UTC")),
            ("list<struct<a: int, b: list<string>>>", pl.List(pl.Struct({"a": pl.Int32, "b": pl.List(pl.String)}))),
        ],
    )
    def test_names(self, text: str, dtype: pl.DataType) -> None:
        assert parse_type(text) == dtype
        assert parse_type(type_name(dtype)) == dtype

    @pytest.mark.parametrize("text", ["int65", "list<int", "struct<a>", "decimal(39,2)", "", "list<" * 100 + "int"])
    def test_unknown(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"type|decimal|field"):
            parse_type(text)

    def test_schema(self) -> None:
        assert parse_schema({"a": "int64", "b": "date"}) == pl.Schema({"a": pl.Int64, "b": pl.Date})


class TestFacade:
    def test_names_are_those_promised(self) -> None:
        promised = ["Boundary", "Config", "HeadraceError", "Job", "JobSpec", "load_config", "load_job"]
        assert headrace.__all__ == promised
        assert all(getattr(headrace, name) is not None for name in promised)

    def test_unknown_name(self) -> None:
        with pytest.raises(AttributeError, match="has no attribute 'Jobb'"):
            _ = headrace.Jobb


class TestDocs:
    def test_every_key_is_documented(self) -> None:
        text = (EXAMPLES.parent / "docs" / "job-spec.md").read_text()
        schema = json_schema()
        keys = {key for model in [schema, *schema["$defs"].values()] for key in model["properties"]}
        missing = {key for key in keys if f"`{key}" not in text and f"{key}:" not in text}
        assert not missing

    @pytest.mark.parametrize("language", ["yaml", "python"])
    def test_the_example_is_a_job(self, tmp_path: Path, language: str) -> None:
        text = (EXAMPLES.parent / "docs" / "job-spec.md").read_text()
        block = text.split(f"```{language}\n")[1].split("```")[0]
        file = tmp_path / ("job.yaml" if language == "yaml" else "job.py")
        file.write_text(block)
        assert load_job(file).name == "flight-delays"
