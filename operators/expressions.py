"""Row expressions: SQL text or Polars expressions, checked before they run.

A row expression looks at one row. SQL text is checked against an allow-list *before* Polars parses it, because
parsing alone can open files (a table function in a subquery) and turns ``now()`` into a constant. Polars expressions
of the Python API pass the same check on their tree; those that call Python functions are accepted but declared
*not invariant*, since nobody can look into them.

Semantics are those of Polars' SQL: ``/`` gives a float, of decimals a decimal (null where the divisor is zero), ``//``
truncates towards zero and ``%`` has the sign of the dividend; ``cast`` is strict (a value that does not fit ends the
job, ``try_cast`` gives null); comparisons with null give null, and NaN is equal to itself and larger than all numbers.
Names of columns are case-sensitive; a column whose
name is a key word with a meaning in expressions (``end``, ``from``) is written in double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import polars as pl

from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.calls import CALLS, put
from operators.errors import EXPRESSION_INVALID, EXPRESSION_NOT_ALLOWED, summary
from operators.intervals import LONGEST, is_too_long
from operators.null_safe import null_safe
from operators.plan_cache import plan_for
from operators.row_forms import row_form
from operators.rowwise import Opaque, not_rowwise
from operators.typed_forms import depends_on_types, typed_form

Expression: TypeAlias = str | pl.Expr
"""What users write: SQL text, or a Polars expression in Python."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS: Final = _words(
    """
    abs acos acosd array_contains array_get array_length array_lower array_mean array_reverse array_sum
    array_to_string array_upper asin asind atan atan2 atan2d atand bit_and bit_count bit_length bit_or bit_xor cast cbrt
    ceil ceiling char_length character_length coalesce concat concat_ws cos cosd cot cotd date date_bin date_part
    date_trunc degrees div ends_with exp extract floor greatest if ifnull initcap least left length ln log log10 log1p
    log2 lower ltrim mod normalize nullif octet_length pi position pow power radians regexp_extract regexp_like
    regexp_replace replace reverse right round
    rtrim sign sin sind split_part sqrt starts_with strftime string_to_array strpos strptime substr substring tan tand
    timestamp trim try_cast safe_cast upper xor
    """
)
"""SQL functions of one row."""

_BEFORE_PARENTHESIS: Final = _words(
    """
    all and any array as between by case char character decimal distinct div else end float ilike in interval is like
    not numeric on or regexp rlike then time timestamp varchar when
    """
)
_TYPED_LITERALS: Final = frozenset({"date", "time", "timestamp", "interval"})
_CLOCK: Final = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
_CLOCK_CALLS: Final = frozenset({"now", "today", "getdate", "clock_timestamp", "statement_timestamp"})
_RANDOM_CALLS: Final = frozenset({"rand", "random", "uuid", "gen_random_uuid", "newid"})
_AGGREGATE_CALLS: Final = _words(
    """
    approx_count_distinct approx_quantile array_agg avg corr count covar covar_pop covar_samp first first_value last
    last_value max median min quantile_cont quantile_disc stddev stddev_samp stdev stdev_samp string_agg sum var
    var_samp variance
    """
)
_NAMES: Final = _words("current_user group limit offset order session_user user")
"""Key words that mean nothing in an expression over one row: here they are names of columns."""
_QUERY_WORDS: Final = frozenset({"select", "with", "values", "table", "union", "exists", "qualify"})
_WINDOW_WORDS: Final = frozenset({"over"})

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*"|`[^`]*`)
      | (?P<comment>--|/\*|\#|\$\w*\$)
      | (?P<word>[^\W\d]\w*)
      | (?P<number>\d[\w.]*)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL text: ``kind`` is string, quoted, comment, word, number or mark; words are lower case."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class RowExpression:
    """A checked row expression.

    Attributes:
        expr: The Polars expression.
        source: How it was written; for Polars expressions what they print.
        is_text: It was written as SQL text, so equal sources are equal expressions.
        determinism: ``EXACT``, or ``NOT_INVARIANT`` when it calls Python functions.
        typed: Whether its form depends on the types of columns: :meth:`over` gives it.
    """

    expr: pl.Expr
    source: str
    is_text: bool = True
    determinism: Determinism = Determinism.EXACT
    typed: bool = False
    _plans: dict[tuple[Any, ...], pl.Expr] = field(init=False, repr=False, compare=False, default_factory=dict)

    def over(self, rows: pl.LazyFrame) -> pl.Expr:
        """The expression over rows whose columns have these types."""
        if not self.typed:
            return self.expr
        return plan_for(self._plans, rows.collect_schema(), lambda schema: typed_form(self.expr, schema))


def row_expression(written: Expression, where: str) -> RowExpression:
    """Check an expression, and parse it if it is text.

    Args:
        written: SQL text or a Polars expression.
        where: What it belongs to, for error messages, e.g. ``step 'delays'``.

    Raises:
        SpecError: ``EXPRESSION_INVALID`` when it does not parse, ``EXPRESSION_NOT_ALLOWED`` when it is no row
            expression or does not give the same value each time.
    """
    if isinstance(written, pl.Expr):
        return _checked(written, str(written), where, is_text=False)
    for problem in _problems(written):
        raise _refused(written, where, *problem)
    try:
        expr = _parsed(written)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError) as error:
        raise SpecError(
            f"{where}: cannot read the expression {_shorten(written)!r}",
            detail=summary(error),
            hint='write one SQL expression over columns, e.g. "dep_delay > 15"; a column with a name of SQL (end, '
            "from, interval, values) goes in double quotes; 'at time zone' is not supported",
            code=EXPRESSION_INVALID,
        ) from error
    return _checked(expr, written, where, is_text=True)


