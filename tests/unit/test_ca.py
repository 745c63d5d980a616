"""The gateway's CA: made privately, loaded with suspicion, leaves for strict clients, and what clients are told."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import shlex
import ssl
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from seamgate.ca.environment import CA_VARIABLES, client_environment, render_environment
from seamgate.ca.leaf import CertificateAuthority, LeafCache, LeafForbidden, load_authority
from seamgate.ca.store import CaConfig, CaFiles, files_of, init_ca, load_ca, renew_ca, write_certificate
from seamgate.cli.ca import ca as ca_command
from seamgate.errors import ConfigError, Reason, TargetError
from support.cli import seamgate

NOW = datetime.datetime(2026, 12, 1, 9, tzinfo=datetime.UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a new CA."""
    init_ca(tmp_path / "ca")
    return tmp_path / "ca"


def client_of(folder: Path) -> ssl.SSLContext:
    """Make the context of a client that trusts this CA only, as strictly as OpenSSL can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(CaFiles(folder).certificate)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def handshake(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str, session: ssl.SSLSession | None = None
) -> ssl.SSLObject:
    """Shake hands in memory; return the client's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host, session=session)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    theirs.write(b"x")
    assert ours.read(1) == b"x"
    return ours


# -- making ----------------------------------------------------------------------------------------------------------


def test_new_ca_is_private_and_narrow(folder: Path) -> None:
    """The key is readable by its owner only; the CA signs leaves only, for ten years, backdated a day."""
    files = CaFiles(folder)
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.digital_signature) == (True, False)
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc == datetime.timedelta(days=3651)
    assert sorted(path.name for path in folder.iterdir()) == ["ca.bundle.pem", "ca.key", "ca.p12", "ca.pem"]


def test_key_is_private_whatever_the_umask(tmp_path: Path) -> None:
    """A careless umask does not open the key."""
    before = os.umask(0)
    try:
        files = init_ca(tmp_path / "ca").files
    finally:
        os.umask(before)
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600


def test_ca_is_not_replaced_by_accident(folder: Path) -> None:
    """A second init is refused and changes nothing; --force replaces the CA."""
    before = CaFiles(folder).certificate.read_bytes()
    with pytest.raises(ConfigError, match="--force"):
        init_ca(folder)
    assert CaFiles(folder).certificate.read_bytes() == before
    assert init_ca(folder, force=True).certificate != x509.load_pem_x509_certificate(before)
    load_ca(folder)


def test_two_at_once_make_one_ca(tmp_path: Path) -> None:
    """Of several that make a CA in the same folder at once, one succeeds, and its key and certificate are a pair."""
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(init_ca, tmp_path / "ca") for _ in range(4)]
    failures = [each.exception() for each in made if each.exception() is not None]
    assert [type(failure) for failure in failures] == [ConfigError] * 3
    load_ca(tmp_path / "ca")


