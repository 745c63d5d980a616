"""The build hook: C parts are built by `make`, the one way to build them, and go into the wheel."""
