"""`seamgate.credentials.binding`: which requests may carry a credential."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from seamgate.address import parse_authority
from seamgate.credentials.binding import Binding
from seamgate.credentials.config import CredentialConfig
from seamgate.errors import ConfigError
from seamgate.flow import Guest, Request
from support.overrides import METHOD_QUERIES


def binding(**change: Any) -> Binding:
    raw = {"source": {"env": "KEY"}, "hosts": ["api.example.com"], **change}
    return Binding("key", msgspec.convert(raw, CredentialConfig))


def request(method: str = "GET", host: str = "api.example.com", path: str = "/v1/x") -> Request:
    return Request("1", Guest("g"), parse_authority(host, "https"), method, path)


def test_long_paths_are_not_remembered() -> None:
    """A guest chooses paths: what is kept of them is bounded in number and in length."""
    bound = binding(paths=["/v1/**"])
    for size in (*range(1000), 5000):
        assert bound.covers(request(path=f"/v1/{'x' * (size + 1)}"))
    assert len(bound._by_path) <= 512
    assert sum(map(len, bound._by_path)) <= 512 * 512


@pytest.mark.parametrize("host", ["example.com", "api.example.com.evil.com", "xapi.example.com", "127.0.0.1"])
def test_other_hosts_are_not_covered(host: str) -> None:
    """A host is matched whole: no suffix, no prefix, no apex."""
    assert not binding().covers(request(host=host))
    assert not binding(hosts=["*.api.example.com"]).covers(request())
    assert not binding(hosts=["**"]).covers_target(parse_authority("127.0.0.1", "https"))


def test_hosts_as_in_policy() -> None:
    """Case and trailing dot are canonical, `*` is one label, `**` one or more."""
    assert binding(hosts=["API.example.com."]).covers(request())
    assert binding(hosts=["*.example.com"]).covers(request())
    assert binding(hosts=["**.com"]).covers(request())
    assert binding(hosts=["127.0.0.1"]).covers(request(host="127.0.0.1:8443"))


def test_methods_and_paths() -> None:
    """Absent means every one; GET implies HEAD; a path is matched whole."""
    bound = binding(methods=["GET"], paths=["/v1/x", "/v2/**"])
    assert bound.covers(request())
    assert bound.covers(request("HEAD"))
    assert bound.covers(request(path="/v2/a/b"))
    assert not bound.covers(request("POST"))
    assert not bound.covers(request(path="/v1/x/y"))
    assert not bound.covers(request(path="/v1/X"))


@pytest.mark.parametrize(
    ("method", "path", "query", "headers"),
    [
        ("POST", "/v1/x", None, ((b"x-http-method-override", b"DELETE"),)),
        ("POST", "/v1/x", None, ((b"X_HTTP_Method".lower(), b"put"),)),
        *[("GET", "/v1/x", query, ()) for query in METHOD_QUERIES],
        ("GET", "/v1/x", None, ((b"x-original-url", b"/admin/keys"),)),
        ("GET", "/v1/x", None, ((b"x-rewrite-url", b"//admin"),)),
        ("GET", "/v1/a%EF%BC%8F..%EF%BC%8F..%EF%BC%8Fadmin", None, ()),
        ("GET", "/v1/a%2F..%2F..%2Fadmin", None, ()),
        ("GET", "/models/x:delete%3F:run", None, ()),
    ],
)
def test_what_an_origin_may_read_instead_has_to_fit(
    method: str, path: str, query: str | None, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    """As in an allow, methods and paths are also those that a header, a parameter or a spelling asks for."""
    bound = binding(methods=["GET", "POST"], paths=["/v1/**", "/models/*:run"])
    asked = msgspec.structs.replace(request(method, path=path), query=query, headers=headers)
    assert not bound.covers(asked)
    plain = request(method, path="/v1/x")
    assert bound.covers(plain)
    assert binding().covers(asked)


def test_what_an_origin_may_read_instead_may_fit() -> None:
    """An override within the binding is no reason, nor is a slash that is a character of a segment."""
    bound = binding(methods=["GET", "POST", "DELETE"], paths=["/v1/**"])
    headers = ((b"x-http-method-override", b"DELETE"), (b"x-original-url", b"/v1/other"))
    assert bound.covers(msgspec.structs.replace(request("POST"), headers=headers))
    assert bound.covers(request(path="/v1/projects/group%2Fname"))


def test_the_caches_end() -> None:
    """However many hosts and paths guests make up, the answers stay right and the memory bounded."""
    bound = binding(hosts=["*.example.com"], paths=["/a/*"])
    for number in range(2000):
        assert bound.covers(request(host=f"h{number}.example.com", path=f"/a/{number}"))
        assert not bound.covers(request(host=f"h{number}.example.org", path=f"/b/{number}"))
    assert len(bound._by_host) <= 512
    assert len(bound._by_path) <= 512


@pytest.mark.parametrize(
    "change", [{"hosts": ["https://x"]}, {"hosts": ["a*.example.com"]}, {"paths": ["v1"]}, {"methods": ["get"]}]
)
def test_bad_patterns_are_refused_at_start(change: dict[str, Any]) -> None:
    """The message names the credential."""
    with pytest.raises(ConfigError, match="credential 'key'"):
        binding(**change)
