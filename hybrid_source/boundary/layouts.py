"""How writers lay out a row's topic, partition and offset: names in a schema, nothing is read."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from hybrid_source.resolution import OffsetNames

_FIELDS = ("partition", "offset", "timestamp")


def flat(stored: pl.Schema, prefix: str, *, topic: bool | None = None) -> OffsetNames | None:
    """Columns ``<prefix>partition`` and ``<prefix>offset``.

    Args:
        stored: The history's columns.
        prefix: What stands before the names.
        topic: There must be a ``<prefix>topic``, or must not; None: it is used where it is.
    """
    names = f"{prefix}partition", f"{prefix}offset"
    found = f"{prefix}topic" if isinstance(stored.get(f"{prefix}topic"), pl.String) else None
    if topic not in (None, found is not None) or not _integers(stored, names):
        return None
    return OffsetNames(*names, found)


def nested(stored: pl.Schema, root: str, *, topic: bool | None = None) -> OffsetNames | None:
    """A struct column with the fields ``partition``, ``offset`` and ``timestamp``; ``topic`` as in :func:`flat`."""
    dtype = stored.get(root)
    if not isinstance(dtype, pl.Struct):
        return None
    inner = pl.Schema({field.name: field.dtype for field in dtype.fields})
    found = "topic" if isinstance(inner.get("topic"), pl.String) else None
    if topic not in (None, found is not None) or not _integers(inner, _FIELDS[:2]) or "timestamp" not in inner:
        return None
    return OffsetNames(f"{root}.partition", f"{root}.offset", f"{root}.topic" if found else None)


def own(stored: pl.Schema) -> OffsetNames | None:
    """Headrace's own columns, which OLake writes, too."""
    return flat(stored, "_kafka_")


def connect(stored: pl.Schema) -> tuple[OffsetNames, ...]:
    """The columns of Kafka Connect's metadata transform under any ``field_name``, flat and nested.

    Flat names are ``<field_name>_topic``, ``_partition``, ``_offset``, ``_timestamp``; all four must be there, so that
    a payload's own ``offset`` is not taken for one. Source: ``KafkaMetadataTransform`` of Apache Iceberg.
    """
    taken = {found for found in (own(stored), *tableflow(stored)) if found is not None}
    found = [*_connect_flat(stored), *(names for root in stored if (names := nested(stored, root, topic=True)))]
    return tuple(names for names in found if names not in taken)


def _connect_flat(stored: pl.Schema) -> Iterator[OffsetNames]:
    for name in stored:
        prefix = name.removesuffix("offset")
        if prefix != name and prefix.endswith("_") and f"{prefix}timestamp" in stored:
            names = flat(stored, prefix, topic=True)
            if names is not None:
                yield names


def redpanda(stored: pl.Schema) -> OffsetNames | None:
    """Redpanda's struct ``redpanda`` (before and after 25.3, which added ``timestamp_type``)."""
    return nested(stored, "redpanda", topic=False)


def tableflow(stored: pl.Schema) -> tuple[OffsetNames, ...]:
    """Confluent Tableflow's ``$$topic``, ``$$partition``, ``$$offset``, or the portable ``cflt_metadata_`` names."""
    found = (flat(stored, prefix, topic=True) for prefix in ("$$", "cflt_metadata_"))
    return tuple(names for names in found if names is not None)


def automq(stored: pl.Schema) -> OffsetNames | None:
    """AutoMQ's struct ``_kafka_metadata``, which has no topic."""
    return nested(stored, "_kafka_metadata", topic=False)


def aiven(stored: pl.Schema) -> OffsetNames | None:
    """Aiven's struct ``kafka``, which has no topic."""
    return nested(stored, "kafka", topic=False)


def fluss(stored: pl.Schema) -> OffsetNames | None:
    """Apache Fluss' ``__bucket`` and ``__offset``."""
    return OffsetNames("__bucket", "__offset") if _integers(stored, ("__bucket", "__offset")) else None


def any_known(stored: pl.Schema) -> OffsetNames | None:
    """The columns of the first writer whose layout is there without doubt."""
    several = (connect(stored), tableflow(stored))
    found = [
        own(stored),
        *(names[0] for names in several if len(names) == 1),
        *(layout(stored) for layout in (redpanda, automq, aiven, fluss)),
    ]
    return next((names for names in found if names is not None), None)


def _integers(stored: pl.Schema, names: tuple[str, ...]) -> bool:
    return all(name in stored and stored[name].is_integer() for name in names)
