"""The words of supervisor and workers: what is sent is what is read, however the stream is cut; nothing odd passes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.audit.record import AuditGuest, AuditKind, AuditRecord, AuditRequest, Decision, Outcome
from seamgate.audit.sealed import Sealed
from seamgate.config import Config, parse_config
from seamgate.errors import Reason
from seamgate.flow import Isolation, Step
from seamgate.upstream.dns_message import Outcome as Found
from seamgate.upstream.resolver import Answer
from seamgate.workers.messages import (
    MOST_BYTES,
    Acknowledge,
    Broken,
    FrameReader,
    Go,
    Named,
    Prepare,
    Ready,
    Records,
    Resolve,
    encode,
)

EVERYTHING = """
entries:
  proxy: {listen: 127.0.0.1:0}
  base_url: {listen: 127.0.0.1:0, routes: {api: https://api.test}, hosts: [gateway.test]}
  socks5: {listen: 127.0.0.1:0, guest: a}
policies: [policy.yaml]
guests: {a: {token: {env: TOKEN}, labels: {team: x}, group: g}, b: {token: {file: token}}}
credentials:
  key: {source: {command: [get, it]}, inject: {basic: {username: u}}, hosts: [api.test], paths: [/v1/**]}
plugins: [builtin, {name: budget, options: {requests: 3, deep: {list: [1, 2.5, null, text]}}}]
limits: {request_body_bytes: 10, held_bytes: 1000}
audit: {path: audit.jsonl, rotate_after_s: 3.5, keep: 2}
dns: {addresses: {a.test: [192.0.2.1]}}
upstream_tls: {origins: [{hosts: [a.test], ca: ca.pem}]}
upstream_proxy:
  url: http://proxy.test:3128
  resolve: gateway
  login: {username: u, password: {file: password}}
  direct: ["*.near.test"]
permit_addresses: [loopback]
admin: {listen: "unix:admin.sock"}
workers: 3
"""

RECORD = AuditRecord(
    1.8e9,
    AuditKind.REQUEST,
    id="r-1",
    guest=AuditGuest("g", {"team": "x"}, Isolation.PROXY),
    request=AuditRequest("GET", "https", "a.test", 443, "/x", ("q",)),
    verdict=Decision.DENY,
    reason=Reason.RATE_LIMITED,
    outcome=Outcome.DENIED,
    steps=(Step("policy", "judge_request", 1.5, "deny"),),
)


def everything() -> Config:
    """Return a configuration that says something in each section."""
    config = parse_config(EVERYTHING, "seamgate.yaml", base=Path("/etc/x"))
    return msgspec.structs.replace(config, policy_texts={"/etc/x/policy.yaml": "seamgate: 1\n"})


def test_a_configuration_arrives_as_it_was() -> None:
    """A worker's configuration is the supervisor's, to the last value."""
    (told,) = FrameReader(from_worker=False).feed(encode(Prepare(everything(), 7)))
    assert told == Prepare(everything(), 7)


def test_each_section_is_sent() -> None:
    """The sample says something about all of it, so that no new section is forgotten on the way."""
    plain, sample = Config(), everything()
    silent = {name for name in Config.__struct_fields__ if getattr(plain, name) == getattr(sample, name)}
    assert silent == {"ca", "pool", "http2", "reload"}


def test_records_arrive_as_they_were() -> None:
    """What the supervisor writes is what the worker recorded."""
    message = Records(3, [RECORD], [Sealed("r-2", b"x")], [Sealed("r-3", b"y\xff")], 2)
    assert list(FrameReader(from_worker=True).feed(encode(message))) == [message]


def test_a_record_is_never_dropped_for_its_spelling() -> None:
    """A lone surrogate from a guest becomes a question mark, as in the journal."""
    odd = msgspec.structs.replace(RECORD, message="a\ud800b")
    (told,) = FrameReader(from_worker=True).feed(encode(Records(0, [odd], [], [])))
    assert told.denied == [msgspec.structs.replace(RECORD, message="a?b")]


MESSAGES: list[Any] = [Ready(), Resolve(1, "a.test"), Records(1, [RECORD], [], []), Ready("no"), Resolve(2, "b.test")]


@given(st.lists(st.integers(0, 900), max_size=12))
def test_messages_survive_any_cut(cuts: list[int]) -> None:
    """However the stream is cut, the same messages come out, in order, and nothing stays behind."""
    stream = b"".join(encode(message) for message in MESSAGES)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader(from_worker=True)
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert [message for piece in pieces for message in reader.feed(piece)] == MESSAGES


@pytest.mark.parametrize(
    "frame",
    [
        (MOST_BYTES + 1).to_bytes(4, "big"),
        b"\0\0\0\1\xc1",
        b"\0\0\0\0",
        encode(Go()),
        encode(Acknowledge(1)),
        encode(Named(1, Answer("a.test", Found.FAILED))),
    ],
)
def test_what_is_no_message_of_the_other_side_is_an_error(frame: bytes) -> None:
    """Neither nonsense nor a message of the wrong direction is taken for something."""
    with pytest.raises(Broken):
        list(FrameReader(from_worker=True).feed(frame))
