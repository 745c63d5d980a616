"""Where a pool keeps its hibernated guests: one file each, sealed, so that nobody else can read it, change it, or put
that of another guest in its place.

AES-256-GCM with a key that exists only in the pool's memory. The guest's number and how often it was hibernated are
bound to each file, so that an older state of the same guest is refused too: a guest goes on once from each state, and
so never uses its randomness twice. The files go with the pool. Used by `pool.py`, never by a worker.
"""

import os
import tempfile
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from seamgate_vmm.errors import HibernationError
from seamgate_vmm.removal import remove_tree

MAGIC = b"SGSEAL1\n"
_NONCE_BYTES = 12


class Seal:
    """One key. Nonces are random: a pool hibernates far fewer than 2^32 times (NIST SP 800-38D 8.3)."""

    def __init__(self) -> None:
        self._cipher = AESGCM(AESGCM.generate_key(256))

    def close(self, data: bytes, label: str) -> bytes:
        """Return the data sealed. label: what it is, needed again to open it."""
        nonce = os.urandom(_NONCE_BYTES)
        return MAGIC + nonce + self._cipher.encrypt(nonce, data, MAGIC + label.encode())

    def open(self, sealed: bytes, label: str) -> bytes:
        """Return what was sealed. Raises: HibernationError if it was not, not here, or not under this label."""
        start = len(MAGIC) + _NONCE_BYTES
        if not sealed.startswith(MAGIC) or len(sealed) < start:
            raise HibernationError("its file is no hibernated guest, or is cut short")
        try:
            return self._cipher.decrypt(sealed[len(MAGIC) : start], sealed[start:], MAGIC + label.encode())
        except InvalidTag:
            raise HibernationError("its file is damaged, cut short, of another guest or of another pool") from None


class Dormitory:
    """The files of one pool's hibernated guests. parent: where their folder is made; None: where temporary files go."""

    def __init__(self, parent: Path | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="seamgate-hibernated-", dir=parent))
        self._seal = Seal()

    def path(self, number: int) -> Path:
        """Return a guest's file."""
        return self.folder / f"{number}.sgh"

    def store(self, number: int, times: int, fd: int) -> int:
        """Seal what a descriptor holds as a guest's file; return its bytes. Raises: OSError; no file is left then."""
        sealed = self._seal.close(_all_of(fd), f"{number}.{times}")
        path = self.path(number)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(sealed)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return len(sealed)

    def load(self, number: int, times: int) -> int:
        """Return a descriptor with what a guest's file was made of; the caller closes it.

        Raises: HibernationError, with what is wrong.
        """
        try:
            sealed = self.path(number).read_bytes()
        except OSError as error:
            raise HibernationError(f"its file can't be read: {error.strerror}") from error
        data = memoryview(self._seal.open(sealed, f"{number}.{times}"))
        fd = os.memfd_create("seamgate-hibernated", os.MFD_CLOEXEC)
        while data:
            data = data[os.write(fd, data) :]
        return fd

    def forget(self, number: int) -> None:
        """Delete a guest's file."""
        self.path(number).unlink(missing_ok=True)

    def close(self) -> None:
        """Delete all of them."""
        remove_tree(self.folder)


def _all_of(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    data = os.pread(fd, size, 0)
    while len(data) < size and (more := os.pread(fd, size - len(data), len(data))):
        data += more
    return data
