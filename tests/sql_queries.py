"""Random whole queries over the tables of :mod:`tests.sql_jobs`, as Headrace and as DuckDB take them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import polars as pl

from tests.sql_jobs import START

_LITERALS: Final = {
    "int": ["-2", "0", "1", "2", "5"],
    "text": ["'A'", "'B'", "''", "'x'"],
    "bool": ["TRUE", "FALSE"],
    "float": ["0.5", "2.0", "-1.25"],
}
_PARTS: Final = {
    "int": [
        "({int} + {int})",
        "({int} * {int})",
        "({int} % 3)",
        "COALESCE({int}, {int})",
        "CASE WHEN {bool} THEN {int} ELSE {int} END",
        "NULLIF({int}, {int})",
        "ABS({int})",
        "CHAR_LENGTH({text})",
    ],
    "text": [
        "({text} || {text})",
        "COALESCE({text}, {text})",
        "CASE WHEN {bool} THEN {text} END",
        "LOWER({text})",
        "CAST({int} AS VARCHAR)",
    ],
    "float": ["({float} + {float})", "({int} * 0.5)", "CASE WHEN {bool} THEN {float} ELSE {float} END"],
    "bool": [
        "({int} < {int})",
        "({int} = {int})",
        "({text} <> {text})",
        "({text} = {text})",
        "({float} < {float})",
        "({bool} AND {bool})",
        "({bool} OR {bool})",
        "(NOT {bool})",
        "({int} IS NULL)",
        "({text} IS NULL)",
        "({int} IS DISTINCT FROM {int})",
        "({int} IN ({int}, 2, NULL))",
        "({int} BETWEEN {int} AND {int})",
    ],
}
_AGGREGATES: Final = [
    ("int", "COUNT(*)"),
    ("int", "SUM({int})"),
    ("int", "MIN({int})"),
    ("int", "MAX({int})"),
    ("int", "COUNT({int})"),
    ("int", "COUNT(DISTINCT {int})"),
    ("text", "MIN({text})"),
    ("mean", "AVG({int})"),
    ("mean", "SUM({float})"),
]
_NEAR: Final = '{b}."at" BETWEEN {a}."at" - INTERVAL \'30\' MINUTE AND {a}."at" + INTERVAL \'10\' MINUTE'
_JOINS: Final = ("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN")
_HALF: Final = ("SEMI JOIN", "ANTI JOIN")

_AT: Final = '"at"'

Kinds = Mapping[str, str]


def tables(seed: int, rows: int = 60, *, ties: bool = True) -> dict[str, pl.DataFrame]:
    """Two streams and a static table: nulls in every column but the time.

    Args:
        seed: Of the random values.
        rows: Of the longer stream.
        ties: Whether several rows of a stream may have one event time.
    """
    dice = random.Random(seed)

    def moments(count: int) -> list[object]:
        minutes = dice.choices(range(6 * 60), k=count) if ties else dice.sample(range(6 * 60), count)
        return [START + timedelta(minutes=minute) for minute in minutes]

    def some(count: int, values: Sequence[object]) -> list[object]:
        return [dice.choice([None, *values]) for _ in range(count)]

    few, time = rows // 3, pl.Datetime("us", "UTC")
    flights = {
        "id": pl.Series(range(rows), dtype=pl.Int64),
        "carrier": pl.Series(some(rows, ["A", "B", "C", "D", ""]), dtype=pl.String),
        "at": pl.Series(moments(rows), dtype=time),
        "delay": pl.Series(some(rows, range(-5, 8)), dtype=pl.Int64),
        "w": pl.Series(some(rows, [0.5, -1.25, 2.0, 0.0, 3.5]), dtype=pl.Float64),
        "ok": pl.Series(some(rows, [True, False]), dtype=pl.Boolean),
    }
    alerts = {
        "id": pl.Series(range(few), dtype=pl.Int64),
        "carrier": pl.Series(some(few, ["A", "B", "E"]), dtype=pl.String),
        "at": pl.Series(moments(few), dtype=time),
        "level": pl.Series(some(few, range(5)), dtype=pl.Int64),
        "v": pl.Series(some(few, [0.5, 2.0, 9.0]), dtype=pl.Float64),
        "raised": pl.Series(some(few, [True, False]), dtype=pl.Boolean),
    }
    airlines = {"carrier": ["A", "B", "C"], "name": ["Alpha", "Beta", None], "rank": [1, 2, 3]}
    return {"flights": pl.DataFrame(flights), "alerts": pl.DataFrame(alerts), "airlines": pl.DataFrame(airlines)}


@dataclass(frozen=True, slots=True)
class Query:
    """A query.

    Attributes:
        sql: As Headrace takes it.
        duck: As DuckDB does.
        kinds: What it gives: the kind of each column, but the event time's.
        timed: Whether its rows have their event time, as ``at``.
        single: Whether no two rows of it have one event time, where the tables are so.
    """

    sql: str
    duck: str
    kinds: Kinds
    timed: bool = False
    single: bool = False


BASES: Final = [
    Query(text, text, kinds, timed=True, single=True)
    for text, kinds in (
        (
            'SELECT id, carrier, "at", delay, w, ok FROM flights',
            {"id": "int", "carrier": "text", "delay": "int", "w": "float", "ok": "bool"},
        ),
        (
            'SELECT id, carrier, "at", level, v, raised FROM alerts',
            {"id": "int", "carrier": "text", "level": "int", "v": "float", "raised": "bool"},
        ),
    )
]


@dataclass(slots=True)
class Made:
    """Makes random queries; one object makes one query."""

    dice: random.Random
    bases: Sequence[Query]
    ties: bool = True
    _names: int = field(default=0, init=False)

    def query(self, depth: int) -> Query:
        """A query that nests others ``depth`` deep at most."""
        if not depth or self.dice.random() < 0.05:
            return self.dice.choice(self.bases)
        makers: list[Callable[[int], Query]] = [self.where, self.grouped, self.joined, self.unnumbered] * 2
        makers += [self.distinct, self.union, self.among, self.existing, self.valued, self.ranked]
        makers += [self.ranked_in_windows]
        makers += [self.windowed, self.framed, self.near, self.looked_up, self.first, self.twice]
        makers += [self.sessions, self.cumulated, self.twice_windowed]
        makers += [] if self.ties else [self.counted, self.counted, self.as_of, self.numbered]
        return self.dice.choice(makers)(depth)

    # ------------------------------------------------------------------------------------------------------ pieces

    def _name(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    def _inner(self, depth: int) -> Query:
        return self.query(self.dice.randrange(depth))

    def _timed(self, depth: int) -> Query:
        found = self._inner(depth)
        return found if found.timed else self.dice.choice(self.bases)

    def _column(self, kinds: Kinds, kind: str) -> str | None:
        found = [name for name, its in kinds.items() if its == kind]
        return self.dice.choice(found) if found else None

    def _expression(self, kinds: Kinds, kind: str, depth: int = 2) -> str:
        column = self._column(kinds, kind)
        if not depth or self.dice.random() < 0.3:
            return column if column and self.dice.random() < 0.85 else self.dice.choice(_LITERALS[kind])
        return self._filled(self.dice.choice(_PARTS[kind]), kinds, depth - 1)

    def _filled(self, text: str, kinds: Kinds, depth: int) -> str:
        while "{" in text:
            before, _, rest = text.partition("{")
            kind, _, after = rest.partition("}")
            text = f"{before}{self._expression(kinds, kind, depth)}{after}"
        return text

    def _items(self, kinds: Kinds, count: int = 0) -> tuple[str, dict[str, str]]:
        given: dict[str, str] = {}
        texts = []
        for _ in range(count or self.dice.randint(1, 4)):
            kind, name = self.dice.choice(["int", "int", "text", "bool", "float"]), self._name("c")
            given[name] = kind
            texts.append(f"{self._expression(kinds, kind)} AS {name}")
        return ", ".join(texts), given

    def _aggregates(self, kinds: Kinds) -> tuple[str, dict[str, str]]:
        given: dict[str, str] = {}
        texts = []
        for _ in range(self.dice.randint(1, 3)):
            (kind, text), name = self.dice.choice(_AGGREGATES), self._name("c")
            only = f" FILTER (WHERE {self._expression(kinds, 'bool', 1)})" if self.dice.random() < 0.3 else ""
            given[name] = kind
            texts.append(f"{self._filled(text, kinds, 1)}{only} AS {name}")
        return ", ".join(texts), given

    def _of(self, inner: Query) -> tuple[str, dict[str, str]]:
        """An alias, and the columns by it."""
        alias = self._name("t")
        return alias, {f"{alias}.{name}": kind for name, kind in inner.kinds.items()}

    def _equal(self, left: Kinds, right: Kinds) -> str:
        """An equality of two columns; empty where none are of a kind."""
        for kind in self.dice.sample(["int", "text"], 2):
            one, other = self._column(left, kind), self._column(right, kind)
            if one and other:
                return f"{one} = {other}"
        return ""

    # ----------------------------------------------------------------------------------------------------- queries

    def where(self, depth: int) -> Query:
        inner = self._inner(depth)
        alias, kinds = self._of(inner)
        items, given = self._items(kinds)
        timed = inner.timed and self.dice.random() < 0.7
        time = f', {alias}."at" AS "at"' if timed else ""
        text = f"SELECT {items}{time} FROM ({{0}}) AS {alias} WHERE {self._expression(kinds, 'bool')}"
        return _made(text, given, inner, timed=timed, single=timed and inner.single)

    def unnumbered(self, depth: int) -> Query:
        """All rows of another query, with names of their own."""
        inner = self._inner(depth)
        alias, kinds = self._of(inner)
        items, given = self._items(kinds)
        return _made(f"SELECT {items} FROM ({{0}}) AS {alias}", given, inner)

    def grouped(self, depth: int) -> Query:
        inner = self._inner(depth)
        alias, kinds = self._of(inner)
        keys: dict[str, tuple[str, str]] = {}
        for _ in range(self.dice.randint(1, 2)):
            kind = self.dice.choice(["int", "text", "bool"])
            text = self._expression(kinds, kind, 1)
            if any(name in text for name in kinds):
                keys[self._name("c")] = (kind, text)
        if not keys:
            return self.distinct(depth)
        items, given = self._aggregates(kinds)
        selected = "".join(f"{text} AS {name}, " for name, (_, text) in keys.items())
        having = f" HAVING COUNT(*) > {self.dice.randint(0, 3)}" if self.dice.random() < 0.3 else ""
        by = ", ".join(text for _, text in keys.values())
        text = f"SELECT {selected}{items} FROM ({{0}}) AS {alias} GROUP BY {by}{having}"
        return _made(text, {**{name: kind for name, (kind, _) in keys.items()}, **given}, inner)

    def distinct(self, depth: int) -> Query:
        inner = self._inner(depth)
        alias, kinds = self._of(inner)
        items, given = self._items(kinds, 2)
        return _made(f"SELECT DISTINCT {items} FROM ({{0}}) AS {alias}", given, inner)

    def joined(self, depth: int) -> Query:
        return self._join(self._inner(depth), self._inner(depth), self.dice.choice(_JOINS), "")

    def near(self, depth: int) -> Query:
        """A join by event time."""
        return self._join(*self.dice.choices(self.bases, k=2), self.dice.choice(_JOINS), f" AND {_NEAR}")

    def _join(self, left: Query, right: Query, how: str, near: str) -> Query:
        (a, mine), (b, other) = self._of(left), self._of(right)
        equal = self._equal(mine, other)
        if not equal:
            return left
        if self.dice.random() < 0.4:
            near += f" AND {self._expression({**mine, **other}, 'bool', 1)}"
        kinds = mine if how in _HALF else {**mine, **other}
        items, given = self._items(kinds)
        where = f" WHERE {self._expression(kinds, 'bool', 1)}" if self.dice.random() < 0.3 else ""
        on = equal + near.format(a=a, b=b)
        return _made(f"SELECT {items} FROM ({{0}}) AS {a} {how} ({{1}}) AS {b} ON {on}{where}", given, left, right)

    def looked_up(self, depth: int) -> Query:
        """A join with a static table."""
        inner = self._inner(depth)
        alias, kinds = self._of(inner)
        key = self._column(kinds, "text")
        if key is None:
            return self.distinct(depth)
        items, given = self._items({**kinds, "al.name": "text", "al.rank": "int"})
        timed = inner.timed and self.dice.random() < 0.7
        time = f', {alias}."at" AS "at"' if timed else ""
        how = self.dice.choice(["JOIN", "LEFT JOIN"])
        text = f"SELECT {items}{time} FROM ({{0}}) AS {alias} {how} airlines AS al ON {key} = al.carrier"
        return _made(text, given, inner, timed=timed, single=timed and inner.single)

    def union(self, depth: int) -> Query:
        one, two = self._inner(depth), self._inner(depth)
        given = {self._name("c"): self.dice.choice(["int", "text"]) for _ in range(2)}
        timed = one.timed and two.timed and self.dice.random() < 0.7
        texts = []
        for place, inner in enumerate((one, two)):
            alias, kinds = self._of(inner)
            items = ", ".join(f"{self._expression(kinds, kind)} AS {name}" for name, kind in given.items())
            texts.append(f"SELECT {items}{f', {alias}.{_AT} AS {_AT}' if timed else ''} FROM ({{{place}}}) AS {alias}")
        return _made(" UNION ALL ".join(texts), given, one, two, timed=timed)

    def among(self, depth: int) -> Query:
        """IN, and NOT IN."""
        outer, inner = self._inner(depth), self._inner(depth)
        (a, mine), (b, other) = self._of(outer), self._of(inner)
        kind, items = self.dice.choice(["int", "text"]), self._items(mine)
        asked = self._column(other, kind) or self._expression(other, kind, 1)
        equal = self._equal(mine, other) if self.dice.random() < 0.3 else ""
        query = f"SELECT {asked} FROM ({{1}}) AS {b}{f' WHERE {equal}' if equal else ''}"
        condition = f"{self._expression(mine, kind, 1)} {self.dice.choice(['', 'NOT '])}IN ({query})"
        text = f"SELECT {items[0]} FROM ({{0}}) AS {a} WHERE {condition} AND {self._expression(mine, 'bool', 1)}"
        return _made(text, items[1], outer, inner)

    def existing(self, depth: int) -> Query:
        """EXISTS, and NOT EXISTS."""
        outer, inner = self._inner(depth), self._inner(depth)
        (a, mine), (b, other) = self._of(outer), self._of(inner)
        equal = self._equal(mine, other)
        if not equal:
            return outer
        more = f" AND {self._expression(other, 'bool', 1)}" if self.dice.random() < 0.4 else ""
        items, given = self._items(mine)
        query = f"{self.dice.choice(['', 'NOT '])}EXISTS (SELECT 1 FROM ({{1}}) AS {b} WHERE {equal}{more})"
        return _made(f"SELECT {items} FROM ({{0}}) AS {a} WHERE {query}", given, outer, inner)

    def valued(self, depth: int) -> Query:
        """A query that gives one value, in the select list or in WHERE."""
        outer, inner = self._inner(depth), self._inner(depth)
        (a, mine), (b, other) = self._of(outer), self._of(inner)
        equal = self._equal(mine, other) if self.dice.random() < 0.4 else ""
        value = self._filled(self.dice.choice(["MAX({int})", "COUNT(*)", "SUM({int})"]), other, 1)
        query = f"(SELECT {value} FROM ({{1}}) AS {b}{f' WHERE {equal}' if equal else ''})"
        items, given = self._items(mine, 2)
        if self.dice.random() < 0.5:
            name = self._name("c")
            return _made(f"SELECT {items}, {query} AS {name} FROM ({{0}}) AS {a}", {**given, name: "int"}, outer, inner)
        asked = f"{self._expression(mine, 'int', 1)} < {query}"
        return _made(f"SELECT {items} FROM ({{0}}) AS {a} WHERE {asked}", given, outer, inner)

    def ranked(self, depth: int) -> Query:
        """The first rows of each key, in an order of all columns."""
        inner = self._inner(depth)
        alias, kinds = self._of(inner)
        places = [f"{name} {self.dice.choice(['ASC', 'DESC'])} NULLS LAST" for name in kinds]
        self.dice.shuffle(places)
        key = self._column(kinds, self.dice.choice(["text", "int", "bool"]))
        by = f"PARTITION BY {key} " if key and self.dice.random() < 0.8 else ""
        items = ", ".join(f"{alias}.{name} AS {name}" for name in inner.kinds)
        number = f"ROW_NUMBER() OVER ({by}ORDER BY {', '.join(places)}) <= {self.dice.randint(1, 3)}"
        return _made(f"SELECT {items} FROM ({{0}}) AS {alias} QUALIFY {number}", inner.kinds, inner)

    def ranked_in_windows(self, depth: int) -> Query:
        """The first rows of each hour, with its bounds, in an order of all columns."""
        inner = self._timed(depth)
        alias, kinds = self._of(inner)
        places = [f"{name} {self.dice.choice(['ASC', 'DESC'])} NULLS LAST" for name in (*kinds, f'{alias}."at"')]
        self.dice.shuffle(places)
        key = self._column(kinds, self.dice.choice(["text", "int", "bool"]))
        by = f", {key}" if key and self.dice.random() < 0.5 else ""
        items = ", ".join(f"{alias}.{name} AS {name}" for name in inner.kinds)
        number = f"ROW_NUMBER() OVER (PARTITION BY window_start{by} ORDER BY {', '.join(places)})"
        name, later = self._name("c"), self._name("c")
        asked = f"{name} <= {self.dice.randint(1, 3)}"
        text = f"SELECT {items}, EXTRACT(HOUR FROM window_end) > 2 AS {later}, {number} AS {name} FROM "
        call = "TUMBLE(TABLE ({0}), DESCRIPTOR(\"at\"), INTERVAL '1' HOUR)"
        bounds = "date_trunc('hour', \"at\") AS window_start, window_start + INTERVAL '1' HOUR AS window_end"
        outer = f"SELECT {', '.join(inner.kinds)}, {later}, {name} FROM"
        sql = f"{outer} ({text} {call} AS {alias}) WHERE {asked}"
        duck = f"{outer} ({text} (SELECT *, {bounds} FROM ({{0}})) AS {alias}) WHERE {asked}"
        return _made(sql, {**inner.kinds, later: "bool", name: "int"}, inner, duck=duck)

    def first(self, depth: int) -> Query:
        """The first or last time of each key."""
        inner = self.dice.choice(self.bases)
        alias, kinds = self._of(inner)
        key, way = self._column(kinds, self.dice.choice(["text", "bool"])), self.dice.choice(["ASC", "DESC"])
        number = f'ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY {alias}."at" {way}) = 1'
        text = f'SELECT {key} AS k, {alias}."at" AS "at" FROM ({{0}}) AS {alias} QUALIFY {number}'
        return _made(text, {"k": kinds[key or ""]}, inner, timed=way == "ASC")

    def windowed(self, depth: int) -> Query:
        """Hours, or two hours each hour."""
        inner = self._timed(depth)
        items, given = self._aggregates(inner.kinds)
        key = self._column(inner.kinds, self.dice.choice(["text", "int"]))
        by = f"{key}, " if key else ""
        if self.dice.random() < 0.6:
            call, hours = "TUMBLE(TABLE ({0}), DESCRIPTOR(\"at\"), INTERVAL '1' HOUR)", "(VALUES (0))"
        else:
            call = "HOP(TABLE ({0}), DESCRIPTOR(\"at\"), INTERVAL '1' HOUR, INTERVAL '2' HOUR)"
            hours = "(VALUES (0), (1))"
        sql = f'SELECT {by}window_start AS "at", {items} FROM {call} GROUP BY {by}window_start, window_end'
        hour = f"SELECT *, date_trunc('hour', \"at\") - h * INTERVAL '1' HOUR AS begin FROM ({{0}}), {hours} AS hs(h)"
        duck = f'SELECT {by}begin AS "at", {items} FROM ({hour}) GROUP BY {by}begin'
        return _made(sql, {**({key: inner.kinds[key]} if key else {}), **given}, inner, timed=True, duck=duck)

    def framed(self, depth: int) -> Query:
        """A frame over rows: those of the same time are in it or not together, whatever their order."""
        inner = self._timed(depth)
        alias, kinds = self._of(inner)
        key = self._column(kinds, self.dice.choice(["text", "int", "bool"]))
        by = f"PARTITION BY {key} " if key and self.dice.random() < 0.7 else ""
        before = self.dice.choice(["UNBOUNDED", "INTERVAL '1' HOUR", "INTERVAL '20' MINUTE", ""])
        frame = f" RANGE BETWEEN {before} PRECEDING AND CURRENT ROW" if before else ""
        value = self._filled(self.dice.choice(["SUM({int})", "COUNT(*)", "MAX({int})", "COUNT({int})"]), kinds, 1)
        items = ", ".join(f"{alias}.{name} AS {name}" for name in inner.kinds)
        name = self._name("c")
        over = f'{value} OVER ({by}ORDER BY {alias}."at"{frame}) AS {name}'
        text = f'SELECT {items}, {alias}."at" AS "at", {over} FROM ({{0}}) AS {alias}'
        return _made(text, {**inner.kinds, name: "int"}, inner, timed=True, single=inner.single)

    def counted(self, depth: int) -> Query:
        """Frames of a number of rows, and single rows before the own one."""
        inner = self._inner(depth)
        inner = inner if inner.single else self.dice.choice(self.bases)
        alias, kinds = self._of(inner)
        key = self._column(kinds, self.dice.choice(["text", "int", "bool"]))
        by = f"PARTITION BY {key} " if key and self.dice.random() < 0.7 else ""
        over = f'({by}ORDER BY {alias}."at"'
        rows = f" ROWS BETWEEN {self.dice.choice(['UNBOUNDED', 0, 1, 4])} PRECEDING AND CURRENT ROW)"
        calls = [
            f"SUM({{int}}) OVER {over}{rows}",
            f"MIN({{int}}) OVER {over}{rows}",
            f"COUNT({{int}}) FILTER (WHERE {{bool}}) OVER {over}{rows}",
            f"FIRST_VALUE({{int}}) OVER {over}{rows}",
            f"LAST_VALUE({{int}}) OVER {over}{rows}",
            f"LAG({{int}}, {self.dice.randint(1, 3)}) OVER {over})",
            f"ROW_NUMBER() OVER {over})",
            f"RANK() OVER {over})",
        ]
        given = {self._name("c"): "int" for _ in range(self.dice.randint(1, 2))}
        items = [f"{alias}.{name} AS {name}" for name in inner.kinds]
        items += [f"{self._filled(self.dice.choice(calls), kinds, 1)} AS {name}" for name in given]
        text = f'SELECT {", ".join(items)}, {alias}."at" AS "at" FROM ({{0}}) AS {alias}'
        return _made(text, {**inner.kinds, **given}, inner, timed=True, single=True)

    def numbered(self, depth: int) -> Query:
        """The first or last rows by time, with their number."""
        inner = self._inner(depth)
        inner = inner if inner.single else self.dice.choice(self.bases)
        alias, kinds = self._of(inner)
        key = self._column(kinds, self.dice.choice(["text", "bool"]))
        by = f"PARTITION BY {key} " if key else ""
        items = ", ".join(f"{alias}.{name} AS {name}" for name in inner.kinds)
        number = f'ROW_NUMBER() OVER ({by}ORDER BY {alias}."at" {self.dice.choice(["ASC", "DESC"])}) AS place'
        asked, shown = self.dice.randint(1, 3), self.dice.choice(["", ", place"])
        text = f"SELECT {', '.join(inner.kinds)}{shown} FROM (SELECT {items}, {number} FROM ({{0}}) AS {alias}) "
        return _made(f"{text} WHERE place <= {asked}", {**inner.kinds, **({"place": "int"} if shown else {})}, inner)

    def as_of(self, depth: int) -> Query:
        """The latest row of another stream up to the own time."""
        left, right = self._inner(depth), self.dice.choice(self.bases)
        left = left if left.timed else self.dice.choice(self.bases)
        (a, mine), (b, other) = self._of(left), self._of(right)
        equal = self._equal(mine, other)
        if not equal:
            return left
        items, given = self._items({**mine, **other})
        how = self.dice.choice(["ASOF JOIN", "ASOF LEFT JOIN"])
        on = f'{equal} AND {a}."at" >= {b}."at"'
        text = f'SELECT {items}, {a}."at" AS "at" FROM ({{0}}) AS {a} {how} ({{1}}) AS {b} ON {on}'
        return _made(text, given, left, right, timed=True, single=left.single)

    def twice(self, depth: int) -> Query:
        """A common table that is read twice."""
        inner = self._inner(depth)
        name = self._name("w")
        (a, mine), (b, other) = self._of(inner), self._of(inner)
        equal, how = self._equal(mine, other), self.dice.choice(_JOINS)
        if not equal:
            return inner
        items, given = self._items(mine if how in _HALF else {**mine, **other})
        text = f"WITH {name} AS ({{0}}) SELECT {items} FROM {name} AS {a} {how} {name} AS {b} ON {equal}"
        return _made(text, given, inner)

    def sessions(self, depth: int) -> Query:
        """Sessions, at least half an hour apart, by a key."""
        inner = self._timed(depth)
        items, given = self._aggregates(inner.kinds)
        key = self._column(inner.kinds, self.dice.choice(["text", "int"]))
        by, part = (f"{key}, ", f"PARTITION BY {key} ") if key else ("", "")
        rows = f"TABLE ({{0}}){f' PARTITION BY {key}' if key else ''}"
        call = f"SESSION({rows}, DESCRIPTOR(\"at\"), INTERVAL '30' MINUTE)"
        sql = f'SELECT {by}window_start AS "at", {items} FROM {call} GROUP BY {by}window_start, window_end'
        apart = f'"at" - LAG("at") OVER ({part}ORDER BY "at") < INTERVAL \'30\' MINUTE'
        begun = f"SELECT *, CASE WHEN {apart} THEN 0 ELSE 1 END AS begins FROM ({{0}})"
        numbered = f'SELECT *, SUM(begins) OVER ({part}ORDER BY "at") AS session FROM ({begun})'
        duck = f'SELECT {by}MIN("at") AS "at", {items} FROM ({numbered}) GROUP BY {by}session'
        return _made(sql, {**({key: inner.kinds[key]} if key else {}), **given}, inner, timed=True, duck=duck)

    def cumulated(self, depth: int) -> Query:
        """The first hour of each three, the first two, and all."""
        inner = self._timed(depth)
        items, given = self._aggregates(inner.kinds)
        call = "CUMULATE(TABLE ({0}), DESCRIPTOR(\"at\"), INTERVAL '1' HOUR, INTERVAL '3' HOUR)"
        bounds = "window_start, window_end"
        sql = f'SELECT window_start AS "at", {items} FROM {call} GROUP BY {bounds}'
        begin = "time_bucket(INTERVAL '3' HOUR, \"at\", TIMESTAMPTZ '2026-01-01 00:00:00+00')"
        each = f"SELECT *, {begin} AS window_start, h AS window_end FROM ({{0}}), (VALUES (1), (2), (3)) AS hs(h)"
        within = "\"at\" < window_start + window_end * INTERVAL '1' HOUR"
        duck = f'SELECT window_start AS "at", {items} FROM (SELECT * FROM ({each}) WHERE {within}) GROUP BY {bounds}'
        return _made(sql, given, inner, timed=True, duck=duck)

    def twice_windowed(self, depth: int) -> Query:
        """Windows over results of windows."""
        inner = self.windowed(depth)
        items, given = self._aggregates({name: kind for name, kind in inner.kinds.items() if kind != "mean"})
        call = "TUMBLE(TABLE ({0}), DESCRIPTOR(\"at\"), INTERVAL '2' HOUR)"
        sql = f'SELECT window_start AS "at", {items} FROM {call} GROUP BY window_start, window_end'
        bucket = "time_bucket(INTERVAL '2' HOUR, \"at\", TIMESTAMPTZ '2026-01-01 00:00:00+00')"
        duck = f'SELECT begin AS "at", {items} FROM (SELECT *, {bucket} AS begin FROM ({{0}})) GROUP BY begin'
        return _made(sql, given, inner, timed=True, duck=duck)


def _made(
    text: str, kinds: Kinds, *inner: Query, timed: bool = False, single: bool = False, duck: str | None = None
) -> Query:
    """A query over others, which ``{0}`` and ``{1}`` stand for."""
    sql = text.format(*(one.sql for one in inner))
    return Query(sql, (duck or text).format(*(one.duck for one in inner)), kinds, timed, single)


def random_query(seed: int, bases: Sequence[Query] = BASES, *, ties: bool = True) -> Query:
    """A query that nests others up to three deep.

    Args:
        seed: Of the random choices.
        bases: What it reads in the end.
        ties: As in :func:`tables`.
    """
    dice = random.Random(seed)
    return Made(dice, bases, ties).query(dice.randint(1, 3))