def tokens(text: str) -> Iterator[Token]:
    """The tokens of SQL text without white space."""
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind != "space":
            found = match.group()
            yield Token(kind, found.lower() if kind == "word" else found, match.start(), match.end())


def split_arguments(text: str) -> list[str] | None:
    """The arguments of a call, from what stands between its parentheses; None when these do not belong together."""
    depth, begin, found = 0, 0, []
    for token in tokens(text):
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(token.text, 0)
        if depth < 0:
            return None
        if depth == 0 and token.text == ",":
            found.append(text[begin : token.start].strip())
            begin = token.end
    return None if depth else [*found, text[begin:].strip()]


def _parsed(text: str) -> pl.Expr:
    """The text as an expression; calls of :mod:`operators.calls` go in afterwards."""
    text = _named(text)
    text = null_safe(text, list(tokens(text)))
    found, begin, pieces = list(tokens(text)), 0, []
    calls: dict[str, pl.Expr] = {}
    for index, token in enumerate(found[:-1]):
        opens = token.kind == "word" and token.text in CALLS and found[index + 1].text == "("
        if token.start < begin or not opens or (index and found[index - 1].text == "."):
            continue
        end = _closing(found, index + 1)
        arguments = split_arguments(text[found[index + 1].end : end.start]) or []
        name = f"call {len(calls)}"
        while name in text:
            name += "_"
        calls[name] = CALLS[token.text](arguments, _parsed)
        pieces.append(f'{text[begin : token.start]}"{name}"')
        begin = end.end
    return put(pl.sql_expr("".join(pieces) + text[begin:]), calls)


def _named(text: str) -> str:
    """The text with quotes around columns that have the names of key words: Polars takes ``user`` for a function."""
    found, begin, pieces = list(tokens(text)), 0, []
    for index, token in enumerate(found):
        is_call = index + 1 < len(found) and found[index + 1].text == "("
        if token.kind == "word" and token.text in _NAMES and not is_call:
            pieces.append(f'{text[begin : token.start]}"{text[token.start : token.end]}"')
            begin = token.end
    return "".join(pieces) + text[begin:]


def _closing(found: list[Token], index: int) -> Token:
    depth = 0
    for token in found[index:]:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0:
            return token
    raise ValueError("a parenthesis is not closed")


def _checked(expr: pl.Expr, source: str, where: str, *, is_text: bool) -> RowExpression:
    reason = not_rowwise(expr)
    if reason is Opaque.PYTHON:
        return RowExpression(expr, source, is_text, Determinism.NOT_INVARIANT)
    if reason is not None:
        raise _refused(source, where, f"holds {reason}", "an expression here looks at one row; use a window step")
    return RowExpression(row_form(expr), source, is_text, typed=depends_on_types(expr))


def _refused(source: str, where: str, reason: str, hint: str) -> SpecError:
    return SpecError(f"{where}: the expression {_shorten(source)!r} {reason}", hint=hint, code=EXPRESSION_NOT_ALLOWED)


def _problems(text: str) -> Iterator[tuple[str, str]]:
    """What the allow-list says about SQL text: (what is wrong, the cure)."""
    found = list(tokens(text))
    for index, token in enumerate(found):
        following = found[index + 1] if index + 1 < len(found) else None
        if token.kind == "comment":
            yield f"holds {token.text!r}", "leave comments and dollar quotes out of expressions"
        elif token.kind == "mark" and token.text in "'\"`":
            yield f"has a quote {token.text} that is not closed", "close it"
        elif token.kind == "mark" and token.text == "(" and following and following.text == "from":
            yield from _query_problem("from")
        elif token.kind == "quoted" and following and following.text == "(":
            yield from _call_problem(token.text)
        elif token.kind == "word" and index and found[index - 1].text == ".":
            if following and following.text == "(":
                yield from _call_problem(token.text)
        elif token.kind == "word" and not (token.text == "from" and index and found[index - 1].text == "distinct"):
            yield from _word_problems(token, following)


def _word_problems(token: Token, following: Token | None) -> Iterator[tuple[str, str]]:
    word = token.text
    if word == "interval" and following and following.kind == "string" and is_too_long(following.text[1:-1]):
        yield f"holds the interval {following.text}", f"the longest one is {LONGEST}"
    if word in _CLOCK:
        yield from _clock_problem(word)
    elif word in _QUERY_WORDS:
        yield from _query_problem(word)
    elif word in _WINDOW_WORDS:
        yield f"holds a window function ({word})", "an expression here looks at one row; use a window step"
    elif following and following.kind == "string" and following.start == token.end and word not in _TYPED_LITERALS:
        yield f"holds the literal prefix {word!r}", "write plain '...' strings"
    elif following and following.text == "(" and word not in FUNCTIONS | _BEFORE_PARENTHESIS:
        yield from _call_problem(word)


def _call_problem(word: str) -> Iterator[tuple[str, str]]:
    if word in _CLOCK_CALLS:
        yield from _clock_problem(f"{word}()")
    elif word in _RANDOM_CALLS:
        yield f"calls {word}(), which gives another value each time", "a replay must give the same rows: leave it out"
    elif word in _AGGREGATE_CALLS:
        yield f"holds an aggregate ({word})", "an expression here looks at one row; aggregate in a window step"
    else:
        yield f"calls {word}(), which is not supported", f"supported functions: {', '.join(sorted(FUNCTIONS))}"


def _clock_problem(word: str) -> Iterator[tuple[str, str]]:
    yield f"asks for the time of day ({word})", "a replay must give the same rows: use a column of the event instead"


def _query_problem(word: str) -> Iterator[tuple[str, str]]:
    yield f"holds a query ({word})", "join tables with a lookup step; write a column of this name in double quotes"


def _shorten(text: str, length: int = 200) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
