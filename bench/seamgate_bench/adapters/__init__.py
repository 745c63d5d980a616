"""One module a peer: its configuration, its command line, and what it needs to be there."""
