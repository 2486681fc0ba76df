"""Connections and folders: ``headrace.toml``, then the environment, then the command line (docs/configuration.md)."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from headrace.jobs.envref import EnvReferenceError, has_reference, substitute
from headrace.jobs.names import suggest
from headrace.jobs.redact import redact
from headrace.jobs.sizes import parse_size
from headrace.kernel.errors import ConfigError

FILE_NAME: Final = "headrace.toml"
FILE_VARIABLE: Final = "HEADRACE_CONFIG"
STATE_VARIABLE: Final = "HEADRACE_STATE_PATH"
BOOTSTRAP_VARIABLE: Final = "HEADRACE_KAFKA_BOOTSTRAP"
OVERRIDE_PREFIX: Final = "HEADRACE__"
STATE_FOLDER: Final = ".headrace"
LOCAL_CATALOG: Final = "local"
DEFAULT_CLUSTER: Final = "default"
SPILL_FOLDER: Final = "spill"
_STATE_KEYS: Final = ("path", "dir", "memory")
_NAMED_SECTIONS: Final = ("kafka", "catalogs", "object_stores")
_SECTIONS: Final = (*_NAMED_SECTIONS, "state", "operators")
_OVERRIDE_PARTS: Final = 3

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Config:
    """Where things are and how to reach them. Built by :func:`load_config`; ``repr`` hides secrets.

    Attributes:
        kafka: librdkafka options by cluster name; ``default`` is the one that specs mean when they name none.
        catalogs: pyiceberg options by catalog name; all values are strings.
        object_stores: boto3 client options by name; ``s3`` serves checkpoint stores.
        state_path: Folder for checkpoints, the job store, the local catalog; absolute, may not exist yet.
        state_dir: Folder for the keyed state of running jobs; None: ``spill`` in the state folder.
        state_memory: Bytes of keyed state that a job keeps in memory; None: the default.
        operators: ``MODULE:CLASS`` of custom operators, by the name that jobs call them.
        file: The file that was read, or None.
    """

    kafka: Mapping[str, Options] = field(default_factory=dict)
    catalogs: Mapping[str, Options] = field(default_factory=dict)
    object_stores: Mapping[str, Options] = field(default_factory=dict)
    state_path: Path = field(default_factory=lambda: Path.cwd() / STATE_FOLDER)
    file: Path | None = None
    state_dir: Path | None = None
    state_memory: int | None = None
    operators: Mapping[str, str] = field(default_factory=dict)

    @property
    def spill_path(self) -> Path:
        """Where running jobs keep keyed state."""
        return self.state_dir or self.state_path / SPILL_FOLDER

    def kafka_cluster(self, name: str = DEFAULT_CLUSTER) -> Options:
        """The librdkafka options of a cluster.

        Raises:
            ConfigError: No such cluster is configured, or it has no ``bootstrap.servers``.
        """
        if not self.kafka and name == DEFAULT_CLUSTER:
            raise ConfigError(
                "no kafka cluster is configured",
                hint=f"set {BOOTSTRAP_VARIABLE}=HOST:PORT, or add [kafka.default] to {FILE_NAME}",
                code="KAFKA_CLUSTER_UNKNOWN",
            )
        options = self._named("kafka", self.kafka, name, "KAFKA_CLUSTER_UNKNOWN")
        if not options.get("bootstrap.servers"):
            raise ConfigError(
                f"kafka cluster {name!r} has no bootstrap.servers",
                hint=f'add bootstrap.servers = "HOST:PORT" to [kafka.{name}] in {self.file or FILE_NAME}',
            )
        return options

    def catalog(self, name: str) -> Options:
        """The pyiceberg options of a catalog.

        Raises:
            ConfigError: No such catalog is configured.
        """
        return self._named("catalogs", self.catalogs, name, "CATALOG_UNKNOWN")

    def object_store(self, name: str = "s3") -> Options:
        """The boto3 client options of an object store; empty (boto3's own defaults) when it is not configured."""
        return self.object_stores.get(name, {})

    def with_state_path(self, path: Path) -> Config:
        """The same with another state folder; a local catalog that was made by default moves with it."""
        state = path.expanduser().absolute()
        catalogs = dict(self.catalogs)
        if catalogs.get(LOCAL_CATALOG) == _local_catalog(self.state_path):
            catalogs[LOCAL_CATALOG] = _local_catalog(state)
        return replace(self, state_path=state, catalogs=catalogs)

    def redacted(self) -> dict[str, Any]:
        """The configuration as JSON values without its secrets."""
        return {
            "file": str(self.file) if self.file else None,
            "state": {"path": str(self.state_path), "dir": str(self.spill_path), "memory": self.state_memory},
            "kafka": redact(self.kafka),
            "catalogs": redact(self.catalogs),
            "object_stores": redact(self.object_stores),
            "operators": dict(self.operators),
        }

    def __repr__(self) -> str:
        return f"Config({self.redacted()})"

    def _named(self, section: str, known: Mapping[str, Options], name: str, code: str) -> Options:
        if name in known:
            return known[name]
        kind = {"kafka": "kafka cluster", "catalogs": "catalog"}[section]
        where = f"add [{section}.{name}] to {self.file or FILE_NAME}"
        raise ConfigError(
            f"{kind} {name!r} is not configured",
            hint="; ".join(part for part in (suggest(name, known), where) if part),
            code=code,
            context={"section": section, "name": name},
        )


def load_config(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    state_path: str | Path | None = None,
) -> Config:
    """The configuration: file, then environment, then arguments; later ones win.

    Args:
        path: The file; otherwise ``HEADRACE_CONFIG``, otherwise ``headrace.toml`` here or in the nearest parent folder.
        environ: The environment; the process's own when not given.
        cwd: Where to look for the file and what relative paths outside of it start from.
        state_path: The state folder, over everything else.

    Raises:
        ConfigError: The file cannot be read or says something wrong; the message names file, line and key.
    """
    environ = os.environ if environ is None else environ
    cwd = cwd or Path.cwd()
    file = _find(path, environ, cwd)
    sections = _read(file, environ) if file else {section: {} for section in _SECTIONS}
    _override(sections, environ)
    state = _state_path(sections["state"], file, environ, cwd, state_path)
    catalogs = {name: _strings(options) for name, options in sections["catalogs"].items()}
    catalogs.setdefault(LOCAL_CATALOG, _local_catalog(state))
    home = file.parent if file else cwd
    folder = sections["state"].get("dir")
    return Config(
        sections["kafka"],
        catalogs,
        sections["object_stores"],
        state,
        file,
        home / Path(folder).expanduser() if folder else None,
        sections["state"].get("memory"),
        sections["operators"],
    )


def _find(path: str | Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    named = path or environ.get(FILE_VARIABLE)
    if named:
        file = cwd / Path(named).expanduser()
        if not file.is_file():
            by = "--config" if path else FILE_VARIABLE
            raise ConfigError(f"configuration file {file} does not exist", hint=f"it was named by {by}")
        return file
    for folder in (cwd, *cwd.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    return None


def _read(file: Path, environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {file} cannot be read", detail=str(error)) from error
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        raise ConfigError(f"{file}{f':{at[1]}' if at else ''}: not valid TOML", detail=str(error)) from error
    return _Reader(file, text, environ).sections(raw)


class _Reader:
    """Turns parsed TOML into sections of flat options, and knows where a key stands."""

    def __init__(self, file: Path, text: str, environ: Mapping[str, str]) -> None:
        self._file = file
        self._lines = text.splitlines()
        self._environ = environ

    def sections(self, raw: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        out: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
        for section, content in raw.items():
            if section not in _SECTIONS:
                raise self._error((section,), f"unknown section [{section}]", suggest(section, _SECTIONS))
            self._check_table((section,), content)
            match section:
                case "state":
                    out[section] = self._state(content)
                case "operators":
                    out[section] = self._operators(content)
                case _:
                    out[section] = self._named(section, content)
        return out

    def _operators(self, content: Mapping[str, Any]) -> dict[str, Any]:
        for name, place in content.items():
            module, _, attribute = place.partition(":") if isinstance(place, str) else ("", "", "")
            if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
                hint = f'write {name} = "my_package.my_module:MyClass"'
                raise self._error(("operators", name), f"operators.{name} must be MODULE:CLASS, as text", hint)
        return dict(content)

    def _state(self, content: Mapping[str, Any]) -> dict[str, Any]:
        for key, value in content.items():
            if key not in _STATE_KEYS:
                raise self._error(("state", key), f"unknown key {key!r} in [state]", suggest(key, _STATE_KEYS))
            if key != "memory" and not isinstance(value, str):
                raise self._error(("state", key), f"state.{key} must be a string")
        resolved = {key: self._resolve(("state", key), value) for key, value in content.items()}
        if "memory" in resolved:
            try:
                resolved["memory"] = parse_size(resolved["memory"])
            except ValueError as error:
                raise self._error(("state", "memory"), f"state.memory: {error}") from error
        return resolved

    def _named(self, section: str, content: Mapping[str, Any]) -> dict[str, Any]:
        out = {}
        for name, options in content.items():
            if not isinstance(options, Mapping):
                hint = f"options belong to a name: [{section}.NAME], for example [{section}.default]"
                raise self._error((section, name), f"{section}.{name} must be a table", hint)
            out[name] = dict(self._flatten((section, name), options, ""))
        return out

    def _flatten(self, at: tuple[str, ...], options: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in options.items():
            if isinstance(value, Mapping):
                yield from self._flatten((*at, key), value, f"{prefix}{key}.")
            elif isinstance(value, str | int | float | bool):
                yield prefix + key, self._resolve((*at, key), value)
            else:
                raise self._error((*at, key), f"{'.'.join((*at, key))} must be a string, a number or a boolean")

    def _resolve(self, at: tuple[str, ...], value: Any) -> Any:
        if not isinstance(value, str) or not has_reference(value):
            return value
        try:
            return substitute(value, self._environ)
        except EnvReferenceError as error:
            hint = "set it, or give a default: ${NAME:-default}" if error.variable else ""
            raise self._error(at, f"{'.'.join(at)}: {error}", hint) from error

    def _check_table(self, at: tuple[str, ...], content: Any) -> None:
        if not isinstance(content, Mapping):
            raise self._error(at, f"{'.'.join(at)} must be a table: [{'.'.join(at)}]")

    def _error(self, at: tuple[str, ...], message: str, hint: str = "") -> ConfigError:
        line = self._line(at)
        place = f"{self._file}:{line}" if line else str(self._file)
        return ConfigError(f"{place}: {message}", hint=hint, context={"file": str(self._file), "key": ".".join(at)})

    def _line(self, at: tuple[str, ...]) -> int | None:
        """The first line on which the last key that is written out stands, at or after its table's header."""
        start = 0
        found = None
        for key in at:
            word = re.compile(rf"(?<![\w-]){re.escape(key)}(?![\w-])")
            for number in range(start, len(self._lines)):
                if word.search(self._lines[number].split("#", 1)[0]):
                    found, start = number + 1, number
                    break
        return found


def _override(sections: dict[str, dict[str, Any]], environ: Mapping[str, str]) -> None:
    bootstrap = environ.get(BOOTSTRAP_VARIABLE)
    if bootstrap:
        sections["kafka"].setdefault(DEFAULT_CLUSTER, {})["bootstrap.servers"] = bootstrap
    for variable in sorted(environ):
        if not variable.startswith(OVERRIDE_PREFIX):
            continue
        parts = variable.removeprefix(OVERRIDE_PREFIX).split("__")
        section = parts[0].lower()
        if section not in _NAMED_SECTIONS or len(parts) < _OVERRIDE_PARTS or not all(parts):
            raise ConfigError(
                f"environment variable {variable} overrides nothing",
                hint=f"write {OVERRIDE_PREFIX}SECTION__NAME__OPTION with SECTION one of "
                f"{', '.join(known.upper() for known in _NAMED_SECTIONS)}; the state folder is {STATE_VARIABLE}",
            )
        known = sections[section]
        wanted = parts[1].lower()
        name = next((name for name in known if name.lower().replace("-", "_") == wanted), wanted)
        options = known[name] = dict(known.get(name, {}))
        options[_option_name(section, parts[2:])] = environ[variable]


def _option_name(section: str, parts: list[str]) -> str:
    words = [part.lower() for part in parts]
    if section == "kafka":
        return ".".join(words).replace("_", ".")
    if section == "catalogs":
        return ".".join(words).replace("_", "-")
    return "__".join(words)


def _state_path(
    section: Mapping[str, Any], file: Path | None, environ: Mapping[str, str], cwd: Path, given: str | Path | None
) -> Path:
    if given:
        return cwd / Path(given).expanduser()
    if environ.get(STATE_VARIABLE):
        return cwd / Path(environ[STATE_VARIABLE]).expanduser()
    home = file.parent if file else cwd
    return home / Path(section.get("path", STATE_FOLDER)).expanduser()


def _strings(options: Options) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}


def _local_catalog(state: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{state / 'catalog.db'}",
        "warehouse": f"file://{state / 'warehouse'}",
    }
