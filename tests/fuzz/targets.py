"""What is fuzzed, and what must hold for any input: only our own errors, the same in any split, and what is read is
what is written. Each target takes bytes and raises if its rule is broken; `SEEDS` is where the search begins.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import convert

from fuzz.seeds import QUERY, SEEDS
from fuzz.vmm_targets import hibernated, templates
from seamgate.address import canonical_address, canonical_host, parse_authority
from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.reading import verify_journal
from seamgate.audit.record import AuditGateway, AuditKind, AuditRecord
from seamgate.ca.leaf import CertificateAuthority, LeafForbidden, load_authority
from seamgate.ca.store import CaConfig, init_ca
from seamgate.config import parse_config
from seamgate.credentials.config import CredentialConfig
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.credentials.redaction import RedactionSet, Redactor
from seamgate.credentials.scanner import RequestScanner
from seamgate.entry.dns_query import build_answer, read_query
from seamgate.errors import AuditError, ConfigError, GuestProtocolError, ProtocolError, TargetError
from seamgate.flow import BodyState, Guest, Request
from seamgate.paths import canonical_path, check_query
from seamgate.policy.loader import parse_policy
from seamgate.policy.testing import parse_tests
from seamgate.protocol.client_hello import parse_client_hello
from seamgate.protocol.coding import Caps, UndecodableError, open_decoder
from seamgate.protocol.heads import RequestHead, ResponseHead, Trailers
from seamgate.protocol.http1 import write_request_head
from seamgate.protocol.http1_reader import NEED_DATA, MessageReader, RequestReader, ResponseReader
from seamgate.protocol.http2 import Http2Connection
from seamgate.protocol.http2_events import StreamData
from seamgate.protocol.socks5 import LOGIN, NO_LOGIN, Demand, Methods, SocksReader
from seamgate.protocol.websocket import Deflate, FrameError, FrameReader
from seamgate.upstream.dns_message import MalformedAnswer, answers_query, read_answer
from support.http2 import OPENING, still

Target = Callable[[bytes], None]


def pieces(data: bytes) -> list[bytes]:
    """Cut the input, by its own length, into a few pieces."""
    size = 1 + len(data) % 13
    return [data[place : place + size] for place in range(0, len(data), size)]


# -- HTTP/1 ------------------------------------------------------------------------------------------------------------


def _messages(reader: MessageReader, given: list[bytes]) -> tuple[list[Any], str]:
    """Read all there is: heads, whole bodies and trailers in order, and how it ended."""
    told: list[Any] = []
    body = b""
    responds = isinstance(reader, ResponseReader)
    if isinstance(reader, ResponseReader):
        reader.expect("GET")
    try:
        for piece in given:
            reader.feed(piece)
            while (event := reader.next_event()) is not NEED_DATA:
                if isinstance(event, bytes):
                    body += event
                    continue
                told += [body, event]
                body = b""
                if isinstance(event, Trailers):
                    if isinstance(reader, ResponseReader):
                        reader.expect("GET")
                    else:
                        reader.start_next()
        return [*told, body], f"end {reader.eof()}"
    except ProtocolError as error:
        assert isinstance(error, GuestProtocolError) is not responds, "the other side is blamed"
        # What of a body came before the fault depends on the split, and the exchange is over anyway.
        return told, f"{type(error).__name__} {error.reason}"


def http1_requests(data: bytes) -> None:
    """Any split reads the same, and a head that is written anew reads as it was."""
    whole = _messages(RequestReader(), [data])
    assert _messages(RequestReader(), pieces(data)) == whole
    for head in whole[0]:
        if isinstance(head, RequestHead) and head.method != "CONNECT":
            _reads_back(head)


def _reads_back(head: RequestHead) -> None:
    try:
        authority = parse_authority(head.host or "", "http").authority
    except TargetError:
        return  # refused by whoever reads it, before anything is written
    reader = RequestReader()
    reader.feed(write_request_head(head.method, head.target, authority, head.headers, head.body))
    again = reader.next_event()
    assert isinstance(again, RequestHead)
    assert (again.method, again.target, again.headers, again.body) == (
        head.method,
        head.target,
        head.headers,
        head.body,
    )


def http1_responses(data: bytes) -> None:
    """Any split reads the same."""
    whole = _messages(ResponseReader(), [data])
    assert _messages(ResponseReader(), pieces(data)) == whole
    assert all(100 <= head.status <= 599 for head in whole[0] if isinstance(head, ResponseHead))


# -- HTTP/2, WebSocket -------------------------------------------------------------------------------------------------


def _streams(connection: Http2Connection, given: list[bytes]) -> tuple[list[str], dict[int, bytes], bytes]:
    told: list[str] = []
    bodies: dict[int, bytes] = {}
    for piece in given:
        for event in connection.feed(piece):
            if isinstance(event, StreamData):
                bodies[event.stream] = bodies.get(event.stream, b"") + event.data
            else:
                told.append(str(event))
    return told, bodies, connection.take_output()


def http2_guests(data: bytes) -> None:
    """Frames and header blocks of a guest: events in any split, and never an exception."""
    _http2(OPENING + data, server=True)


def http2_upstreams(data: bytes) -> None:
    """As for guests, of an upstream, with three streams open."""
    _http2(data, server=False)


def _http2(data: bytes, *, server: bool) -> None:
    ends = []
    for _ in range(2):
        end = Http2Connection(server=server, clock=still)
        end.start()
        if not server:
            for _ in range(3):
                end.open_stream("GET")
        ends.append(end)
    assert _streams(ends[0], [data]) == _streams(ends[1], pieces(data))


def websocket(data: bytes) -> None:
    """Frames of either side, deflated or not: the same events or the same refusal in any split, and no bomb."""
    for masked in (True, False):
        for deflate in (None, Deflate()):
            whole, cut = (FrameReader(masked=masked, deflate=deflate, limit_bytes=1 << 16) for _ in range(2))
            assert _frames(whole, [data]) == _frames(cut, pieces(data))


def _frames(reader: FrameReader, given: list[bytes]) -> list[str]:
    told = []
    try:
        for piece in given:
            reader.feed(piece)
            while (event := reader.next_event()) is not None:
                told.append(repr(event))
    except FrameError as error:
        told.append(f"refused {error.code}")
    return told


# -- SOCKS, TLS, DNS ---------------------------------------------------------------------------------------------------


def socks5(data: bytes) -> None:
    """A greeting, a login and a demand, in any split; a target that comes out is canonical."""
    assert _socks([data]) == _socks(pieces(data))


def _socks(given: list[bytes]) -> list[str]:
    reader = SocksReader()
    told = []
    try:
        for piece in given:
            reader.feed(piece)
            while (event := reader.next_event()) is not None:
                told.append(type(event).__name__)
                if isinstance(event, Methods):
                    reader.expect(LOGIN if LOGIN in event.offered else NO_LOGIN)
                if isinstance(event, Demand):
                    assert event.port and canonical_host(event.host) == (event.host, event.is_address)
                    return [*told, event.host, str(event.port)]
    except GuestProtocolError as error:
        told.append(f"refused {error.reason}")
    return told


def client_hello(data: bytes) -> None:
    """A hello, a wish for more, or a refusal; what is one hello is not another with bytes behind it."""
    try:
        hello = parse_client_hello(data)
    except GuestProtocolError:
        return
    if hello is not None:
        assert parse_client_hello(data + b"\x17\x03\x03\x00\x01x") == hello
        assert hello.server_name is None or "\0" not in hello.server_name


def dns_answers(data: bytes) -> None:
    """What a name server sends: an answer or MalformedAnswer, with no more addresses than asked for."""
    message = QUERY[:2] + data
    answers_query(message, QUERY)
    for kind in (1, 28):
        try:
            answer = read_answer(message, kind, max_addresses=8)
        except MalformedAnswer:
            continue
        assert len(answer.addresses) <= 8
        assert all(canonical_host(address) == (address, True) for address in answer.addresses)


def dns_queries(data: bytes) -> None:
    """What a guest asks: a query with a name that is ASCII, or nothing; the answer to it answers it."""
    query = read_query(data)
    if query is not None:
        answer = build_answer(query, ede=15, text="denied")
        assert answer[:2] == data[:2] and answer[2] & 0x80


# -- names, paths, certificates ----------------------------------------------------------------------------------------


def targets(data: bytes) -> None:
    """Hosts, authorities, paths and queries: refused, or canonical, which is a fixed point."""
    text = data.decode("latin-1") if data[:1] < b"\x80" else data.decode("utf-8", "replace")
    for canonical in (canonical_path, check_query):
        try:
            found = canonical(text)
        except TargetError:
            continue
        assert canonical(found) == found and found.isascii() and found.isprintable()
    try:
        host, is_address = canonical_host(text)
    except TargetError:
        return
    assert canonical_host(host) == (host, is_address)
    assert parse_authority(f"[{host}]:8" if ":" in host else f"{host}:8", "https").host == host


@lru_cache(maxsize=1)
def _authority() -> CertificateAuthority:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    init_ca(folder)
    return load_authority(CaConfig(dir=str(folder)))


def leaves(data: bytes) -> None:
    """A leaf for any name: refused, or for this very name and no other."""
    authority = _authority()
    name = data.decode("utf-8", "surrogateescape")
    try:
        certificate = authority.mint(name, authority.certificate.not_valid_after_utc.timestamp())
    except (TargetError, LeafForbidden):
        return
    from cryptography import x509

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each.value) for each in names] == [name]
    assert canonical_address(name) == name or canonical_host(name) == (name, False)


# -- files -------------------------------------------------------------------------------------------------------------


def policies(data: bytes) -> None:
    """A policy, a policy test or a configuration: read, or a ConfigError that names the file."""
    text = data.decode("utf-8", "replace")
    for load in (parse_policy, parse_tests, lambda text, name: parse_config(text, name, base=Path("/"))):
        try:
            load(text, "f.yaml")
        except ConfigError as error:
            assert str(error).startswith("f.yaml"), error


@lru_cache(maxsize=1)
def _genuine() -> tuple[Path, bytes, bytes]:
    """A folder, and the journal and head of a gateway that wrote a few records in it."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    path = folder / "audit.jsonl"
    journal = Journal(AuditConfig(path=str(path), fsync="never"), clock=lambda: 1.0)
    for number in range(6):
        journal.append(AuditRecord(1.0, AuditKind.GATEWAY, gateway=AuditGateway("start", {"version": str(number)})))
    journal.close()
    return path, path.read_bytes(), path.with_name("audit.jsonl.head").read_bytes()


