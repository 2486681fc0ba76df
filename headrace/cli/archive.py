"""``headrace archive``: the archiver job from options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.run_job import run_spec
from headrace.cli.settings import Settings
from headrace.jobs.archive import archive_job, schema_from, schema_from_text, table_schema
from headrace.kernel.errors import NotFoundError, SpecError

if TYPE_CHECKING:
    from headrace.jobs.config import Config


def run_archive(
    settings: Settings,
    topic: str,
    table: str,
    *,
    schema: str,
    schema_from: str,
    partition_by: Sequence[str],
    cluster: str,
    changelog_key: Sequence[str],
    uid: str | None,
    until: str | None,
) -> None:
    """Run the archiver; the schema comes from an option, or from the table when it exists.

    Raises:
        SpecError: No schema is known, or two are given.
    """
    config = settings.load()
    columns = _columns(config, table, schema, schema_from)
    spec = archive_job(
        topic, table, columns, cluster=cluster, partition_by=partition_by, changelog_key=changelog_key, uid=uid
    )
    run_spec(spec, config, settings, until, "drain")


def _columns(config: Config, table: str, text: str, source: str) -> dict[str, str]:
    if text and source:
        raise SpecError("both --schema and --schema-from are given", hint="give one of them")
    if text:
        return schema_from_text(text)
    if source:
        return schema_from(source, config)
    try:
        return table_schema(table, config)
    except NotFoundError as error:
        raise SpecError(
            f"the schema of new table {table} is not known",
            detail=error.message,
            hint='give --schema "id: int64, at: timestamptz" or --schema-from FILE',
        ) from error
