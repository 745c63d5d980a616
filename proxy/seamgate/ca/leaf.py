"""Certificates for the hosts that guests speak TLS to, and the server contexts that hold them.

Called by the entries when a guest opens TLS; `leaf_context` answers from its cache in well under a microsecond. All
leaves share one key, made at start and kept in memory only, so that minting costs one signature; what costs more is
OpenSSL's context (some 0.6 ms), so contexts are what is cached. The CA's key signs leaves and nothing else.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from seamgate.address import canonical_address, canonical_name
from seamgate.ca.store import CaConfig, CaFiles, CaMaterial, ca_directory, key_usage, load_ca, permitted_names
from seamgate.errors import ConfigError, Reason, SeamgateError, TargetError

# A guest's clock may be behind: a microVM that was parked, a container with a bad clock.
_BACKDATE_S = 12 * 3600.0
# A connection outlives the handshake, not the certificate: one is replaced when this part of its time is left.
_RENEW_PART = 0.25
_LONGEST_COMMON_NAME = 64  # RFC 5280 A.1 ub-common-name
ALPN_HTTP1 = ("http/1.1",)


class LeafForbidden(SeamgateError):
    """The CA is limited to other names, so a certificate for this one would be refused by every client."""

    default_reason = Reason.GUEST_TLS_FAILED


class _Leaf(msgspec.Struct, frozen=True, eq=False):
    context: ssl.SSLContext
    renew_at: float


class LeafCache:
    """How many contexts several CAs may keep together. Each keeps its own; nobody finds another one's.

    Where they are too many, the CA that keeps most gives up its oldest: a guest that asks for host after host makes
    room at its own expense. A context takes some 30 KB.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._holders: list[CertificateAuthority] = []

    def __len__(self) -> int:
        return sum(map(len, self._holders))

    def replace(self, holders: Iterable[CertificateAuthority]) -> None:
        """These share it from now on."""
        self._holders = list(holders)

    def join(self, holder: CertificateAuthority) -> None:
        """This one shares it too."""
        self._holders.append(holder)

    def make_room(self) -> None:
        """Have contexts given up until there are no more than may be."""
        while len(self) > self.most:
            max(self._holders, key=len).give_up()


