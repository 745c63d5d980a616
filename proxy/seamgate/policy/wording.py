"""Says in words what a pattern of a policy covers. Used by `seamgate policy check -v`. No I/O."""

from __future__ import annotations

from seamgate.policy.patterns import ANY, DEEP, HostPattern, PathPattern, literal_tail


def host_words(host: HostPattern) -> str:
    """Return what a host pattern covers, and the next thing that it does not."""
    if host.is_address:
        return "this address"
    if not host.wild:
        return "this name, and none below it"
    tail = literal_tail(host)
    if not tail:
        return "every name" if host.text == "**" else f"every name of {_count(host)}"
    under = host.labels[len(tail.split(".")) :]
    if any(label != "*" for label in under):
        return f"names of {_count(host)} that end in .{tail}, each * being one label"
    if host.deep:
        least = "" if not under else f" with at least {len(under) + 1} more labels"
        return f"every name below {tail}{least}, not {tail} itself"
    labels = "one label" if len(under) == 1 else f"exactly {len(under)} labels"
    return f"names with {labels} before {tail}: not {tail} itself, not those further below"


def _count(host: HostPattern) -> str:
    size = len(host.labels)
    labels = "one label" if size == 1 else f"{size} labels"
    return f"more than {labels}" if host.deep else labels


def path_words(path: PathPattern) -> str:
    """Return what a path pattern covers, and the next thing that it does not."""
    if path.everything:
        return "every path"
    if not path.wild:
        return "this path alone"
    deep, last = DEEP in path.segments, path.segments[-1]
    if last is DEEP and path.segments.count(DEEP) == 1 and not any(_is_glob(each) for each in path.segments[:-1]):
        before = "/" + "/".join(each.text for each in path.segments[:-1])
        return f"every path below {before}/, not {before} itself"
    if deep:
        return "paths of this form, each ** being one segment or more"
    told = "each * being one segment" if ANY in path.segments else "* being any part of its segment"
    return f"paths of exactly {len(path.segments)} segments, {told}"


def _is_glob(segment: object) -> bool:
    return segment is ANY or segment is DEEP or len(getattr(segment, "pieces", ())) > 1
