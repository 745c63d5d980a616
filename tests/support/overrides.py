"""Queries that ask an origin to take another method: the spellings of `_method` that frameworks read alike."""

from __future__ import annotations

METHOD_QUERIES = (
    "_method=DELETE", "x=1&%5Fmethod=delete", "a=b;_METHOD=Delete", "_%6Dethod=%44ELETE",
    # PHP has "_" for a dot, a space and a bracket that nothing closes; spaces before a name, and NUL and what follows,
    # are nothing.
    ".method=DELETE", "%2Emethod=DELETE", "[method=DELETE", "%5Bmethod=DELETE", "%5B%6D%65thod=DELETE",
    "+_method=DELETE", "%20_method=DELETE", "_method+=DELETE", "_method%00=DELETE", "_method%00x=DELETE",
    # Rack, qs and PHP: the parameter's members.
    "_method[]=DELETE", "_method[0]=DELETE", "_method%5B%5D=DELETE", "_method.x=DELETE",
    # What is normalized: a full-width line, a letter of mathematics, a zero-width space.
    "%EF%BC%BFmethod=DELETE", "_%F0%9D%90%A6ethod=DELETE", "_met%E2%80%8Bhod=DELETE",
)  # fmt: skip
"""Each asks for DELETE, in some case."""
