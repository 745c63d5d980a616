"""What policy says, written as plainly as possible: every rule looked at one by one, no index, no cache.

The properties hold the evaluator to it. It shares the loaded model and the conditions with the evaluator, and nothing
of how rules are found; paths are matched by a recursive definition of the patterns' text.
"""

from __future__ import annotations

import re
from unicodedata import normalize
from urllib.parse import unquote

from seamgate.errors import Reason
from seamgate.flow import Guest, Request, Target
from seamgate.policy.conditions import Outcome, View
from seamgate.policy.model import Layer, Match, Policy, Rule
from seamgate.verdict import Effect


def glob(pattern: str, text: str) -> bool:
    """`*` is any run of characters."""
    return re.fullmatch("".join(".*" if char == "*" else re.escape(char) for char in pattern), text, re.S) is not None


def path_matches(pattern: list[str], path: list[str]) -> bool:
    """Segment by segment, by recursion."""
    if not pattern or not path:
        return not pattern and not path
    head, *rest = pattern
    if head == "**":
        return any(path_matches(rest, path[size:]) for size in range(1, len(path) + 1))
    covers = path[0] != "" if head == "*" else glob(head, path[0])
    return covers and path_matches(rest, path[1:])


def allow_path(pattern: str, path: str) -> bool:
    """Byte for byte."""
    return path.startswith("/") and path_matches(pattern[1:].split("/"), path[1:].split("/"))


