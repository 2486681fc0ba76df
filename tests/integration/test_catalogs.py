"""The catalogs that the other tests run on."""

import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tests.services import CatalogCase


def test_a_table_is_written_and_read(catalog: CatalogCase) -> None:
    rows = pa.table({"a": [1, 2, 3]})
    table = catalog.client.create_table(catalog.identifier("t"), rows.schema)
    table.append(rows)

    other = catalog.load()
    assert other.load_table(catalog.identifier("t")).scan().to_arrow().to_pydict() == rows.to_pydict()
    other.close()


@pytest.mark.services
def test_every_catalog_of_the_settings_file_answers(settings_file: Path) -> None:
    for name, properties in tomllib.loads(settings_file.read_text(encoding="utf-8"))["catalogs"].items():
        with load_catalog(name, **properties) as catalog:
            assert isinstance(catalog.list_namespaces(), list), name
