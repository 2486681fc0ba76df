"""What happens to rows: pure operators over Polars frames. No I/O."""