# Default_Ignorable_Code_Point (Unicode 16): what NFKC_Casefold leaves out.
UNSEEN = (
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip


def seen(text: str) -> str:
    """Without characters that can't be seen."""
    return "".join([char for char in text if not any(first <= ord(char) <= last for first, last in UNSEEN)])


def fold(segment: str) -> str:
    """Decoded, without case, compatible characters and those that can't be seen."""
    return normalize("NFKC", seen(unquote(segment))).upper().casefold().replace("i\u0307", "i")


def deny_path(pattern: str, path: str) -> bool:
    """In any reading: decoded, without case, with or without a trailing slash, %2F as itself or as a separator."""
    patterns = {pattern, pattern.replace("%2F", "/")}
    readings = {path, path.replace("%2F", "/")}
    readings |= {reading[:-1] for reading in readings if reading.endswith("/") and reading != "/"}
    for each in patterns:
        each = each[:-1] if each.endswith("/") and each != "/" else each
        wanted = [fold(segment) for segment in each[1:].split("/")]
        for reading in readings:
            folded = [fold(segment) for segment in reading.removeprefix("/").split("/")]
            if path_matches(wanted, folded):
                return True
        if any(path_matches(wanted, reading) for reading in odd_readings(path)):
            return True
    return False


def odd_readings(path: str) -> list[list[str]]:
    """What an origin may make of a path once all of it is decoded, as sent and resolved, whole and cut."""
    whole = fold(path).replace("\\", "/")
    found: list[list[str]] = []
    for text in (whole, re.split("[?#]", whole)[0]):
        segments = text.removeprefix("/").split("/")
        kept: list[str] = []
        for segment in (each.split(";")[0].strip(" ") for each in segments):
            if segment == "..":
                kept = kept[:-1]
            elif plain := unstreamed(segment.rstrip(" .")).rstrip(" ."):
                kept.append(plain)
        is_open = segments[-1].split(";")[0].strip(" .") == ""
        found += [segments, segments[:-1] if segments[-1] == "" else segments, kept, [*kept, ""] if is_open else kept]
    return [each or [""] for each in found]


def unstreamed(segment: str) -> str:
    """Without the type of an NTFS stream."""
    return re.sub(r"(::|:\$i30:)\$[a-z_]*$", "", segment)


ODD = re.compile(r"%|\.(/|$)|:\$")


def covers_odd(match: Match, path: str) -> bool:
    """Whether an exception's paths cover each of the odd readings with a slash at the end where there is one."""
    patterns = [each for pattern in match.paths or () for each in (pattern.text, pattern.text.replace("%2F", "/"))]
    patterns = [each[:-1] if each.endswith("/") and each != "/" else each for each in patterns]
    return all(
        any(path_matches([fold(segment) for segment in each[1:].split("/")], reading) for each in patterns)
        for index, reading in enumerate(odd_readings(path))
        if index % 4 in (0, 3)
    )


def covers_each(match: Match, path: str) -> bool:
    """Whether an allow's paths cover each of the odd readings, %2F being a character, slashes at the end or not."""
    if not ODD.search(path):
        return True
    patterns = [each for pattern in match.paths or () for each in (pattern.text, pattern.text.replace("%2F", "/"))]
    patterns = [each[:-1] if each.endswith("/") and each != "/" else each for each in patterns]
    wanted = [[fold(segment) for segment in each[1:].split("/")] for each in patterns]
    # A private character stands for the encoded slash.
    readings = [[each.replace("\ue000", "/") for each in read] for read in odd_readings(path.replace("%2F", "\ue000"))]
    climbs = "%2F" in path and any(each.strip(" ") == ".." for each in fold(path).split("/"))
    return not climbs and all(
        any(path_matches(each, reading) for each in wanted for reading in pair)
        for pair in zip(readings[::2], readings[1::2], strict=True)
    )


def host_matches(pattern: str, target: Target) -> bool:
    """Label by label, from the right."""
    if target.is_address or "*" not in pattern:
        return pattern == target.host
    wanted, labels = pattern.split("."), target.host.split(".")
    if wanted[0] == "**":
        extra = len(labels) - (len(wanted) - 1)
        wanted = ["*"] * extra + wanted[1:] if extra >= 1 else ["-none-"]
    return len(wanted) == len(labels) and all(w in ("*", label) for w, label in zip(wanted, labels, strict=True))


def covers(match: Match, guest: Guest, target: Target) -> bool:
    """Host, port and guest."""
    hosts = match.hosts is None or any(host_matches(each.text, target) for each in match.hosts)
    guests = all(
        name in guest.labels and (values is None or guest.labels[name] in values) for name, values in match.guests
    )
    return hosts and guests and match.covers_port(target.scheme, target.port)


def outcome(match: Match, view: View) -> Outcome:
    """And."""
    outcomes = {condition.judge(view) for condition in match.conditions}
    return Outcome.NO if Outcome.NO in outcomes else max(outcomes, default=Outcome.YES)


def judge(policies: list[Policy], request: Request, now: float) -> tuple[Effect, Reason]:
    """Return effect and reason, without audit rules (the properties use none here), limits and selection."""
    view = View(request)
    rules = [rule for policy in policies for rule in policy.rules if rule.expires_at > now]
    rules = [rule for rule in rules if covers(rule.match, request.guest, request.target)]
    rules = [rule for rule in rules if rule.match.methods is None or request.method in rule.match.methods]
    bans = {ban(rule, request, view, now) for rule in rules if not rule.allows}
    if Outcome.YES in bans:
        return Effect.DENY, Reason.RULE_DENIED
    if Outcome.UNKNOWN in bans:
        return Effect.DENY, Reason.UNEVALUABLE
    pending = Outcome.PENDING in bans
    layers = [layer for layer in Layer if any(policy.layer is layer for policy in policies)]
    for layer in layers:
        allows = {permit(rule, request, view) for rule in rules if rule.allows and rule.layer is layer}
        if Outcome.YES in allows:
            continue
        if Outcome.PENDING in allows:
            pending = True
        else:
            return Effect.DENY, Reason.UNEVALUABLE if Outcome.UNKNOWN in allows else Reason.NO_RULE_MATCHED
    if not layers:
        return Effect.DENY, Reason.NO_RULE_MATCHED
    return (Effect.DEFER if pending else Effect.ALLOW), Reason.ALLOWED


def permit(rule: Rule, request: Request, view: View) -> Outcome:
    """What an allow rule says of a request whose host, port, guest and method it covers."""
    paths = rule.match.paths
    if paths is not None and not any(allow_path(each.text, request.path) for each in paths):
        return Outcome.NO
    if "%2F" in request.path and not rule.encoded_slash:
        return Outcome.NO
    if (
        paths is not None
        and all(each.text != request.path for each in paths)
        and not covers_each(rule.match, request.path)
    ):
        return Outcome.NO
    return outcome(rule.match, view)


def ban(rule: Rule, request: Request, view: View, now: float) -> Outcome:
    """What a deny rule says of a request whose host, port, guest and method it covers."""
    paths = rule.match.paths
    if paths is not None and not any(deny_path(each.text, request.path) for each in paths):
        return Outcome.NO
    result = outcome(rule.match, view)
    if result is Outcome.NO:
        return result
    readings = {request.path, request.path.replace("%2F", "/")}
    for exemption in rule.exemptions:
        match = exemption.match
        if exemption.expires_at <= now or not covers(match, request.guest, request.target):
            continue
        if match.methods is not None and request.method not in match.methods:
            continue
        if match.paths is not None and not all(
            any(allow_path(each.text, reading) for each in match.paths) for reading in readings
        ):
            continue
        if match.paths is not None and ODD.search(request.path) and not covers_odd(match, request.path):
            continue
        lifts = outcome(match, view)
        if lifts is Outcome.YES:
            return Outcome.NO
        if lifts is Outcome.PENDING:
            result = Outcome.PENDING
    return result
