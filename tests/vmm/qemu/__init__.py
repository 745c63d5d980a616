"""The machine that QEMU emulates: where system calls of guests land in ring 0."""