def journals(data: bytes) -> None:
    """Edits of a journal, (place, byte) each, or another one: a report, never an exception, and an edit is found."""
    path, lines, head = _genuine()
    if data[:1] == b"!":
        changed, changed_head = data[1:], head
    else:
        edited, edited_head = bytearray(lines), bytearray(head)
        for place, value in struct.iter_unpack("<HB", data[: len(data) // 3 * 3]):
            if place < 0x8000:
                edited[place % len(edited)] = value
            else:
                edited_head[place % 512] = value
        changed, changed_head = bytes(edited), bytes(edited_head)
    path.write_bytes(changed)
    path.with_name("audit.jsonl.head").write_bytes(changed_head)
    try:
        report = verify_journal(path)
    except AuditError:
        return
    assert report.fault is not None or changed == lines, "an edit was not found"


# -- bodies ------------------------------------------------------------------------------------------------------------

_CODINGS = (b"gzip", b"deflate", b"br", b"zstd", b"gzip, br")


def codings(data: bytes) -> None:
    """A coded body, or one of coded messages: decoded the same in any split, or refused, and never beyond its cap."""
    chosen = data[0] if data else 0
    coding, messages = _CODINGS[chosen % len(_CODINGS)], chosen & 0x80 != 0
    found = [_decoded(coding, given, messages=messages) for given in ([data[1:]], pieces(data[1:]))]
    assert found[0] == found[1]


def _decoded(coding: bytes, given: list[bytes], *, messages: bool) -> bytes | None:
    caps = Caps(max_size_bytes=1 << 16)
    decoder = open_decoder(None, message_encoding=coding, caps=caps) if messages else open_decoder(coding, caps=caps)
    assert decoder is not None
    out = b""
    try:
        for piece in given:
            out += decoder.feed(piece)
        out += decoder.finish()
    except UndecodableError:
        return None
    assert len(out) <= 1 << 16
    return out


_SECRETS = RedactionSet([("key", b"sk-live/9f+7c"), ("other", b"ghp_ABCDEFGH")])


def redaction(data: bytes) -> None:
    """No value comes out in any split, paused or not, and what comes out does not depend on the split."""
    redactor, whole, paused = (Redactor(_SECRETS) for _ in range(3))
    out = b"".join(redactor.feed(piece) for piece in pieces(data)) + redactor.finish()
    assert out == whole.feed(data) + whole.finish()
    told = b"".join(paused.feed(piece) + paused.flush() for piece in pieces(data)) + paused.finish()
    for each in (out, told):
        assert next(_SECRETS.hits(each), None) is None, "a value came out"


_CONFIGS = {
    name: convert({"source": {"env": "X"}, "hosts": ["a.example"], "placeholder": text}, CredentialConfig)
    for name, text in (("key", "sk-own-placeholder"), ("other", "ghp_0000000000"))
}
_SCANNER = RequestScanner(PlaceholderIndex(_CONFIGS), [("key", b"sk-live/9f+7c"), ("other", b"ghp_ABCDEFGH")])


def requests_searched(data: bytes) -> None:
    """The quick test never misses what the slow one finds, on any surface."""
    text = data.decode("latin-1").encode("ascii", "replace").decode()
    surfaces: list[dict[str, Any]] = [
        {"headers": ((b"x", data),)}, {"headers": ((b"authorization", b"Basic " + data),)}, {"path": "/" + text},
        {"query": text}, {"body": data, "body_state": BodyState.COMPLETE},
    ]  # fmt: skip
    for surface in surfaces:
        request = Request("1", Guest("g"), _TARGET, "POST", **{"path": "/", **surface})
        if next(_SCANNER.findings(request), None) is not None:
            assert _SCANNER.suspicious(request), "the quick test missed it"


_TARGET = parse_authority("a.example", "https")


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        http1_requests, http1_responses, http2_guests, http2_upstreams, websocket, socks5, client_hello, dns_answers,
        dns_queries, targets, leaves, policies, journals, codings, redaction, requests_searched, templates, hibernated,
    )
}  # fmt: skip

assert SEEDS.keys() == TARGETS.keys()


def everything(data: bytes) -> None:
    """One target by the first byte: for a short run over all of them."""
    if data:
        names = list(TARGETS)
        TARGETS[names[data[0] % len(names)]](data[1:])
