"""The SQL that is read: sqlglot's own dialect, plus what streams need, as Apache Flink writes it.

Besides SQL's own, an argument of a function in FROM may be ``TABLE name PARTITION BY k ORDER BY t`` (SQL:2016,
polymorphic table functions); several columns stand in parentheses, or one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

from sqlglot import exp, parser, tokens
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import TokenType

from headrace.jobs.sql.errors import SqlError

# What it warns of, statements that it cannot take apart, is refused here with its place.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

UNREADABLE = "SQL_INVALID"
PARTITION, ORDER = "partition_by", "order_by"
"""Where a table argument keeps its columns."""

_ENDS_OF_NAME = (TokenType.COMMA, TokenType.R_PAREN, TokenType.ORDER_BY)


class Streaming(Dialect):
    """Names keep their case, ``TABLE name`` may be an argument, nulls come last where nothing is said of them."""

    NULL_ORDERING = "nulls_are_last"

    class Tokenizer(tokens.Tokenizer):
        """Names stand in double quotes, or in backticks as Apache Flink has them."""

        IDENTIFIERS: ClassVar = ['"', "`"]

    class Parser(parser.Parser):
        """See :class:`Streaming`."""

        IS_PREDICATE_PRECEDENCE: ClassVar = parser.IsPredicatePrecedence.LOW
        FUNC_TOKENS: ClassVar = {*parser.Parser.FUNC_TOKENS, TokenType.SESSION}

        def _parse_lambda(self, alias: bool = False) -> Any:  # noqa: FBT001, FBT002 - the base class's signature
            if self._next and self._next.token_type == TokenType.FARROW and self._is_table(self._index + 2):
                name = exp.var(self._curr.text)
                self._advance(2)
                return exp.Kwarg(this=name, expression=self._parse_lambda())
            if not self._match(TokenType.TABLE):
                return super()._parse_lambda(alias=alias)
            rows: Any
            if self._match(TokenType.L_PAREN):
                rows = exp.Subquery(this=self._parse_select())
                self._match_r_paren()
            else:
                rows = self._parse_table_parts()
            if self._match(TokenType.PARTITION_BY):
                rows.meta[PARTITION] = self._parse_names(self._parse_column)
            if self._match(TokenType.ORDER_BY):
                rows.meta[ORDER] = self._parse_names(self._parse_ordered)
            return rows

        def _parse_names(self, parse: Any) -> list[Any]:
            """One, several in parentheses, or several that are plain names: behind a comma others are arguments."""
            if self._match(TokenType.L_PAREN):
                found = self._parse_csv(parse)
                self._match_r_paren()
                return found
            found = [parse()]
            while self._curr and self._curr.token_type == TokenType.COMMA and self._is_name_next():
                self._advance()
                found.append(parse())
            return found

        def _is_table(self, at: int) -> bool:
            return [token.token_type for token in self._tokens[at : at + 1]] == [TokenType.TABLE]

        def _is_name_next(self) -> bool:
            after = self._tokens[self._index + 2 : self._index + 3]
            named = bool(self._next) and self._next.token_type in (*self.ID_VAR_TOKENS, TokenType.IDENTIFIER)
            return named and bool(after) and after[0].token_type in _ENDS_OF_NAME

        def _parse_function_call(self, *given: Any, **named: Any) -> Any:
            token = self._curr
            found = super()._parse_function_call(*given, **named)
            if found is not None and token and "line" not in found.meta:
                found.update_positions(token)
            return found

        def _parse_window(self, this: Any, alias: bool = False) -> Any:  # noqa: FBT001, FBT002 - as above
            found = super()._parse_window(this, alias=alias)
            if isinstance(found, exp.Window) and "line" not in found.meta:
                found.update_positions(this)
            return found

        def _parse_select(self, *given: Any, **named: Any) -> Any:
            token = self._curr
            found = super()._parse_select(*given, **named)
            if found is not None and token and "line" not in found.meta:
                found.update_positions(token)
            return found


def parse(text: str) -> list[exp.Expr]:
    """The statements of a text, without empty ones.

    Raises:
        SqlError: It is no SQL (``SQL_INVALID``).
    """
    try:
        statements = Streaming().parse(text)
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        what = str(first.get("description") or error).rstrip(".").lower()
        raise SqlError(f"cannot be read: {what}", _place(first), code=UNREADABLE) from error
    except TokenError as error:
        raise SqlError(f"cannot be read: {error}", code=UNREADABLE) from error
    except RecursionError as error:
        raise SqlError("is nested too deep", hint="make views of its parts", code=UNREADABLE) from error
    found = [statement for statement in statements if statement is not None]
    _quote_alike(found)
    return found


def _quote_alike(statements: Sequence[exp.Expr]) -> None:
    """Quote a name everywhere that is quoted somewhere: it is the same name, and expressions are compared as texts."""
    names = [name for statement in statements for name in statement.find_all(exp.Identifier)]
    quoted = {name.name for name in names if name.args.get("quoted")}
    for name in names:
        if name.name in quoted:
            name.set("quoted", True)


def _place(error: dict[str, Any]) -> tuple[int, int] | None:
    line, column = error.get("line"), error.get("col")
    return (int(line), int(column)) if line and column else None
