"""What reading a piece of a protocol costs, in units: so that a flood of tiny pieces can be cut where it is read.

Every reader counts down its `left` by these as it goes, and gives out nothing more once none are left: whoever reads
sets `left` before, and asks again in a later turn (`seamgate.turns`). Sans-I/O; nobody who does not set it notices.

One unit is some 5 us of this gateway's time, parsing, judging and passing on together, as measured for each kind of
piece on its own: what matters is that no kind is a way around the others.
"""

from __future__ import annotations

from typing import Final

UNBOUNDED: Final = 1 << 60
"""What is left to a reader that nobody holds to a turn."""
HEAD: Final = 16
"""A message's head, and what an ordinary request to a policy costs; a piece of body and an end beside it are 1 each."""
CHUNK: Final = 1
"""A piece of an HTTP/1.1 body: a chunk, or what one read brought of a plain one."""
FRAME: Final = 2
"""A frame of HTTP/2."""
MESSAGE: Final = 4
"""A frame of a WebSocket: most are a message, which is inspected, and masked or compressed again."""
HELLO: Final = 60
"""A handshake's first step here: a ClientHello that is read and answered, with one signature and one key exchange."""
FINISHED: Final = 12
"""Its last one."""
LEAF: Final = 150
"""A certificate that was made for it."""
VERIFIED: Final = 120
"""A handshake with an upstream: its answer read, its chain of certificates checked."""
ACCEPT: Final = 8
"""A connection that was taken, or opened on a ring: its objects, and its end."""
ENTRY: Final = 4
"""The first head of a connection that did not say before whose it is, read to find out."""
NAME: Final = 12
"""A name that a guest asks for, judged and answered."""
RECORD: Final = 4
"""A record of TLS, of those that are so many at once that a stream is behind: it may be a change of keys."""
SPLICE_SHIFT: Final = 14
"""Bytes that are passed on unread are a unit for each 16 KiB, and each read is one."""
SHIFT: Final = 12
"""Bytes cost as well: a unit for each 4 KiB (1 << 12)."""
MESSAGE_SHIFT: Final = 10
"""A whole message of a WebSocket is inspected in one go: a unit for each KiB of it, inflated."""
DECODED_SHIFT: Final = 10
"""What a body decodes to is searched as it comes: a unit for each KiB."""
HEAD_SHIFT: Final = 10
"""Bytes of heads are looked at one by one: a unit for each KiB."""
MARKS_SHIFT: Final = 2
"""So are escapes and separators, of which a policy makes characters, segments and parameters: a unit for each four."""


def long_head_units(head: bytes) -> int:
    """Return what a head of a KiB or more costs besides `HEAD`; a shorter one holds too little to count it."""
    marks = head.count(b"%") + head.count(b"/") + head.count(b"&")
    return (len(head) >> HEAD_SHIFT) + (marks >> MARKS_SHIFT)
