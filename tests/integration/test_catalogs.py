"""The catalogs that the other tests run on."""

import pyarrow as pa

from tests.services import CatalogCase


def test_a_table_is_written_and_read(catalog: CatalogCase) -> None:
    rows = pa.table({"a": [1, 2, 3]})
    table = catalog.client.create_table(catalog.identifier("t"), rows.schema)
    table.append(rows)

    other = catalog.load()
    assert other.load_table(catalog.identifier("t")).scan().to_arrow().to_pydict() == rows.to_pydict()
    other.close()
