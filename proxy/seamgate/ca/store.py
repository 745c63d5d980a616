"""The CA's files: made once by `seamgate ca init`, loaded with suspicion at each start.

    ca.key          the private key, readable by its owner only; whoever has it can pretend to be any host to a guest
    ca.pem          the certificate: what guests trust
    ca.bundle.pem   the machine's roots and ca.pem: for clients of which only some traffic crosses the gateway
    ca.p12          ca.pem as a Java trust store (password "changeit", as Java's own has; it holds nothing secret)
    guests/NAME/    the same four of the CA that this guest alone trusts, with `ca: {each_guest: true}`

The key never leaves this folder, and no guest ever sees it. Nothing here is called on the hot path.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import ipaddress
import os
import ssl
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from seamgate.address import canonical_name
from seamgate.errors import ConfigError, TargetError
from seamgate.places import anchored

CA_YEARS = 10
# Guests and hosts disagree about the time by more than one would think; a day is below what anybody notices.
CLOCK_SKEW = datetime.timedelta(days=1)
# Java's well-known one: the store holds nothing but the public certificate.
TRUST_STORE_PASSWORD = b"changeit"
GUESTS = "guests"
"""The folder, beside the CA's files, of those that belong to one guest each."""
_NO_ROOTS = "no-roots"
NO_HOST = "invalid"
"""A name that never is one (RFC 6761 6.4): without any, a CA would be limited to nothing at all."""
_EVERY_ADDRESS = (ipaddress.IPv4Network("0.0.0.0/0"), ipaddress.IPv6Network("::/0"))


class CaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `ca` of seamgate.yaml.

    Attributes:
        dir: folder of the CA's files; without it: `$XDG_DATA_HOME/seamgate/ca` (`~/.local/share/seamgate/ca`).
        leaf_hours: how long a host's certificate is valid.
        leaf_cache: hosts whose certificate and TLS context are kept.
        each_run: whether each `seamgate run` has a CA of its own, limited to the hosts that its policy could let it
            reach, where that is a closed list; it is gone when the run ends. `dir` is not used then.
        each_guest: whether each of `guests` has a CA of its own under `serve`, in `guests/NAME` of `dir`, limited in
            the same way: no guest trusts what is signed for another one. It is made when the guest first appears, and
            deleted when a reload takes the guest away.
    """

    dir: str = ""
    leaf_hours: int = 72
    leaf_cache: int = 1024
    each_run: bool = False
    each_guest: bool = False

    def __post_init__(self) -> None:
        """Refuse values that make no sense.

        Raises:
            ValueError: with what to write instead; msgspec turns it into an error with the place.
        """
        if not 2 <= self.leaf_hours <= 24 * 90:
            raise ValueError("ca.leaf_hours must be from 2 to 2160")
        if self.leaf_cache < 1:
            raise ValueError("ca.leaf_cache must be at least 1")


class CaFiles(msgspec.Struct, frozen=True):
    """Where a CA's files are, and whose it is: "" for everybody's."""

    directory: Path
    guest: str = ""

    @property
    def command(self) -> str:
        """What makes it."""
        return "seamgate ca init" + (f" --guest {self.guest}" if self.guest else "")

    @property
    def key(self) -> Path:
        """The private key, PEM (PKCS #8)."""
        return self.directory / "ca.key"

    @property
    def certificate(self) -> Path:
        """The certificate, PEM."""
        return self.directory / "ca.pem"

    @property
    def bundle(self) -> Path:
        """The machine's roots and the certificate, PEM."""
        return self.directory / "ca.bundle.pem"

    @property
    def java_store(self) -> Path:
        """The certificate as a PKCS #12 trust store."""
        return self.directory / "ca.p12"

    def make_no_roots(self) -> str:
        """Return the absolute name of an empty folder, for clients that read a folder of roots besides a file.

        It is made if need be; "" where that is not permitted.
        """
        folder = self.directory.absolute() / _NO_ROOTS
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o755, exist_ok=True)
        return str(folder) if folder.is_dir() else ""


class CaMaterial(msgspec.Struct, frozen=True, eq=False):
    """A CA that was loaded and checked. Its repr shows no key."""

    files: CaFiles
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"<CaMaterial {self.files.directory}: {fingerprint(self.certificate)}>"


