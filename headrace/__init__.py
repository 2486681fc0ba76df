"""Headrace: lakehouse-plus-stream hybrid processing."""
