"""Two-phase sinks."""