def default_directory() -> Path:
    """Return $XDG_DATA_HOME/seamgate/ca, by default ~/.local/share/seamgate/ca."""
    home = os.environ.get("XDG_DATA_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path("~/.local/share").expanduser()
    return base / "seamgate" / "ca"


def ca_directory(config: CaConfig, base: Path) -> Path:
    """Return the folder of the CA that a configuration names, relative to `base`."""
    return Path(anchored(config.dir, base) if config.dir else anchored(default_directory()))


def files_of(directory: Path, guest: str = "") -> CaFiles:
    """Return the files of the CA in this folder: everybody's, or that of one guest, whatever its name is made of."""
    if not guest:
        return CaFiles(directory)
    name = quote(guest, safe="")
    return CaFiles(directory / GUESTS / (f"%2E{name[1:]}" if name.startswith(".") else name), guest)


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of the certificate as people compare it: upper-case hex in pairs with colons."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def init_ca(
    directory: Path,
    *,
    guest: str = "",
    names: Sequence[str] = (),
    force: bool = False,
    now: datetime.datetime | None = None,
) -> CaMaterial:
    """Make a new CA: ECDSA P-256, ten years, for leaf certificates only (path length 0).

    Args:
        directory: made with mode 0700 if it is not there.
        guest: whose it is to be; "": everybody's.
        names: domains that it may sign for, they and what is below them, and then no address (RFC 5280 4.2.1.10);
            empty: everything.
        force: whether to replace a CA that is there. Guests then no longer trust the gateway until they get the new.
        now: the time; tests pin it.

    Raises:
        ConfigError: there is a CA already, a name is none, or a file can't be written.
    """
    files = files_of(directory, guest)
    folders = (directory, *((files.directory.parent, files.directory) if guest else ()))
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _self_sign(key, _new_name(), names, now)
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(files.directory):
            if not force and is_ca_there(files):
                raise ConfigError(f"there is a CA in {files.directory} already; use it, or replace it with --force")
            _write(files.key, _key_pem(key), 0o600)
            _write_certificate(files, certificate)
    except OSError as exc:
        raise ConfigError(f"the CA can't be written to {files.directory}: {exc.strerror}") from None
    return CaMaterial(files, certificate, key)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one process at a time make a CA here: two would leave the key of one beside the certificate of the other."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_certificate(files: CaFiles, certificate: x509.Certificate) -> None:
    """Write all forms of the certificate, ca.pem last: a folder that has it is whole."""
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    _write(files.java_store, java_trust_store(certificate), 0o644)
    _write(files.bundle, system_roots() + pem, 0o644)
    _write(files.certificate, pem, 0o644)


def renew_ca(material: CaMaterial, names: Sequence[str], now: datetime.datetime | None = None) -> CaMaterial:
    """Return the CA with a certificate for other names: of the same key and subject, and not yet written.

    Who trusts the certificate before goes on to trust what is signed, as far as that one's limits reach (RFC 5280 6.1
    takes limits from the certificate that a client trusts, not from the one that the gateway has).

    Args:
        material: the CA as it is.
        names: as for `init_ca`.
        now: the time; tests pin it.
    """
    certificate = _self_sign(material.key, material.certificate.subject, names, now)
    return CaMaterial(material.files, certificate, material.key)


def write_certificate(material: CaMaterial) -> None:
    """Write the certificate in all its forms over those that are there; the key stays.

    Raises:
        ConfigError: it can't be written.
    """
    directory = material.files.directory
    try:
        with _locked(directory):
            _write_certificate(material.files, material.certificate)
    except OSError as exc:
        raise ConfigError(f"the CA can't be written to {directory}: {exc.strerror}") from None


def remove_ca(files: CaFiles) -> None:
    """Delete a CA, its key first, and its folder unless something else is in it. What is not there is no error.

    Raises:
        ConfigError: a file can't be deleted.
    """
    try:
        for path in (files.key, files.certificate, files.bundle, files.java_store):
            path.unlink(missing_ok=True)
    except NotADirectoryError:
        return
    except OSError as exc:
        raise ConfigError(f"the CA in {files.directory} can't be deleted: {exc.strerror}") from None
    for folder in (files.directory / _NO_ROOTS, files.directory):
        with contextlib.suppress(OSError):
            folder.rmdir()


