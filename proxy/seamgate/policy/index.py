"""Finds the few rules that can concern a request, at the same price among ten rules and a hundred thousand.

Three steps, each a dictionary where the pattern is literal: the host (a dictionary of names, a tree of labels for
wildcards), then within a host the path (a dictionary of paths, a tree of segments for wildcards), then within a path
the guest (a dictionary of one label of each rule). What comes out has the right host and path and may have the right
guest; the caller checks the rest.

Called by `evaluation`, which keeps one index for allows (canonical paths) and one for denies (folded paths), and by
`explain` for the nearest rules. No I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from seamgate.flow import Guest, Target
from seamgate.policy.model import Match, Rule
from seamgate.policy.patterns import ANY, DEEP, Glob, HostPattern, PathPattern, folded_views


class RuleSet:
    """Rules, grouped by the value of one of the labels that they ask for."""

    __slots__ = ("by_label", "open")

    def __init__(self) -> None:
        self.open: list[Rule] = []
        self.by_label: dict[tuple[str, str], list[Rule]] | None = None

    def add(self, rule: Rule) -> None:
        """Add a rule once; rules are added one after another, so a repetition is at the end."""
        for name, values in rule.match.guests:
            if values is not None:
                if self.by_label is None:
                    self.by_label = {}
                for value in values:
                    _append(self.by_label.setdefault((name, value), []), rule)
                return
        _append(self.open, rule)

    def of(self, labels: Mapping[str, str]) -> list[Rule]:
        """Return the rules that may concern a guest with these labels. The list must not be changed."""
        if self.by_label is None:
            return self.open
        found = list(self.open)
        for item in labels.items():
            rules = self.by_label.get(item)
            if rules is not None:
                found.extend(rules)
        return found

    def some(self, limit: int) -> Iterator[Rule]:
        """Yield at most so many of the rules, whoever they are for."""
        yield from self.open[:limit]
        for rules in islice(self.by_label.values(), limit) if self.by_label is not None else ():
            yield from rules[:limit]


def _append(rules: list[Rule], rule: Rule) -> None:
    if not rules or rules[-1] is not rule:
        rules.append(rule)


class _Segment:
    """A node of the tree of path segments."""

    __slots__ = ("any", "children", "deep", "globs", "loops", "rules")

    def __init__(self, *, loops: bool = False) -> None:
        self.children: dict[str, _Segment] = {}
        self.any: _Segment | None = None
        self.deep: _Segment | None = None
        # {(length of the first piece, of the last): {(first piece, last piece): [(glob, node)]}}
        self.globs: dict[tuple[int, int], dict[tuple[str, str], list[tuple[Glob, _Segment]]]] = {}
        self.loops = loops
        self.rules: RuleSet | None = None

    def step(self, segment: Glob) -> _Segment:
        """Return the node that a pattern's segment leads to, making it if need be."""
        if segment is ANY:
            self.any = self.any or _Segment()
            return self.any
        if segment is DEEP:
            self.deep = self.deep or _Segment(loops=True)
            return self.deep
        if len(segment.pieces) == 1:
            return self.children.setdefault(segment.pieces[0], _Segment())
        first, last = segment.pieces[0], segment.pieces[-1]
        group = self.globs.setdefault((len(first), len(last)), {}).setdefault((first, last), [])
        for glob, node in group:
            if glob == segment:
                return node
        node = _Segment()
        group.append((segment, node))
        return node

    def follow(self, segment: str, following: list[_Segment]) -> None:
        """Append the nodes that a path's segment leads to."""
        if self.loops:
            following.append(self)
        child = self.children.get(segment)
        if child is not None:
            following.append(child)
        if self.deep is not None:
            following.append(self.deep)
        if self.any is not None and segment:
            following.append(self.any)
        for (head, tail), groups in self.globs.items():
            if len(segment) >= head + tail:
                key = (segment[:head], segment[len(segment) - tail :])
                following.extend(node for glob, node in groups.get(key, ()) if glob.matches(segment))


