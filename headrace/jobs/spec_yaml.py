"""YAML with places: values as YAML 1.2 has them, environment references resolved, and where everything stands.

YAML 1.1 readings that surprise (``on`` as true, ``1:30`` as a number, dates) are off: a plain word is a string unless
it is ``true``, ``false``, ``null``, ``~``, empty or a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from headrace.jobs.envref import EnvReferenceError, has_reference, substitute
from headrace.jobs.spec_base import Path, path_text
from headrace.kernel.errors import SpecError

_MAX_DEPTH: Final = 64
_NULL: Final = "tag:yaml.org,2002:null"
_STR: Final = "tag:yaml.org,2002:str"
_PLAIN: Final = (
    ("tag:yaml.org,2002:bool", re.compile(r"true|True|TRUE|false|False|FALSE")),
    (_NULL, re.compile(r"~|null|Null|NULL|")),
    ("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]{1,20}|0x[0-9a-fA-F]{1,16}|0o[0-7]{1,22}")),
    (
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
    ),
)


class _Loader(yaml.SafeLoader):
    """Resolves nothing by itself: :class:`_Reader` does."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own protocol

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # missing in types-PyYAML
            raise yaml.composer.ComposerError(None, None, "anchors and aliases are not used here", mark)
        return super().compose_node(parent, index)


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed document and the place (``file:line:column``) of each path in it."""

    value: Any
    places: Mapping[Path, str]


def read_yaml(text: str, name: str, environ: Mapping[str, str]) -> Document:
    """Parse a YAML (or JSON) document.

    Args:
        text: The document.
        name: The file's name, for messages.
        environ: Where ``${NAME}`` references are looked up.

    Raises:
        SpecError: Not YAML, a key twice, a reference to an unset variable, anchors; with its place.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = error.problem or error.context or "cannot be parsed"
        raise SpecError(f"{place}: not valid YAML: {problem}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{name}: not valid YAML", detail=str(error)) from error
    if node is None:
        raise SpecError(f"{name}: the file is empty", hint="docs/job-spec.md describes a job")
    reader = _Reader(name, environ)
    value = reader.read(node, ())
    return Document(value, reader.places)


class _Reader:
    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self._name = name
        self._environ = environ
        self.places: dict[Path, str] = {}

    def read(self, node: yaml.Node, path: Path) -> Any:
        self.places.setdefault(path, self._place(node))
        if len(path) > _MAX_DEPTH:
            raise self._error(node, path, "the document is nested too deeply")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, path, "a key must be a word")
            key = key_node.value
            if key in out:
                raise self._error(key_node, path, f"the key {key!r} stands here twice")
            self.places[*path, key] = self._place(key_node)
            out[key] = self.read(value_node, (*path, key))
        return out

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        text = node.value
        if has_reference(text):
            try:
                text = substitute(text, self._environ)
            except EnvReferenceError as error:
                hint = "set it, or give a default: ${NAME:-default}" if error.variable else ""
                raise self._error(node, path, str(error), hint) from error
        if node.tag != _STR:
            raise self._error(node, path, f"tags such as {node.tag} are not used here")
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        return _plain_value(text) if plain else text

    def _place(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def _error(self, node: yaml.Node, path: Path, message: str, hint: str = "") -> SpecError:
        where = f"{path_text(path)}: " if path else ""
        return SpecError(f"{self._place(node)}: {where}{message}", hint=hint, context={"path": list(path)})


def _plain_value(text: str) -> Any:
    for tag, pattern in _PLAIN:
        if not pattern.fullmatch(text):
            continue
        if tag == _NULL:
            return None
        if tag.endswith("bool"):
            return text.lower() == "true"
        if tag.endswith("int"):
            return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        word = text.lower()
        return float(word.replace(".", "") if word.endswith((".inf", ".nan")) else word)
    return text
