"""TLS towards upstreams: which roots and certificates a target gets, that it is verified, and what errors say."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from seamgate.errors import ConfigError, Reason, TlsFailed
from seamgate.flow import Target
from seamgate.upstream.tls import (
    ClientCertificate,
    OriginTls,
    TlsProfile,
    UpstreamTls,
    UpstreamTlsConfig,
    describe_tls_error,
    tls_failed,
)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A CA of an upstream that nobody knows by default."""
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    """Its certificate in a file."""
    authority.cert_pem.write_to_path(tmp_path / "corp.pem")
    return tmp_path / "corp.pem"


def server_context(authority: trustme.CA, *names: str, **more: Any) -> ssl.SSLContext:
    """Make what an upstream of these names has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, **more).configure_cert(context)
    return context


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Shake hands in memory; return the client's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        with suppress(ssl.SSLWantReadError):
            ours.do_handshake()
        try:
            theirs.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            ours.read(1)  # raises what the server's alert means to the client
    ours.write(b"x")
    assert theirs.read(1) == b"x"
    return ours


def https(host: str, port: int = 443, *, is_address: bool = False) -> Target:
    """Make a target."""
    return Target("https", host, port, is_address)


def upstream(*origins: OriginTls, base: Path = Path(), **settings: Any) -> UpstreamTls:
    """Load a configuration."""
    return UpstreamTls(UpstreamTlsConfig(origins=origins, **settings), base=base)


def test_default_profile_is_shared_and_verifies() -> None:
    """Targets without settings share a profile and a context; it verifies chain and name, TLS 1.2 at least."""
    tls = upstream()
    profile = tls.profile_for(https("a.example"))
    assert profile is tls.profile_for(https("b.example", 8443))
    context = tls.context(profile)
    assert context is tls.context(profile)
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.keylog_filename is None


def test_keys_are_never_logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SSLKEYLOGFILE in the gateway's environment has no effect on upstream sessions."""
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    tls = upstream()
    assert tls.context(tls.default_profile).keylog_filename is None


def test_origin_gets_its_extra_root(authority: trustme.CA, ca_file: Path) -> None:
    """A root named for an origin is trusted there, and nowhere else."""
    tls = upstream(OriginTls(hosts=("Corp.Example", "*.corp.example"), ca=ca_file.name), base=ca_file.parent)
    server = server_context(authority, "a.corp.example", "corp.example", "other.example")
    for host in ("corp.example", "a.corp.example"):
        handshake(tls.context(tls.profile_for(https(host))), server, host)
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        handshake(tls.context(tls.profile_for(https("other.example"))), server, "other.example")
    assert "upstream_tls.origins" in describe_tls_error(caught.value)


def test_wildcard_does_not_cover_the_apex_or_look_alikes(ca_file: Path) -> None:
    """A wildcard is one label or more below, never the domain itself, nor a name that only ends like it."""
    tls = upstream(OriginTls(hosts=("*.corp.example",), ca=str(ca_file)))
    special = tls.profile_for(https("a.b.corp.example"))
    assert special.ca == str(ca_file)
    for host in ("corp.example", "evilcorp.example", "corp.example.evil"):
        assert tls.profile_for(https(host)) is tls.default_profile


def test_ports_and_order_decide(ca_file: Path) -> None:
    """The first entry that fits host and port holds."""
    tls = upstream(
        OriginTls(hosts=("a.example",), ports=(8443,), ca=str(ca_file)),
        OriginTls(hosts=("a.example", "192.0.2.1", "[2001:DB8::1]"), minimum_version="1.3"),
    )
    assert tls.profile_for(https("a.example", 8443)).ca
    assert tls.profile_for(https("a.example")).minimum_version == "1.3"
    assert tls.profile_for(https("192.0.2.1", is_address=True)).minimum_version == "1.3"
    assert tls.profile_for(https("2001:db8::1", is_address=True)).minimum_version == "1.3"


