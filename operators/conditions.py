"""What of a predicate can be tested earlier, on other rows, and predicates as text that does not depend on versions.

A predicate is tested earlier only as far as that can raise no error that would not have been raised: on rows that reach
no output, too. So what passes is an allow-list of functions that give a value for every value of their arguments. As
:mod:`operators.rowwise`, this reads the serialised tree of Polars expressions, which is no public format; it is held by
tests/unit/test_pushed_below_state.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import polars as pl

from operators.expression_trees import Tree, expr_of, tree_of

_AND: Final = frozenset({"And", "LogicalAnd"})
_OR: Final = frozenset({"Or", "LogicalOr"})
_COMPARISONS: Final = {
    "Eq": "=",
    "NotEq": "<>",
    "Lt": "<",
    "LtEq": "<=",
    "Gt": ">",
    "GtEq": ">=",
    "EqValidity": "is not distinct from",
    "NotEqValidity": "is distinct from",
    "Xor": "xor",
}
_ARITHMETIC: Final = {"Plus": "+", "Minus": "-", "Multiply": "*"}
"""Only of integers and floats, which wrap around: decimals raise an error."""
_WORDS: Final = {**_COMPARISONS, **_ARITHMETIC}
_CASES: Final = ("predicate", "truthy", "falsy")
_MEMBERS: Final = {
    "Boolean": frozenset(
        {"AllHorizontal", "AnyHorizontal", "IsBetween", "IsIn", "Not"}
        | {"IsNull", "IsNotNull", "IsNan", "IsNotNan", "IsFinite", "IsInfinite"}
    ),
    "StringExpr": frozenset(
        {"Contains", "EndsWith", "LenBytes", "LenChars", "Lowercase", "Slice", "StartsWith", "Uppercase"}
    ),
    "StructExpr": frozenset({"FieldByName"}),
    "TemporalExpr": frozenset({"Day", "Hour", "Minute", "Month", "OrdinalDay", "Quarter", "Second", "WeekDay", "Year"}),
    "TruncArith": frozenset({"Rem"}),
}
_FUNCTIONS: Final = frozenset({"Coalesce", "FillNull"})
_INTEGERS: Final = frozenset({"Int", *(f"{kind}{size}" for kind in ("Int", "UInt") for size in (8, 16, 32, 64))})
_NUMBERS: Final = _INTEGERS | {"Float", "Float32", "Float64"}


def passing(predicate: pl.Expr, names: Mapping[str, str], schema: pl.Schema) -> pl.Expr | None:
    """What a predicate implies of rows that have only some of its columns.

    Of a conjunction that is what its parts imply, of a disjunction the disjunction of what each of its parts implies;
    of everything else the whole of it, or nothing.

    Args:
        predicate: Over rows of ``schema``. A row passes where it is true.
        names: The columns that the other rows have, too, to what they are called there.
        schema: Types of the columns.

    Returns:
        A predicate over the other rows that is true wherever ``predicate`` is; None: all rows pass.
    """
    tree = _tree(predicate)
    found = None if tree is None else _passing(tree, names, schema)
    return None if found is None or not _columns(found) else expr_of(found)


def either(predicates: Iterable[pl.Expr]) -> pl.Expr:
    """The disjunction, in an order of its own and each different one once; at least one."""
    return expr_of(_ordered(_joined("Or", [tree_of(predicate) for predicate in predicates])))


def both(predicates: Iterable[pl.Expr]) -> pl.Expr:
    """The conjunction, in an order of its own and each different one once; at least one."""
    return expr_of(_ordered(_joined("And", [tree_of(predicate) for predicate in predicates])))


def written(predicate: pl.Expr) -> str:
    """A predicate that has come through :func:`passing`, as text with all its values: for people and fingerprints."""
    return _written(tree_of(predicate))


def _tree(predicate: pl.Expr) -> Tree | None:
    try:
        return _unnamed(tree_of(predicate))
    except (pl.exceptions.ComputeError, ValueError):  # a Python function has no JSON form
        return None


def _unnamed(tree: Tree) -> Tree:
    """Without the names that parts are given, which a predicate has no use for."""
    if isinstance(tree, list):
        return [_unnamed(part) for part in tree]
    if not isinstance(tree, dict) or "Literal" in tree:
        return tree
    if isinstance(named := tree.get("Alias"), list):
        return _unnamed(named[0])
    return {key: _unnamed(value) for key, value in tree.items()}


def _parts(tree: Tree, operators: frozenset[str]) -> list[Tree]:
    found = tree.get("BinaryExpr") if isinstance(tree, dict) else None
    if found and found["op"] in operators:
        return [*_parts(found["left"], operators), *_parts(found["right"], operators)]
    return [tree]


def _joined(operator: str, trees: Sequence[Tree]) -> Tree:
    return reduce(lambda left, right: {"BinaryExpr": {"left": left, "op": operator, "right": right}}, trees)


def _ordered(tree: Tree) -> Tree:
    """The same predicate, whatever the order in which its parts were put together."""
    for operator, operators in (("And", _AND), ("Or", _OR)):
        parts = _parts(tree, operators)
        if len(parts) > 1:
            ordered = {(_written(part), json.dumps(part)): part for part in map(_ordered, parts)}
            return _joined(operator, [ordered[place] for place in sorted(ordered)])
    return tree


def _passing(tree: Tree, names: Mapping[str, str], schema: pl.Schema) -> Tree | None:
    if len(parts := _parts(tree, _AND)) > 1:
        found = [part for each in parts if (part := _passing(each, names, schema)) is not None]
        return _ordered(_joined("And", found)) if found else None
    if len(parts := _parts(tree, _OR)) > 1:
        either_of = [_passing(each, names, schema) for each in parts]
        return None if None in either_of else _ordered(_joined("Or", either_of))
    passes = _columns(tree) <= names.keys() and _is_total(tree, schema)
    return _renamed(tree, names) if passes else None


def _columns(tree: Tree) -> set[str]:
    """The columns that a tree names."""
    if isinstance(tree, list):
        return set().union(*map(_columns, tree))
    if not isinstance(tree, dict) or "Literal" in tree:
        return set()
    if isinstance(tree.get("Column"), str):
        return {tree["Column"]}
    return set().union(*map(_columns, tree.values()))


def _renamed(tree: Tree, names: Mapping[str, str]) -> Tree:
    if isinstance(tree, list):
        return [_renamed(part, names) for part in tree]
    if not isinstance(tree, dict) or "Literal" in tree:
        return tree
    if isinstance(tree.get("Column"), str):
        return {"Column": names[tree["Column"]]}
    return {key: _renamed(value, names) for key, value in tree.items()}


def _kind(node: Tree) -> tuple[str, Any]:
    if isinstance(node, dict) and node:
        return next(iter(node.items()))
    return str(node), None


def _is_total(tree: Tree, schema: pl.Schema) -> bool:
    """Whether it has a value for every row."""
    kind, body = _kind(tree)
    inputs: list[Tree] = []
    match kind:
        case "Column":
            total = isinstance(body, str)
        case "Literal":
            total = True
        case "BinaryExpr":
            inputs = [body["left"], body["right"]]
            total = body["op"] in {*_COMPARISONS, *_AND, *_OR}
            total = total or (body["op"] in _ARITHMETIC and all(_is_number(side, schema) for side in inputs))
        case "Ternary":
            inputs, total = [body[part] for part in _CASES], True
        case "Cast":
            inputs, total = [body["expr"]], body["options"] == "NonStrict"
        case "Function":
            inputs = body["input"]
            total = _is_total_call(body["function"], inputs, schema)
        case _:
            total = False
    return total and all(_is_total(one, schema) for one in inputs)


def _is_total_call(function: Tree, inputs: Sequence[Tree], schema: pl.Schema) -> bool:
    family, member = _kind(function)
    name = _kind(member)[0]
    if family not in _FUNCTIONS and name not in _MEMBERS.get(family, ()):
        return False
    if name in {"IsIn", "Contains", "Slice"} and not all(_kind(other)[0] == "Literal" for other in inputs[1:]):
        return False
    return family != "TruncArith" or (_is_number(inputs[0], schema) and _divides(inputs[1]))


def _is_number(tree: Tree, schema: pl.Schema) -> bool:
    """Whether it is made of integers and floats only."""
    kind, body = _kind(tree)
    if kind == "Column":
        return isinstance(body, str) and (schema[body].is_integer() or schema[body].is_float())
    if kind == "Literal":
        return _kind(_kind(body)[1])[0] in _NUMBERS
    if kind == "BinaryExpr":
        return body["op"] in _ARITHMETIC and _is_number(body["left"], schema) and _is_number(body["right"], schema)
    return False


def _divides(tree: Tree) -> bool:
    """Whether it is a whole number other than 0."""
    kind, body = _kind(tree)
    number, value = _kind(_kind(body)[1]) if kind == "Literal" else ("", None)
    return number in _INTEGERS and value != 0


def _written(tree: Tree) -> str:
    kind, body = _kind(tree)
    match kind:
        case "Column":
            text = body if body.isidentifier() else json.dumps(body)
        case "Literal":
            text = _value(tree)
        case "BinaryExpr":
            text = _written_binary(tree, body)
        case "Ternary":
            text = f"case({', '.join(_written(body[part]) for part in _CASES)})"
        case "Cast":
            text = f"cast({_written(body['expr'])} as {json.dumps(body['dtype'], sort_keys=True)})"
        case _:
            text = _written_call(body["function"], body["input"])
    return text


def _written_binary(tree: Tree, body: Mapping[str, Any]) -> str:
    for word, operators in (("and", _AND), ("or", _OR)):
        if body["op"] in operators:
            return f"({f' {word} '.join(map(_written, _parts(tree, operators)))})"
    return f"({_written(body['left'])} {_WORDS[body['op']]} {_written(body['right'])})"


def _written_call(function: Tree, inputs: Sequence[Tree]) -> str:
    family, member = _kind(function)
    name, options = _kind(member) if member is not None else (family, None)
    given = [*map(_written, inputs), *([] if options is None else [json.dumps(options, sort_keys=True)])]
    return f"{name}({', '.join(given)})"


def _value(tree: Tree) -> str:
    """A literal with all that is in it; of a list, its different values."""
    values = pl.select(expr_of(tree)).to_series()
    if isinstance(values.dtype, pl.List | pl.Array):
        values = values.explode()
    listed = sorted({repr(value) for value in values.to_list()})
    return listed[0] if len(listed) == 1 and len(values) == 1 else f"[{', '.join(listed)}]"
