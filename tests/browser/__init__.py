"""A browser as guest. Not part of `make test`, since it takes 350 MB: `make test-browser`."""
