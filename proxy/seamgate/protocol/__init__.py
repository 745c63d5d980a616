"""HTTP and what it carries, sans-I/O: bytes in, events out. Nothing here opens, reads, waits or knows a clock."""
