"""The SQL that is read: sqlglot's own dialect, plus the argument ``TABLE name`` of windowing functions (SQL:2016)."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp, parser
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import TokenType

from headrace.jobs.sql.errors import SqlError

UNREADABLE = "SQL_INVALID"


class Streaming(Dialect):
    """Names keep their case, ``TABLE name`` may be an argument."""

    class Parser(parser.Parser):
        """See :class:`Streaming`."""

        FUNC_TOKENS: ClassVar = {*parser.Parser.FUNC_TOKENS, TokenType.SESSION}

        def _parse_lambda(self, alias: bool = False) -> Any:  # noqa: FBT001, FBT002 - the base class's signature
            if self._match(TokenType.TABLE):
                return self._parse_table_parts()
            return super()._parse_lambda(alias=alias)


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
    return [statement for statement in statements if statement is not None]


def _place(error: dict[str, Any]) -> tuple[int, int] | None:
    line, column = error.get("line"), error.get("col")
    return (int(line), int(column)) if line and column else None
