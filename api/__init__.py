"""The HTTP service: routes over headrace.jobs. No logic of its own."""
