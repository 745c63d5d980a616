"""CPython's own tests, run in guests."""