def test_unwritable_folder_is_told(tmp_path: Path) -> None:
    """A folder that can't be made is a clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be written"):
        init_ca(tmp_path / "file" / "ca")


def test_bundle_holds_our_root_too(folder: Path) -> None:
    """The bundle ends in our certificate, for clients of which only some traffic crosses the gateway."""
    files = CaFiles(folder)
    assert files.bundle.read_bytes().endswith(files.certificate.read_bytes())


# -- loading ---------------------------------------------------------------------------------------------------------


def open_key(files: CaFiles) -> None:
    files.key.chmod(0o640)


def foreign_key(files: CaFiles) -> None:
    _write_key(files, ec.generate_private_key(ec.SECP256R1()))


def rsa_key(files: CaFiles) -> None:
    _write_key(files, rsa.generate_private_key(65537, 2048))


def _write_key(files: CaFiles, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files.key.write_bytes(pem)


def no_key(files: CaFiles) -> None:
    files.key.unlink()


def no_certificate(files: CaFiles) -> None:
    files.certificate.unlink()


def broken_key(files: CaFiles) -> None:
    files.key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")


def broken_certificate(files: CaFiles) -> None:
    files.certificate.write_text("no certificate")


def open_folder(files: CaFiles) -> None:
    files.directory.chmod(0o777)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (open_key, "chmod 600"),
        (foreign_key, "does not belong"),
        (rsa_key, "no elliptic-curve key"),
        (no_key, "can't be read"),
        (no_certificate, "can't be read"),
        (broken_key, "no private key"),
        (broken_certificate, "no certificate"),
        (open_folder, "chmod 700"),
    ],
)
def test_damaged_ca_is_refused(damage: Callable[[CaFiles], None], says: str, folder: Path) -> None:
    """A CA that others may read or write, or whose parts are missing, broken or not a pair, is never used."""
    damage(CaFiles(folder))
    with pytest.raises(ConfigError, match=says):
        load_ca(folder)


def test_missing_ca_says_how_to_make_one(tmp_path: Path) -> None:
    """Without a CA the message is the command that makes one."""
    with pytest.raises(ConfigError, match="seamgate ca init"):
        load_ca(tmp_path)


def test_a_folder_that_cannot_be_looked_into_is_an_error(tmp_path: Path) -> None:
    """Nobody can tell whether there is a CA: not "none", no traceback. A loop of links is one, for root too."""
    (tmp_path / "ca").symlink_to("ca")
    with pytest.raises(ConfigError, match="can't be read"):
        load_ca(tmp_path / "ca")
    done = seamgate("ca", "show", "--dir", str(tmp_path / "ca"), home=tmp_path)
    assert done.returncode == 2
    assert re.match(r"error: the CA in \S+ can't be read: ", done.stderr)


def test_ca_out_of_time_is_refused(tmp_path: Path) -> None:
    """A CA that expired, or of the future, is refused; both messages say what to look at."""
    init_ca(tmp_path / "ca", now=NOW)
    with pytest.raises(ConfigError, match="expired on 2036"):
        load_ca(tmp_path / "ca", now=NOW + datetime.timedelta(days=3650))
    with pytest.raises(ConfigError, match="clock"):
        load_ca(tmp_path / "ca", now=NOW - datetime.timedelta(days=2))
    load_ca(tmp_path / "ca", now=NOW - datetime.timedelta(hours=23))


def test_leaf_as_ca_is_refused(folder: Path) -> None:
    """A certificate that may not sign is no CA."""
    material = load_ca(folder)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    leaf = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(material.key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - datetime.timedelta(days=400))
        .not_valid_after(NOW + datetime.timedelta(days=4000))
        .sign(material.key, hashes.SHA256())
    )
    CaFiles(folder).certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(ConfigError, match="no certificate of a CA"):
        load_ca(folder)


def test_nothing_shows_the_key(folder: Path) -> None:
    """No repr of the loaded CA holds key material."""
    material = load_ca(folder)
    pem = CaFiles(folder).key.read_text().splitlines()[1]
    for shown in (repr(material), repr(CertificateAuthority(material))):
        assert pem not in shown
        assert "PRIVATE" not in shown


# -- leaves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "a.example",
        "localhost",
        "_x.a_b.example",
        "xn--bcher-kva.example",
        "127.0.0.1",
        "2001:db8::1",
        "a" * 63 + ".example",
    ],
)
def test_strict_clients_accept_the_leaf(host: str, folder: Path) -> None:
    """A client that trusts ca.pem alone and checks strictly accepts the leaf for its host, and for no other."""
    authority = load_authority(CaConfig(dir=str(folder)))
    server = authority.leaf_context(host)
    ours = handshake(client_of(folder), server, host)
    assert ours.version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client_of(folder), server, "b.example")


def test_leaf_says_what_a_server_needs(folder: Path) -> None:
    """A leaf is for servers only, names exactly its host, and has a fresh serial number each time."""
    authority = load_authority(CaConfig(dir=str(folder)))
    end = NOW.timestamp() + 3600
    leaf, other = authority.mint("a.example", end), authority.mint("a.example", end)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("a.example")]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert leaf.serial_number != other.serial_number
    address = authority.mint("2001:db8::1", end).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert list(address.value) == [x509.IPAddress(ipaddress.ip_address("2001:db8::1"))]
    long = authority.mint("b" * 63 + ".example", end)
    assert list(long.subject) == []
    assert long.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical


@pytest.mark.parametrize("host", ["A.example", "a.example.", "*.example", "a.example\n", "[::1]", "127.1", "", "a,b"])
def test_no_leaf_for_odd_hosts(host: str, folder: Path) -> None:
    """Only what is canonical gets a certificate; case and a trailing dot are settled by whoever asks."""
    authority = load_authority(CaConfig(dir=str(folder)))
    with pytest.raises(TargetError):
        authority.leaf_context(host)
    assert len(authority) == 0


def test_contexts_are_cached_and_bounded(folder: Path) -> None:
    """A host's context is made once; beyond the bound the one that was used longest ago goes."""
    authority = load_authority(CaConfig(dir=str(folder), leaf_cache=2))
    first = authority.leaf_context("a.example")
    authority.leaf_context("b.example")
    assert authority.leaf_context("a.example") is first
    authority.leaf_context("c.example")
    assert len(authority) == 2
    assert authority.leaf_context("a.example") is first
    assert authority.minted == 3