def permitted_names(certificate: x509.Certificate) -> tuple[str, ...] | None:
    """Return the domains of the CA's name constraints, None if it has none."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return None
    return tuple(name.value for name in constraints.permitted_subtrees or () if isinstance(name, x509.DNSName))


def _new_name() -> x509.Name:
    # The number in the name keeps apart two CAs of one machine in a client's trust store.
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Seamgate"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Seamgate gateway CA {os.urandom(4).hex()}"),
        ]
    )


def _self_sign(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, names: Sequence[str], now: datetime.datetime | None
) -> x509.Certificate:
    now = now if now is not None else datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=365 * CA_YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if names:
        permitted = [x509.DNSName(_constraint(name)) for name in names]
        excluded = [x509.IPAddress(network) for network in _EVERY_ADDRESS]
        builder = builder.add_extension(x509.NameConstraints(permitted, excluded), critical=True)
    return builder.sign(key, hashes.SHA256())


def _constraint(name: str) -> str:
    try:
        return canonical_name(name.removeprefix("*."))
    except TargetError as exc:
        raise ConfigError(exc.message) from None


def key_usage(*, ca: bool) -> x509.KeyUsage:
    """Return the key usage of a CA (signs certificates and lists) or of a server (signs handshakes)."""
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def java_trust_store(certificate: x509.Certificate) -> bytes:
    """Return a PKCS #12 trust store with this one certificate, as Java reads it."""
    entry = pkcs12.PKCS12Certificate(certificate, b"seamgate")
    protection = (
        serialization.PrivateFormat.PKCS12.encryption_builder()
        .key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC)
        .hmac_hash(hashes.SHA256())
        .build(TRUST_STORE_PASSWORD)
    )
    return pkcs12.serialize_java_truststore([entry], protection)


def system_roots() -> bytes:
    """Return the roots that this machine trusts, PEM; empty if they are in no single file."""
    paths = ssl.get_default_verify_paths()
    for name in (paths.cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"):
        if name is not None and os.path.isfile(name):
            data = Path(name).read_bytes()
            return data if data.endswith(b"\n") else data + b"\n"
    return b""


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file so that it is there whole, with its mode from the first byte on, or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def is_ca_there(files: CaFiles) -> bool:
    """Return whether there is a CA, or a part of one.

    Raises:
        ConfigError: this user may not look into the folder, so nobody can tell.
    """
    try:
        # Not Path.exists(), which raises or says False for what can't be looked at, as the version of Python has it.
        for path in (files.key, files.certificate):
            try:
                path.stat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            return True
    except OSError as error:
        raise ConfigError(
            f"the CA in {files.directory} can't be read: {error.strerror}; give the folder to the gateway's user, or "
            "name another one"
        ) from None
    return False


def load_ca(directory: Path, *, guest: str = "", now: datetime.datetime | None = None) -> CaMaterial:
    """Load the CA, or that of one guest, and check that it can be trusted with being trusted.

    Raises:
        ConfigError: it is missing, readable by others, expired, or its parts do not belong together; with what to do.
    """
    files = files_of(directory, guest)
    if not is_ca_there(files):
        raise ConfigError(f"there is no CA in {files.directory}: make one with `{files.command}`")
    key = _load_key(files)
    certificate = _load_certificate(files.certificate)
    _check(files, certificate, key, now if now is not None else datetime.datetime.now(datetime.UTC))
    return CaMaterial(files, certificate, key)


def _load_key(files: CaFiles) -> ec.EllipticCurvePrivateKey:
    path = files.key
    source = str(path)
    try:
        with path.open("rb") as file:
            # Of the open file, so that what was checked is what is read.
            status = os.fstat(file.fileno())
            data = file.read(65536)
    except OSError as exc:
        raise ConfigError(f"can't be read: {exc.strerror}", source=source) from None
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"is open to others (mode {stat.S_IMODE(status.st_mode):04o}); do `chmod 600 {path}`, and if others may "
            f"have read it, make a new CA with `{files.command} --force`",
            source=source,
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"belongs to another user ({status.st_uid}); `chown` it to the gateway's", source=source)
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError("holds no private key in PEM form without passphrase", source=source) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"is no elliptic-curve key; make a CA with `{files.command}`", source=source)
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as exc:
        raise ConfigError(f"can't be read: {exc.strerror}", source=str(path)) from None
    except ValueError:
        raise ConfigError("holds no certificate in PEM form", source=str(path)) from None


def _check(
    files: CaFiles, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, now: datetime.datetime
) -> None:
    source = str(files.certificate)
    if certificate.public_key() != key.public_key():
        raise ConfigError(f"does not belong to {files.key}; restore the right pair, or make a new CA", source=source)
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        constraints = x509.BasicConstraints(ca=False, path_length=None)
    if not constraints.ca:
        raise ConfigError(f"is no certificate of a CA; make one with `{files.command}`", source=source)
    if now < certificate.not_valid_before_utc:
        raise ConfigError(
            f"is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on only; is this machine's clock right?",
            source=source,
        )
    if now >= certificate.not_valid_after_utc:
        raise ConfigError(
            f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}; make a new CA with `{files.command} --force` "
            "and give guests the new ca.pem",
            source=source,
        )
    folder = os.stat(files.directory)
    if stat.S_IMODE(folder.st_mode) & 0o022:
        raise ConfigError(
            f"others may write to this folder; do `chmod 700 {files.directory}`", source=str(files.directory)
        )
