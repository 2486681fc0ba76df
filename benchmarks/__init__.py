"""Headrace measured against what one would write by hand. ``python -m benchmarks``; see docs/performance.md."""