def test_leaves_are_renewed_before_they_end(tmp_path: Path) -> None:
    """A leaf is backdated for slow clocks, and replaced when a quarter of its time is left."""
    now = NOW.timestamp()
    authority = CertificateAuthority(init_ca(tmp_path / "ca", now=NOW), leaf_hours=24, clock=lambda: now)
    first = authority.leaf_context("a.example")
    now += 17.9 * 3600
    assert authority.leaf_context("a.example") is first
    now += 0.2 * 3600
    assert authority.leaf_context("a.example") is not first
    leaf = authority.mint("a.example", now + 3600)
    assert leaf.not_valid_before_utc.timestamp() == int(now - 12 * 3600)


def test_leaves_never_outlive_the_ca(tmp_path: Path) -> None:
    """Near the end of the CA its leaves end with it."""
    material = init_ca(tmp_path / "ca", now=NOW)
    end = material.certificate.not_valid_after_utc.timestamp()
    authority = CertificateAuthority(material, clock=lambda: end - 3600)
    seen: list[float] = []
    original = authority.mint
    authority.mint = lambda host, ends_at: seen.append(ends_at) or original(host, ends_at)  # type: ignore[method-assign, func-returns-value]
    authority.leaf_context("a.example")
    assert seen == [end]


def test_sessions_resume(folder: Path) -> None:
    """A client that comes back resumes its session, in TLS 1.3 and in 1.2."""
    authority = load_authority(CaConfig(dir=str(folder)))
    for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
        client = client_of(folder)
        client.maximum_version = version
        first = handshake(client, authority.leaf_context("a.example"), "a.example")
        again = handshake(client, authority.leaf_context("a.example"), "a.example", first.session)
        assert again.session_reused


def test_alpn_is_what_was_asked_for(folder: Path) -> None:
    """The context agrees to HTTP/1.1 by default, to more if told, and each choice is cached by itself."""
    authority = load_authority(CaConfig(dir=str(folder)))
    client = client_of(folder)
    client.set_alpn_protocols(["h2", "http/1.1"])
    plain = authority.leaf_context("a.example")
    both = authority.leaf_context("a.example", alpn=("h2", "http/1.1"))
    assert handshake(client, plain, "a.example").selected_alpn_protocol() == "http/1.1"
    assert handshake(client, both, "a.example").selected_alpn_protocol() == "h2"