def test_roots_only_replaces_the_trust_store(authority: trustme.CA, ca_file: Path) -> None:
    """With `roots: only` nothing but the named file is trusted."""
    tls = upstream(OriginTls(hosts=("a.example",), ca=str(ca_file), roots="only"))
    context = tls.context(tls.profile_for(https("a.example")))
    assert context.cert_store_stats()["x509_ca"] == 1
    handshake(context, server_context(authority, "a.example"), "a.example")


def test_addresses_are_verified_as_addresses(authority: trustme.CA, ca_file: Path) -> None:
    """A target that is an address needs a certificate for that address."""
    tls = upstream(OriginTls(hosts=("127.0.0.1", "127.0.0.2"), ca=str(ca_file)))
    server = server_context(authority, "127.0.0.1")
    context = tls.context(tls.profile_for(https("127.0.0.1", is_address=True)))
    handshake(context, server, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        handshake(context, server, "127.0.0.2")
    assert describe_tls_error(caught.value) == "its certificate is for other addresses"


def test_client_certificate_is_shown(authority: trustme.CA, ca_file: Path, tmp_path: Path) -> None:
    """An origin with mTLS gets the certificate named for it; it is part of the profile."""
    mine = authority.issue_cert("gateway.example")
    mine.cert_chain_pems[0].write_to_path(tmp_path / "me.pem")
    mine.private_key_pem.write_to_path(tmp_path / "me.key")
    own = ClientCertificate(certificate="me.pem", key="me.key")
    tls = upstream(OriginTls(hosts=("a.example",), ca="corp.pem", client_certificate=own), base=tmp_path)
    server = server_context(authority, "a.example")
    authority.configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED
    profile = tls.profile_for(https("a.example"))
    handshake(tls.context(profile), server, "a.example")
    assert profile.certificate.endswith("me.pem")
    bare = msgspec.structs.replace(profile, certificate="", key="")
    with pytest.raises(ssl.SSLError) as caught:
        handshake(tls.context(bare), server, "a.example")
    assert "client certificate" in describe_tls_error(caught.value)


def test_profile_changes_with_the_files(authority: trustme.CA, ca_file: Path) -> None:
    """Two generations with another CA in the same file never share a session: their profiles differ."""
    entry = OriginTls(hosts=("a.example",), ca=str(ca_file))
    before = upstream(entry).profile_for(https("a.example"))
    assert before == upstream(entry).profile_for(https("a.example"))
    trustme.CA().cert_pem.write_to_path(ca_file)
    assert before != upstream(entry).profile_for(https("a.example"))


def test_alpn_is_offered(authority: trustme.CA, ca_file: Path) -> None:
    """The protocols of the profile are offered in order."""
    config = UpstreamTlsConfig(origins=(OriginTls(hosts=("a.example",), ca=str(ca_file)),))
    tls = UpstreamTls(config, alpn=("h2", "http/1.1"))
    server = server_context(authority, "a.example")
    server.set_alpn_protocols(["http/1.1"])
    profile = tls.profile_for(https("a.example"))
    assert handshake(tls.context(profile), server, "a.example").selected_alpn_protocol() == "http/1.1"


def garbage(path: Path) -> None:
    path.write_text("no certificate\n")


def absent(path: Path) -> None:
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(("damage", "says"), [(garbage, "no certificate"), (absent, "can't be read")])
def test_unusable_files_stop_the_start(damage: Callable[[Path], None], says: str, ca_file: Path) -> None:
    """A CA file that can't be read or used is an error at load that names the file."""
    damage(ca_file)
    with pytest.raises(ConfigError, match=says) as caught:
        upstream(OriginTls(hosts=("a.example",), ca=str(ca_file)))
    assert str(ca_file) in caught.value.message


def test_unusable_client_certificates_stop_the_start(authority: trustme.CA, tmp_path: Path) -> None:
    """A key that belongs to another certificate, or has a passphrase, is an error at load, without a prompt."""
    authority.issue_cert("a").cert_chain_pems[0].write_to_path(tmp_path / "a.pem")
    authority.issue_cert("b").private_key_pem.write_to_path(tmp_path / "b.key")
    own = ClientCertificate(certificate="a.pem", key="b.key")
    with pytest.raises(ConfigError, match="does not belong"):
        upstream(OriginTls(hosts=("a.example",), client_certificate=own), base=tmp_path)
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    (tmp_path / "b.key").write_bytes(locked)
    with pytest.raises(ConfigError, match="passphrase"):
        upstream(OriginTls(hosts=("a.example",), client_certificate=own), base=tmp_path)


def test_machine_without_roots_starts_and_refuses(
    authority: trustme.CA, ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any root, origins with their own still work; all others are refused with what to do."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, str(ca_file.parent / "none"))
    tls = upstream(OriginTls(hosts=("a.example",), ca=str(ca_file)))
    handshake(tls.context(tls.profile_for(https("a.example"))), server_context(authority, "a.example"), "a.example")
    with pytest.raises(TlsFailed, match="ca-certificates"):
        tls.context(tls.profile_for(https("b.example")))


def test_documented_settings_are_understood(tmp_path: Path) -> None:
    """The example of docs/ca.md is a valid section."""
    text = (Path(__file__).parents[3] / "docs" / "ca.md").read_text()
    document = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert msgspec.convert(document["upstream_tls"], UpstreamTlsConfig).origins[0].ports == (8443,)


@pytest.mark.parametrize(
    "entry",
    [
        OriginTls(hosts=()),
        OriginTls(hosts=("a/b",)),
        OriginTls(hosts=("*.",)),
        OriginTls(hosts=("a.example",), roots="only"),
    ],
)
def test_odd_origins_are_refused(entry: OriginTls) -> None:
    """Hosts are canonical names, and `roots: only` needs a file."""
    with pytest.raises(ConfigError, match="upstream_tls"):
        upstream(entry)


def test_nothing_turns_verification_off() -> None:
    """There is no option to skip verification, and an attempt to set one is an unknown key."""
    for key in ("verify", "insecure", "check_hostname", "skip_verify"):
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.convert({key: False}, UpstreamTlsConfig)
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.convert({"hosts": ["a.example"], key: False}, OriginTls)


def test_expired_and_misnamed_certificates_are_named(authority: trustme.CA, ca_file: Path) -> None:
    """The error says whether a certificate expired, is for other names, or comes from an unknown issuer."""
    tls = upstream(OriginTls(hosts=("*.example",), ca=str(ca_file)))
    context = tls.context(tls.profile_for(https("a.example")))
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    cases = [
        (server_context(authority, "a.example", not_after=past), "its certificate has expired"),
        (server_context(authority, "b.example"), "its certificate is for other names"),
        (server_context(trustme.CA(), "a.example"), "is unknown"),
    ]
    for server, says in cases:
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            handshake(context, server, "a.example")
        failure = tls_failed(caught.value, "a.example")
        assert says in failure.message
        assert failure.reason is Reason.UPSTREAM_TLS_FAILED


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ssl.SSLEOFError(8, "EOF"), "closed the connection"),
        (ConnectionResetError(104, "reset"), "closed the connection"),
        (TimeoutError(), "in time"),
        (OSError(5, "secret detail"), "OSError"),
    ],
)
def test_other_errors_are_described(error: Exception, says: str) -> None:
    """Every error that a handshake ends with has a sentence."""
    assert says in describe_tls_error(error)


def test_plain_http_on_a_tls_port_is_told() -> None:
    """An upstream that answers in plain text is told from one with a bad certificate."""
    tls = UpstreamTls()
    to_client = ssl.MemoryBIO()
    ours = tls.context(tls.default_profile).wrap_bio(to_client, ssl.MemoryBIO(), server_hostname="a.example")
    with pytest.raises(ssl.SSLWantReadError):
        ours.do_handshake()
    to_client.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ssl.SSLError) as caught:
        ours.do_handshake()
    assert "does not speak TLS" in describe_tls_error(caught.value)


def test_profiles_are_values() -> None:
    """Equal profiles are equal keys; one that differs in anything is another key."""
    assert hash(TlsProfile(alpn=("h2",))) == hash(TlsProfile(alpn=("h2",)))
    assert len({TlsProfile(), TlsProfile(alpn=("h2",)), TlsProfile(ca="x"), TlsProfile(material="y")}) == 4
