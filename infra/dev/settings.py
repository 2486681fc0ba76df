"""A ``headrace.toml`` for a stack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.dev.endpoints import S3, Endpoints


def render_settings(there: Endpoints, folder: Path) -> str:
    """The text of a ``headrace.toml`` that connects to a stack's services.

    Args:
        there: Where they answer; tables are left out for those that there are not.
        folder: Where the local catalog and the state live; must exist before they are used.

    Returns:
        TOML with the Kafka cluster ``default``, the catalogs ``local`` (SQLite and files), ``lake`` (Iceberg REST and
        S3) and ``postgres``, and the object store ``s3``. It holds keys: keep the file to its owner.
    """
    root = folder.absolute()
    tables: dict[str, Mapping[str, str]] = {}
    if there.kafka_bootstrap:
        tables["kafka.default"] = {"bootstrap.servers": there.kafka_bootstrap}
    tables |= {f"catalogs.{name}": properties for name, properties in catalogs(there, root).items()}
    if there.s3:
        tables["object_stores.s3"] = {
            "endpoint_url": there.s3.endpoint,
            "aws_access_key_id": there.s3.access_key,
            "aws_secret_access_key": there.s3.secret_key,
            "region_name": there.s3.region,
        }
    tables["state"] = {"path": str(root / "state")}
    return "\n".join(_table(name, values) for name, values in tables.items())


def catalogs(there: Endpoints, folder: Path) -> dict[str, dict[str, str]]:
    """Pyiceberg's properties of every catalog that a stack offers, by name.

    Args:
        there: Where the services answer.
        folder: Where the ``local`` catalog lives; must exist before it is used.
    """
    found = {
        "local": {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalog.db'}",
            "warehouse": f"file://{folder / 'warehouse'}",
        }
    }
    if there.iceberg:
        found["lake"] = {"type": "rest", "uri": there.iceberg.uri, "warehouse": there.iceberg.warehouse}
        if there.iceberg.credential:
            found["lake"] |= {
                "credential": there.iceberg.credential,
                "oauth2-server-uri": f"{there.iceberg.uri}/v1/oauth/tokens",
            }
        if there.s3:
            found["lake"] |= _file_io(there.s3)
    if there.postgres_uri:
        found["postgres"] = {"type": "sql", "uri": there.postgres_uri}
        if there.s3:
            found["postgres"] |= {"warehouse": f"s3://{there.s3.bucket}/postgres", **_file_io(there.s3)}
        else:
            found["postgres"]["warehouse"] = f"file://{folder / 'postgres'}"
    return found


def _file_io(s3: S3) -> dict[str, str]:
    return {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
        "s3.region": s3.region,
    }


def _table(name: str, values: Mapping[str, str]) -> str:
    # JSON's strings are TOML's basic strings.
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines, ""])