def test_no_key_reaches_the_disk(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minting writes no file anywhere: the leaf key lives in memory."""
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: pytest.fail("a file was made"))
    before = sorted(tmp_path.rglob("*"))
    load_authority(CaConfig(dir=str(folder))).leaf_context("a.example")
    assert sorted(tmp_path.rglob("*")) == before


def test_limited_ca_signs_only_its_names(tmp_path: Path) -> None:
    """A CA with names signs for them and what is below, refuses the rest, and clients would refuse it as well."""
    init_ca(tmp_path / "ca", names=("corp.example", "*.other.example"))
    authority = load_authority(CaConfig(dir=str(tmp_path / "ca")))
    for host in ("corp.example", "a.b.corp.example", "x.other.example"):
        handshake(client_of(tmp_path / "ca"), authority.leaf_context(host), host)
    for host in ("evilcorp.example", "example", "corp.example.evil", "127.0.0.1"):
        with pytest.raises(LeafForbidden, match="may not sign") as caught:
            authority.leaf_context(host)
        assert caught.value.reason is Reason.GUEST_TLS_FAILED


def test_odd_names_for_a_limited_ca_are_refused(tmp_path: Path) -> None:
    """A name constraint is a canonical name."""
    with pytest.raises(ConfigError):
        init_ca(tmp_path / "ca", names=("a/b",))
    assert not (tmp_path / "ca").exists()


@pytest.mark.parametrize("section", [{"leaf_hours": 1}, {"leaf_hours": 99999}, {"leaf_cache": 0}, {"directory": "x"}])
def test_odd_settings_are_refused(section: dict[str, object]) -> None:
    """Unknown keys and values without sense are errors of the configuration."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, CaConfig)


# -- what clients are told -------------------------------------------------------------------------------------------


def test_environment_covers_proxy_and_roots(folder: Path) -> None:
    """Both cases of each proxy variable, an empty NO_PROXY, and every client's own variable for roots are set."""
    path = CaFiles(folder).certificate
    environment = client_environment("http://agent:token@127.0.0.1:8080", path)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        assert environment[name] == "http://agent:token@127.0.0.1:8080"
    assert environment["NO_PROXY"] == environment["no_proxy"] == environment["npm_config_noproxy"] == ""
    assert environment["NODE_USE_ENV_PROXY"] == "1"
    assert {environment[name] for name in CA_VARIABLES} == {str(path)}
    assert "-Dhttps.proxyPort=8080" in environment["JAVA_TOOL_OPTIONS"]
    assert "token" not in environment["JAVA_TOOL_OPTIONS"]


def test_environment_of_one_part(folder: Path) -> None:
    """Without a proxy only the roots are told, and the other way round."""
    path = CaFiles(folder).certificate
    assert "HTTPS_PROXY" not in client_environment("", path)
    assert "SSL_CERT_FILE" not in client_environment("http://127.0.0.1:8080")
    assert client_environment("") == {}


def test_a_folder_of_roots_is_named_too(folder: Path) -> None:
    """An empty one, made once, absolute; with the bundle nothing is said, and nothing where it can't be made."""
    files = CaFiles(folder)
    made = files.make_no_roots()
    assert made == files.make_no_roots() == str(folder / "no-roots")
    assert list(Path(made).iterdir()) == []
    assert client_environment("", files.certificate, made)["SSL_CERT_DIR"] == made
    assert "SSL_CERT_DIR" not in client_environment("", files.bundle)
    assert CaFiles(folder / "ca.pem").make_no_roots() == ""


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "https://a:1", "http://a", "http://:80", "http://a:x", "socks5://a:1"]
)
def test_odd_proxy_urls_are_refused(url: str) -> None:
    """A proxy's URL has the scheme http, a host and a port."""
    with pytest.raises(ConfigError, match="http://host:port"):
        client_environment(url)


def test_shells_read_what_is_printed() -> None:
    """A value with quotes, blanks and dollars comes out of a shell as it went in."""
    nasty = {"A": 'it\'s $HOME \\ "x" `y`', "B": ""}
    text = render_environment(nasty, "sh")
    shown = subprocess.run(
        ["sh", "-c", f'{text}\nprintf "%s|%s" "$A" "$B"'], capture_output=True, text=True, check=True, timeout=100
    ).stdout
    assert shown == f"{nasty['A']}|"
    assert json.loads(render_environment(nasty, "json")) == nasty
    assert render_environment({"A": "it's \\"}, "fish") == "set -gx A 'it\\'s \\\\';"


