"""Streaming SQL: statements over the sources and tables of a job, as steps (docs/sql.md)."""

from headrace.jobs.sql.job import expand

__all__ = ["expand"]
