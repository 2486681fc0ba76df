"""The lakehouse: catalogs and tables, boundary records, idempotent fenced commits."""