# -- the command -----------------------------------------------------------------------------------------------------


def test_command_line(tmp_path: Path) -> None:
    """`ca init`, `show` and `env` tell the same CA; a second init and a missing CA are errors."""
    folder = tmp_path / "ca"
    runner = CliRunner()
    made = json.loads(runner.invoke(ca_command, ["init", "--dir", str(folder), "--json"]).output)
    shown = json.loads(runner.invoke(ca_command, ["show", "--dir", str(folder), "--json"]).output)
    assert made == shown
    assert shown["sha256"].count(":") == 31
    assert shown["sha256"] in runner.invoke(ca_command, ["show", "--dir", str(folder)]).output
    lines = runner.invoke(
        ca_command, ["env", "--dir", str(folder), "--proxy", "http://127.0.0.1:1"]
    ).output.splitlines()
    exported = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    assert exported["CURL_CA_BUNDLE"] == str(folder / "ca.pem")
    bundle = json.loads(runner.invoke(ca_command, ["env", "--dir", str(folder), "--bundle", "--shell", "json"]).output)
    assert bundle["CURL_CA_BUNDLE"] == str(folder / "ca.bundle.pem")
    assert isinstance(runner.invoke(ca_command, ["init", "--dir", str(folder)]).exception, ConfigError)
    assert isinstance(runner.invoke(ca_command, ["show", "--dir", str(tmp_path / "none")]).exception, ConfigError)


# -- of guests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/../../b", "..", ".", ".hidden", "ö x", "%2E", "a" * 80, "guests"])
def test_a_guests_name_is_one_folder(tmp_path: Path, name: str) -> None:
    """Whatever it is made of, its CA lies in a folder of its own right below `guests`."""
    made = init_ca(tmp_path / "ca", guest=name)
    (folder,) = (tmp_path / "ca" / "guests").iterdir()
    assert made.files.directory == folder and not folder.name.startswith(".")
    assert load_ca(tmp_path / "ca", guest=name).certificate == made.certificate


def test_names_of_two_guests_are_two_folders() -> None:
    """No spelling of one is another one's."""
    names = ["a/b", "a%2Fb", ".a", "%2Ea", "a", "A", "a b", "a+b", "%252Ea"]
    assert len({files_of(Path("ca"), name).directory for name in names}) == len(names)


def test_a_renewed_certificate_is_of_the_same_key(tmp_path: Path) -> None:
    """Who trusts the one before accepts what is signed, within the limits of that one; the key's file is untouched."""
    before = init_ca(tmp_path / "ca", guest="g", names=("a.example",))
    key = before.files.key.read_bytes()
    client = client_of(before.files.directory)
    renewed = renew_ca(before, ("a.example", "b.example"))
    assert load_ca(tmp_path / "ca", guest="g").certificate == before.certificate  # not written yet
    write_certificate(renewed)
    assert load_ca(tmp_path / "ca", guest="g").certificate == renewed.certificate != before.certificate
    assert before.files.key.read_bytes() == key
    authority = CertificateAuthority(renewed)
    handshake(client, authority.leaf_context("a.example"), "a.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client, authority.leaf_context("b.example"), "b.example")
    handshake(client_of(before.files.directory), authority.leaf_context("b.example"), "b.example")
    for path in (renewed.files.bundle, renewed.files.certificate):
        assert renewed.certificate.public_bytes(serialization.Encoding.PEM) in path.read_bytes()


def test_a_guest_makes_room_at_its_own_expense(tmp_path: Path) -> None:
    """All keep no more contexts together than may be; who asks for host after host gives up its own oldest."""
    cache = LeafCache(4)
    quiet, greedy = (
        CertificateAuthority(init_ca(tmp_path / "ca", guest=name), leaf_cache=cache) for name in ("quiet", "greedy")
    )
    cache.replace([quiet, greedy])
    kept = quiet.leaf_context("one.example")
    for number in range(10):
        greedy.leaf_context(f"host{number}.example")
        assert len(cache) <= 4
    assert quiet.leaf_context("one.example") is kept
    assert len(greedy) == 3
