"""Comparisons in which null is a value, put in the words in which Polars understands them.

Polars reads everything behind ``IS DISTINCT FROM``, ``AND`` and ``OR`` included, as what is compared with, and gives
null for ``IS [NOT] TRUE`` and ``FALSE`` where SQL gives a truth value. One goes into parentheses, the other becomes a
``CASE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from operators.expressions import Token

_ENDS: Final = frozenset({"and", "or", "when", "then", "else", "end", "as"})
_BEGINS: Final = frozenset({"and", "or", "when", "then", "else"})
_INFIX: Final = frozenset({"in", "like", "ilike", "between", "rlike", "regexp", "similar", "null"})
"""Words behind a NOT that stands between two operands."""
_OPEN: Final = frozenset({"(", "[", "case"})
_CLOSE: Final = frozenset({")", "]", "end"})


def null_safe(text: str, found: Sequence[Token]) -> str:
    """The text with such comparisons in other words.

    Args:
        text: A row expression.
        found: Its tokens.
    """
    words = [_word(found, index) for index in range(len(found))]
    edits: list[tuple[int, int, str]] = []
    for index, word in enumerate(words):
        if word != "is" or not index:
            continue
        negated = words[index + 1 : index + 2] == ["not"]
        behind = index + 2 if negated else index + 1
        begin = found[_begin(words, index)].start
        if words[behind : behind + 2] == ["distinct", "from"]:
            last = _end(words, behind + 2)
            edits += [(begin, begin, "(")] + ([(found[last].end,) * 2 + (")",)] if last < len(found) else [])
        elif words[behind : behind + 1] in (["true"], ["false"]):
            # NOT of an OR takes no numbers, of which a comparison with TRUE would make booleans.
            opens, closes = ("(case when not (not ((", ")") if words[behind] == "true" else ("(case when not ((", "")
            given = "false else true" if negated else "true else false"
            ends = f") or false{closes}) then {given} end)"
            edits += [(begin, begin, opens), (found[index].start, found[behind].end, ends)]
    for start, end, said in sorted(edits, reverse=True):
        text = text[:start] + said + text[end:]
    return text


def _word(found: Sequence[Token], index: int) -> str:
    """A token's text where it may be a word of the language, or a bracket; else nothing."""
    token = found[index]
    is_field = token.kind == "word" and bool(index) and found[index - 1].text == "."
    return "" if is_field or token.kind not in {"word", "mark"} else token.text


def _begin(words: Sequence[str], index: int) -> int:
    """Where what stands before the word at ``index`` begins."""
    depth, conjunction = 0, None
    for at in range(index - 1, -1, -1):
        word = words[at]
        if word in _CLOSE:
            depth += 1
        elif word in _OPEN:
            if not depth:
                return at + 1 if conjunction is None else conjunction + 1
            depth -= 1
        elif depth:
            continue
        elif word == "between":
            conjunction = None
        elif word == "and" and conjunction is None:
            conjunction = at  # of BETWEEN, maybe
        elif word in _BEGINS or word == "," or (word == "not" and words[at + 1] not in _INFIX):
            return at + 1 if conjunction is None else conjunction + 1
    return 0 if conjunction is None else conjunction + 1


def _end(words: Sequence[str], index: int) -> int:
    """The last token of what begins at ``index``."""
    depth = 0
    for at in range(index, len(words)):
        word = words[at]
        if not depth and (word in _ENDS or word in _CLOSE or word == ","):
            return at - 1
        depth += (word in _OPEN) - (word in _CLOSE)
    return len(words) - 1
