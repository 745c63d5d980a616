"""Well-known shapes of secrets (access keys, tokens, private keys), and a redactor that takes them out of a stream.

The inspection plugin opens a `ShapeRedactor` where a rule says `inspect: [secrets]`. Unlike
`seamgate.credentials.redaction`, which knows the exact values, this guesses by shape: a prefix that issuers chose so
that it can be recognised, and a run of characters of bounded length. Since lengths are bounded, so is what is held
back; and since no shape holds a line break (but for private keys, which are dropped as they come), a piece that ends
an event or a line is never held back at all.

A shape is a sequence of parts, not a regular expression, so that from the same description two automata can be made:
one that finds whole ones, one that finds the true beginnings of one at the end of what came so far. Both run in RE2,
in linear time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import re2

from seamgate.credentials.probing import FLUSH_LIMIT_BYTES
from seamgate.flow import Headers

_ALNUM = "A-Za-z0-9"
_WORD = "A-Za-z0-9_-"


class Run(msgspec.Struct, frozen=True):
    """A run of characters of one class.

    Attributes:
        characters: the inside of a bracket expression: "A-Za-z0-9_-".
        least: at least so many.
        most: at most so many, up to 1,000.
    """

    characters: str
    least: int
    most: int


class Shape(msgspec.Struct, frozen=True):
    """What one kind of secret looks like.

    Attributes:
        name: stands in the replacement, `[redacted:<name>]`.
        parts: in order; a tuple of texts is a choice of literals, lower and upper case differ.
        check: further test of a whole match, or None.
        keep: so many leading parts stay: the key before a value.
        block: whether it begins a block that goes on until its END line: a private key in PEM.
    """

    name: str
    parts: tuple[tuple[str, ...] | Run, ...]
    check: Callable[[bytes], bool] | None = None
    keep: int = 0
    block: bool = False


# Source: the issuers' own documentation of their formats; lengths are taken generously.
KNOWN_SHAPES: tuple[Shape, ...] = (
    Shape("private-key", (("-----BEGIN ",), Run("A-Z0-9 ", 0, 30), ("PRIVATE KEY-----", "PRIVATE KEY BLOCK-----")),
          block=True),
    Shape("aws-access-key", (("AKIA", "ASIA"), Run("A-Z2-7", 16, 16))),
    Shape("aws-secret-key", (
        ("SecretAccessKey", "secret_access_key", "SECRET_ACCESS_KEY", "secretAccessKey"),
        Run(r" \t\"'\\:=>", 1, 8), Run("A-Za-z0-9/+", 40, 40)), keep=2),
    Shape("github-token", (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), Run(_ALNUM, 36, 255))),
    Shape("github-token", (("github_pat_",), Run("A-Za-z0-9_", 22, 255))),
    Shape("gitlab-token", (("glpat-",), Run(_WORD, 20, 100))),
    Shape("slack-token", (("xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "xapp-"),
                          Run("A-Za-z0-9-", 10, 250))),
    Shape("slack-webhook", (("hooks.slack.com/services/T",), Run("A-Z0-9", 8, 12), ("/B",), Run("A-Z0-9", 8, 12),
                            ("/",), Run(_ALNUM, 24, 24))),
    Shape("anthropic-key", (("sk-ant-",), Run(_WORD, 20, 200))),
    Shape("openai-key", (("sk-proj-", "sk-svcacct-", "sk-admin-"), Run(_WORD, 40, 250))),
    Shape("openai-key", (("sk-",), Run(_ALNUM, 48, 48))),
    Shape("google-api-key", (("AIza",), Run(_WORD, 35, 35))),
    Shape("google-token", (("ya29.",), Run(_WORD, 20, 400))),
    Shape("stripe-key", (("sk_live_", "rk_live_"), Run(_ALNUM, 24, 100))),
    Shape("npm-token", (("npm_",), Run(_ALNUM, 36, 36))),
    Shape("pypi-token", (("pypi-AgE",), Run(_WORD, 50, 250))),
    Shape("huggingface-token", (("hf_",), Run(_ALNUM, 34, 40))),
    Shape("sendgrid-key", (("SG.",), Run(_WORD, 22, 22), (".",), Run(_WORD, 43, 43))),
)  # fmt: skip
JWT_SHAPES = (
    Shape("jwt", (("eyJ",), Run(_WORD, 8, 400), (".eyJ",), Run(_WORD, 8, 1000), (".",), Run(_WORD, 20, 600))),
)
"""Not among the known ones: many services hand JWTs to their clients on purpose."""


def looks_random(text: bytes) -> bool:
    """Return whether a run of characters is mixed and even enough to be a key: letters of both cases and digits, and
    more than 4 bits of entropy a character, which words, paths, hex digests and numbers do not reach.
    """
    counts = Counter(text)
    size = len(text)
    kinds = (any(low <= byte <= high for byte in counts) for low, high in (b"az", b"AZ", b"09"))
    return all(kinds) and -sum(n / size * math.log2(n / size) for n in counts.values()) > 4.0


HIGH_ENTROPY_SHAPES = (Shape("high-entropy", (Run("A-Za-z0-9+/_=-", 32, 256),), check=looks_random),)
"""Guesses: also finds nonces, content hashes in base64 and identifiers."""

_BLOCK_CHARACTERS = r"A-Za-z0-9+/=:,\-\\ \t\r\n"
_BLOCK_END_BYTES = 80
"""Longer than any END line."""
_BLOCK_MAX_BYTES = 64 * 1024
"""Longer than any private key; a text that only shows the BEGIN line is not swallowed beyond it."""


def public_beginnings(value: bytes) -> tuple[bytes, ...]:
    """Return the beginnings of a value that everybody knows: of its issuer's prefix, or of a JWT's header."""
    literals = [text for shape in KNOWN_SHAPES for text in _first_literals(shape) if value.startswith(text)]
    if value.startswith(b"eyJ"):
        literals.append(value.partition(b".")[0] + b".")
    longest = max(map(len, literals), default=0)
    return tuple([value[:size] for size in range(1, min(longest, len(value) - 1) + 1)])


def _first_literals(shape: Shape) -> tuple[bytes, ...]:
    """Return the literals that a match begins with; those of what stands before a secret are none of it."""
    first = shape.parts[0]
    return () if shape.keep or isinstance(first, Run) else tuple([text.encode() for text in first])


class ShapeSet:
    """Shapes to look for, prepared once for many redactors."""

    __slots__ = ("_ends", "_open", "_shapes", "_whole", "longest")

    def __init__(self, shapes: Iterable[Shape]) -> None:
        every = tuple(shapes)
        self._shapes = tuple(
            (shape, _compile(_whole(shape.parts)), _compile(_whole(shape.parts[: shape.keep]))) for shape in every
        )
        self._whole = _compile("|".join(_whole(shape.parts) for shape in every))
        self._open = _compile("(?:" + "|".join(_beginnings(shape.parts) for shape in every) + r")\z")
        # Most pieces end with a byte that is in no shape, and then need no search for a beginning.
        self._ends = frozenset(byte for shape in every for part in shape.parts for byte in _bytes_of(part))
        self.longest = max((sum(map(_longest, shape.parts)) for shape in every), default=0)

    def __repr__(self) -> str:
        return f"<ShapeSet: {', '.join(dict.fromkeys(shape.name for shape, _, _ in self._shapes))}>"

    def hit(self, data: bytes) -> bool:
        """Return whether any shape stands in the data; its check is not asked."""
        return self._whole.search(data) is not None

    def first(self, data: bytes, start: int) -> tuple[int, int, int, Shape | None] | None:
        """Return (begin, begin of what is secret, end, shape) of the leftmost, then longest, match from start on.

        The shape is None where its check says that this is none.
        """
        found = self._whole.search(data, start)
        if found is None:
            return None
        begin, end = found.span()
        text = data[begin:end]
        shape, kept = next((shape, kept) for shape, whole, kept in self._shapes if whole.fullmatch(text) is not None)
        if shape.check is not None and not shape.check(text):
            return begin, begin, end, None
        key = kept.match(text) if shape.keep else None
        return begin, begin + (key.end() if key is not None else 0), end, shape

    def open_end(self, data: bytes, start: int) -> int:
        """Return where the earliest true beginning of a shape starts that lasts to the end; else len(data)."""
        size = len(data)
        if start >= size or data[-1] not in self._ends:
            return size
        found = self._open.search(data, max(start, size - self.longest))
        return size if found is None else found.start()

    def replace(self, data: bytes) -> bytes:
        """Return a whole text, such as a header value, with every shape replaced."""
        one = ShapeRedactor(self)
        return one.feed(data) + one.finish()

    def replace_headers(self, headers: Headers) -> Headers:
        """Return the headers with each value redacted."""
        if not self.hit(b"\n".join([value for _, value in headers])):
            return headers
        return tuple((name, self.replace(value)) for name, value in headers)


class ShapeRedactor:
    """An inspector that replaces what has one of the shapes. For one body. As `Redactor` in what it holds back.

    After a match that begins a block it drops what follows until the block's END line, a character that no block has,
    or `_BLOCK_MAX_BYTES`.
    """

    __slots__ = ("_block_left", "_flush_limit_bytes", "_given", "_set", "_tail")

    def __init__(self, shapes: ShapeSet, *, flush_limit_bytes: int = FLUSH_LIMIT_BYTES) -> None:
        self._set = shapes
        self._flush_limit_bytes = flush_limit_bytes
        self._tail = b""
        self._given = 0  # so many bytes at the beginning of the tail are out already, or dropped
        self._block_left = 0  # within a block: so many bytes more are dropped at most

    def head(self, headers: Headers) -> Headers:
        """Return the headers without secrets."""
        return self._set.replace_headers(headers)

    def feed(self, data: bytes) -> bytes:
        """Return what can be decided by now: for a piece without anything suspicious, that same piece."""
        if self._tail or self._block_left:
            return self._run(self._tail + data, last=False)
        if not data or (not self._set.hit(data) and self._set.open_end(data, 0) == len(data)):
            return data
        return self._run(data, last=False)

    def flush(self) -> bytes:
        """Return held bytes if they are few enough to tell nothing; they are remembered."""
        if self._block_left or self._given >= len(self._tail) or len(self._tail) > self._flush_limit_bytes:
            return b""
        out = self._tail[self._given :]
        self._given = len(self._tail)
        return out

    def finish(self) -> bytes:
        """Return the rest: a beginning that stayed a beginning is no secret; an open block stays dropped."""
        return self._run(self._tail, last=True)

    def _run(self, data: bytes, *, last: bool) -> bytes:
        """Replace what is decided; keep the open end, or in a block its last bytes, as the tail."""
        out: list[bytes] = []
        emitted, scanned, block_from = self._given, 0, 0  # all before `emitted` is out or dropped
        if self._block_left:
            self._block_left += len(self._tail)  # they are seen, and counted, a second time
            emitted = scanned = self._drop_block(data, 0)
        open_at = len(data) if last else self._set.open_end(data, scanned)
        while not self._block_left and (found := self._set.first(data, scanned)) is not None and found[0] < open_at:
            _, secret_at, scanned, shape = found
            if shape is not None:
                out += (data[emitted:secret_at], b"[redacted:%s]" % shape.name.encode())
                if shape.block:
                    block_from, self._block_left = scanned, _BLOCK_MAX_BYTES
                    scanned = self._drop_block(data, scanned)
                emitted = scanned
            if open_at < scanned:
                open_at = self._set.open_end(data, scanned)
        if self._block_left:
            self._tail = data[max(block_from, len(data) - _BLOCK_END_BYTES) :]
            self._given = len(self._tail)
        else:
            out.append(data[emitted:open_at])
            self._tail = data[open_at:]
            self._given = max(0, emitted - open_at)
        return b"".join(out)

    def _drop_block(self, data: bytes, start: int) -> int:
        """Return where the block ends, `_block_left` being 0 then; or len(data) if it goes on."""
        limit = min(len(data), start + self._block_left)
        foreign = _FOREIGN.search(data, start, limit)
        stop = limit if foreign is None else foreign.start()
        end = _BLOCK_END.search(data, start, stop)
        if end is None and foreign is None:
            self._block_left -= limit - start
            return limit
        self._block_left = 0
        return stop if end is None else end.end()


def _compile(pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.longest_match = True
    options.never_capture = True
    options.log_errors = False
    options.max_mem = 64 << 20
    return re2.compile(pattern.encode("latin-1"), options)


_FOREIGN = _compile(f"[^{_BLOCK_CHARACTERS}]")
_BLOCK_END = _compile("-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")


def _literal(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode("latin-1"))


def _whole(parts: Sequence[tuple[str, ...] | Run]) -> str:
    """The expression that matches all the parts."""
    return "".join(
        f"[{part.characters}]{{{part.least},{part.most}}}" if isinstance(part, Run)
        else "(?:" + "|".join(map(_literal, part)) + ")"
        for part in parts
    )  # fmt: skip


def _beginnings(parts: Sequence[tuple[str, ...] | Run]) -> str:
    """The expression that matches every beginning of the parts that more characters could still turn into a match, or
    into a longer one. It also matches nothing.
    """
    found = []
    for index, part in enumerate(parts):
        if isinstance(part, Run):
            # A run in the middle may be full and wait for what follows; a full one at the end is decided.
            most = part.most - 1 if index == len(parts) - 1 else part.most
            beginning = f"[{part.characters}]{{0,{most}}}"
        else:
            beginning = "(?:" + "|".join(map(_proper_prefixes, part)) + ")"
        found.append(_whole(parts[:index]) + beginning)
    return "|".join(found)


def _proper_prefixes(text: str) -> str:
    expression = ""
    for char in reversed(text[:-1]):
        expression = f"(?:{_literal(char)}{expression})?"
    return expression


def _bytes_of(part: tuple[str, ...] | Run) -> Iterable[int]:
    if isinstance(part, Run):
        one = _compile(f"[{part.characters}]")
        return [byte for byte in range(256) if one.search(bytes((byte,))) is not None]
    return "".join(part).encode("latin-1")


def _longest(part: tuple[str, ...] | Run) -> int:
    return part.most if isinstance(part, Run) else max(map(len, part))