class CertificateAuthority:
    """The loaded CA with its leaf key and its contexts. Runs on: the event loop's thread.

    Args:
        material: the CA.
        leaf_hours: how long a leaf is valid.
        leaf_cache: how many contexts are kept, or what is shared with other CAs.
        clock: Unix seconds.
    """

    def __init__(
        self,
        material: CaMaterial,
        *,
        leaf_hours: int = 72,
        leaf_cache: int | LeafCache = 1024,
        clock: Callable[[], float] = time,
    ) -> None:
        self._material = material
        self._validity_s = leaf_hours * 3600.0
        if isinstance(leaf_cache, int):
            leaf_cache = LeafCache(leaf_cache)
            leaf_cache.join(self)
        self._cache = leaf_cache
        self._clock = clock
        self._leaves: OrderedDict[tuple[str, tuple[str, ...]], _Leaf] = OrderedDict()
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key_pem = self._leaf_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        self._permitted = permitted_names(material.certificate)
        self._template = self._make_template()
        self.minted = 0

    def __repr__(self) -> str:
        return f"<CertificateAuthority {self._material.files.directory}, {len(self._leaves)} leaves>"

    @property
    def files(self) -> CaFiles:
        """Where ca.pem and its siblings are."""
        return self._material.files

    @property
    def material(self) -> CaMaterial:
        """What it was loaded from."""
        return self._material

    @property
    def key_id(self) -> str:
        """The identifier of the CA's key (RFC 5280 4.2.1.2), hex."""
        return x509.SubjectKeyIdentifier.from_public_key(self._material.key.public_key()).digest.hex()

    @property
    def certificate(self) -> x509.Certificate:
        """The CA's certificate."""
        return self._material.certificate

    @property
    def permitted(self) -> tuple[str, ...] | None:
        """The domains that it is limited to; None: to none."""
        return self._permitted

    def __len__(self) -> int:
        return len(self._leaves)

    def leaf_context(self, host: str, *, alpn: tuple[str, ...] = ALPN_HTTP1) -> ssl.SSLContext:
        """Return the server context for a host, minted if need be.

        Args:
            host: canonical name, or canonical address without brackets.
            alpn: protocols to agree to, in order of preference.

        Raises:
            TargetError: it is not canonical.
            LeafForbidden: the CA may not sign for this host.
        """
        leaf = self._leaves.get((host, alpn))
        if leaf is not None and self._clock() < leaf.renew_at:
            self._leaves.move_to_end((host, alpn))
            return leaf.context
        leaf = self._make_leaf(host, alpn)
        self._leaves[host, alpn] = leaf
        self._leaves.move_to_end((host, alpn))
        self._cache.make_room()
        return leaf.context

    def give_up(self) -> None:
        """Forget the context that was not asked for the longest."""
        self._leaves.popitem(last=False)

    def _make_leaf(self, host: str, alpn: tuple[str, ...]) -> _Leaf:
        now = self._clock()
        ends_at = min(now + self._validity_s, self.certificate.not_valid_after_utc.timestamp())
        certificate = self.mint(host, ends_at)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        # One ticket is what a client uses; OpenSSL sends two.
        context.num_tickets = 1
        if alpn:
            context.set_alpn_protocols(list(alpn))
        with _in_memory(certificate.public_bytes(serialization.Encoding.PEM) + self._leaf_key_pem) as path:
            context.load_cert_chain(path)
        return _Leaf(context, now + (ends_at - now) * (1 - _RENEW_PART))

    def mint(self, host: str, ends_at: float) -> x509.Certificate:
        """Sign a certificate for a canonical host, valid till this Unix time.

        Raises:
            TargetError: it is not canonical.
            LeafForbidden: the CA may not sign for this host.
        """
        name, is_address = _subject_name(host)
        self._check_permitted(host, is_address)
        # A subject is for people; with an empty one, the alternative name must be critical (RFC 5280 4.2.1.6).
        named = len(host) <= _LONGEST_COMMON_NAME
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)] if named else [])
        self.minted += 1
        return (
            self._template.subject_name(subject)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_utc(self._clock() - _BACKDATE_S))
            .not_valid_after(_utc(ends_at))
            .add_extension(x509.SubjectAlternativeName([name]), critical=not named)
            .sign(self._material.key, hashes.SHA256())
        )

    def _make_template(self) -> x509.CertificateBuilder:
        """Build what all leaves have in common. Certificate builders are values: each step returns another one."""
        public = self._material.key.public_key()
        return (
            x509.CertificateBuilder()
            .issuer_name(self.certificate.subject)
            .public_key(self._leaf_key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key()), critical=False)
        )

    def _check_permitted(self, host: str, is_address: bool) -> None:
        if self._permitted is None:
            return
        if is_address or not any(host == name or host.endswith(f".{name}") for name in self._permitted):
            raise LeafForbidden(
                f"the gateway's CA may not sign for {host}: it is limited to {', '.join(self._permitted)}; "
                f"make one for more names with `{self.files.command} --force --name ...`"
            )


def load_authority(config: CaConfig | None = None, *, base: Path = Path()) -> CertificateAuthority:
    """Load the CA that the configuration names.

    Args:
        config: the section `ca`.
        base: folder that a relative `dir` starts from: that of the configuration file.

    Raises:
        ConfigError: it is missing or can't be used.
    """
    config = config if config is not None else CaConfig()
    material = load_ca(ca_directory(config, base))
    return CertificateAuthority(material, leaf_hours=config.leaf_hours, leaf_cache=config.leaf_cache)


def _subject_name(host: str) -> tuple[x509.GeneralName, bool]:
    address = canonical_address(host)
    if host != (canonical_name(host) if address is None else address):
        raise TargetError("a certificate is for a canonical name or address only")
    return (x509.DNSName(host), False) if address is None else (x509.IPAddress(ipaddress.ip_address(address)), True)


def _utc(timestamp: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(timestamp, datetime.UTC).replace(microsecond=0)


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """Offer bytes as a file name: OpenSSL reads keys only from files, and this one should never be on a disk."""
    try:
        descriptor = os.memfd_create("seamgate-leaf", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        descriptor, name = _unlinked_file()
        if not os.path.exists(name):
            os.close(descriptor)
            raise ConfigError("neither memfd_create nor /proc is available; mount /proc for the gateway") from None
    else:
        name = f"/proc/self/fd/{descriptor}"
    try:
        os.write(descriptor, data)
        yield name
    finally:
        os.close(descriptor)


def _unlinked_file() -> tuple[int, str]:
    """Return (descriptor, name by way of /proc) of a file of mode 0600 that no folder lists."""
    descriptor, name = tempfile.mkstemp(prefix="seamgate-")
    os.unlink(name)
    return descriptor, f"/proc/self/fd/{descriptor}"