class Bucket:
    """The rules of one host pattern."""

    __slots__ = ("_sorted", "_wild", "anywhere", "connect", "literal", "pattern", "shapes", "tcp")

    def __init__(self, pattern: HostPattern | None) -> None:
        self.pattern = pattern
        self.anywhere = RuleSet()
        self.literal: dict[str, RuleSet] = {}
        self._wild: _Segment | None = None
        self.connect = RuleSet()
        self.tcp = RuleSet()
        self.shapes: dict[tuple[object, ...], float] = {}
        self._sorted: list[tuple[str, RuleSet]] | None = None

    def add(self, rule: Rule, paths: Iterable[PathPattern] | None) -> None:
        """Add a rule under these path patterns; None: every path."""
        if paths is None:
            self.anywhere.add(rule)
            return
        self._sorted = None
        for pattern in paths:
            self._leaf(pattern).add(rule)

    def add_connect(self, rule: Rule) -> None:
        """Add a rule for judging tunnels: one for each combination of what can be seen of a tunnel."""
        match: Match = rule.match
        shape = (rule.layer, rule.audit, match.schemes, match.ports, match.default_ports, match.guests, rule.exemptions)
        if self.shapes.get(shape, -1.0) < rule.expires_at:
            self.shapes[shape] = rule.expires_at
            self.connect.add(rule)

    def add_tcp(self, rule: Rule) -> None:
        """Add a rule for judging streams that are passed on unread."""
        if "tcp" in rule.match.schemes:
            self.tcp.add(rule)

    def _leaf(self, pattern: PathPattern) -> RuleSet:
        if not pattern.wild:
            text = "/".join([segment.pieces[0] for segment in pattern.segments])
            leaf = self.literal.get(text)
            if leaf is None:
                leaf = self.literal[text] = RuleSet()
            return leaf
        node = self._wild = self._wild or _Segment()
        for segment in pattern.segments:
            node = node.step(segment)
        node.rules = node.rules or RuleSet()
        return node.rules

    def find(self, text: str, segments: list[str]) -> Iterator[RuleSet]:
        """Yield the sets of rules under which a path falls.

        Args:
            text: the segments joined by "/".
            segments: of the path, without the leading slash.
        """
        yield self.anywhere
        leaf = self.literal.get(text)
        if leaf is not None:
            yield leaf
        if self._wild is not None:
            yield from _walk(self._wild, segments)

    def near(self, text: str, limit: int) -> Iterator[Rule]:
        """Yield some rules whose paths share the most with this one, whoever they are for."""
        yield from self.anywhere.some(limit)
        if self._sorted is None:
            wild = [] if self._wild is None else list(_leaves(self._wild, ""))
            self._sorted = sorted([*self.literal.items(), *wild], key=lambda item: item[0])
        at = bisect_left(self._sorted, text, key=lambda item: item[0])
        for _, rules in self._sorted[max(0, at - limit // 2) : at + limit // 2]:
            yield from rules.some(2)


def _walk(root: _Segment, segments: list[str]) -> Iterator[RuleSet]:
    """Follow all ways at once: the number of nodes under way is bounded by the patterns, not by the path."""
    nodes = [root]
    for segment in segments:
        following: list[_Segment] = []
        for node in nodes:
            node.follow(segment, following)
        if not following:
            return
        nodes = following if len(following) == 1 else list(dict.fromkeys(following))
    for node in nodes:
        if node.rules is not None:
            yield node.rules


def _leaves(node: _Segment, text: str) -> Iterator[tuple[str, RuleSet]]:
    """Yield every set of rules in the tree with its pattern's text. Patterns are short, so recursion is bounded."""
    if node.rules is not None:
        yield text.removeprefix("/"), node.rules
    inner = [*node.children.items()]
    inner += [("*", node.any)] if node.any is not None else []
    inner += [("**", node.deep)] if node.deep is not None else []
    inner += [(glob.text, each) for groups in node.globs.values() for group in groups.values() for glob, each in group]
    for segment, child in inner:
        yield from _leaves(child, f"{text}/{segment}")


class _Label:
    """A node of the tree of host labels, from the top-level label down."""

    __slots__ = ("any", "children", "deep", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Label] = {}
        self.any: _Label | None = None
        self.here: Bucket | None = None
        self.deep: Bucket | None = None


class HostIndex:
    """Buckets of rules by host pattern.

    Attributes:
        everywhere: rules without hosts, which cover addresses too.
    """

    def __init__(self) -> None:
        self._exact: dict[str, Bucket] = {}
        self._root = _Label()
        self._wild = False
        self.everywhere = Bucket(None)
        self._sorted: list[tuple[str, Bucket]] | None = None

    def bucket(self, pattern: HostPattern | None) -> Bucket:
        """Return the pattern's bucket, making it if need be."""
        if pattern is None:
            return self.everywhere
        if not pattern.wild:
            bucket = self._exact.get(pattern.text)
            if bucket is None:
                bucket = self._exact[pattern.text] = Bucket(pattern)
            return bucket
        self._wild = True
        node = self._root
        for label in pattern.labels:
            if label == "*":
                node.any = node.any or _Label()
                node = node.any
            else:
                node = node.children.setdefault(label, _Label())
        if pattern.deep:
            node.deep = node.deep or Bucket(pattern)
            return node.deep
        node.here = node.here or Bucket(pattern)
        return node.here

    def find(self, target: Target) -> list[Bucket]:
        """Return the buckets whose patterns cover the target's host."""
        found = [self.everywhere]
        exact = self._exact.get(target.host)
        if exact is not None:
            found.append(exact)
        if not self._wild or target.is_address:
            return found
        nodes = [self._root]
        for label in reversed(target.host.split(".")):
            following = []
            for node in nodes:
                if node.deep is not None:
                    found.append(node.deep)
                child = node.children.get(label)
                if child is not None:
                    following.append(child)
                if node.any is not None:
                    following.append(node.any)
            nodes = following
            if not nodes:
                return found
        found.extend(node.here for node in nodes if node.here is not None)
        return found

    def near(self, host: str, limit: int) -> Iterator[Bucket]:
        """Yield some buckets whose host patterns share the most labels at the end with this host."""
        if self._sorted is None:
            buckets = [*self._exact.values(), *_buckets(self._root)]
            self._sorted = sorted(
                ((_reversed(bucket.pattern.text), bucket) for bucket in buckets if bucket.pattern is not None),
                key=lambda item: item[0],
            )
        at = bisect_left(self._sorted, _reversed(host), key=lambda item: item[0])
        for _, bucket in self._sorted[max(0, at - limit // 2) : at + limit // 2]:
            yield bucket


def _reversed(host: str) -> str:
    return ".".join(reversed(host.split(".")))


def _buckets(node: _Label) -> Iterator[Bucket]:
    yield from (bucket for bucket in (node.here, node.deep) if bucket is not None)
    for child in (*node.children.values(), *(() if node.any is None else (node.any,))):
        yield from _buckets(child)


def find_allows(buckets: list[Bucket], path: str, guest: Guest) -> dict[Rule, None]:
    """Return the rules whose host and path cover the canonical path, in the strict reading."""
    has_path = path.startswith("/")  # "*" of OPTIONS * falls under rules without paths only
    text = path[1:]
    segments = text.split("/")
    found: dict[Rule, None] = {}
    for bucket in buckets:
        for rules in bucket.find(text, segments) if has_path else (bucket.anywhere,):
            found.update(dict.fromkeys(rules.of(guest.labels)))
    return found


def find_denies(buckets: list[Bucket], path: str, guest: Guest) -> dict[Rule, None]:
    """Return the rules whose host and path cover the path in any reading of it."""
    found: dict[Rule, None] = {}
    for view in folded_views(path):
        text = "/".join(view)
        for bucket in buckets:
            for rules in bucket.find(text, view):
                found.update(dict.fromkeys(rules.of(guest.labels)))
    return found
