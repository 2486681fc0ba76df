"""A local stack of real services for development, tests and the demo."""
