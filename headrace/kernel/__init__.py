"""Values, errors, protocols and the clock. Imports nothing else of Headrace."""
