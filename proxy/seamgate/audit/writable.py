"""Whether a journal could be written here: asked without writing to it, so also while another gateway does.

Called by `seamgate serve --check` and `seamgate doctor`. Makes no folder and leaves no file behind.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from seamgate.audit.head import head_path
from seamgate.errors import AuditError

_PROBE_BYTES = 4096


def check_writable(journal: Path) -> None:
    """Return if a start could open the journal and write to it.

    Args:
        journal: the active file, there or not; its folder is made at the start, so it need not be there either.

    Raises:
        AuditError: it could not: where, why, and what to do.
    """
    for path in (journal, head_path(journal)):
        _check_file(path, journal)
    folder = journal.absolute().parent
    while not _is_there(folder, journal):
        folder = folder.parent
    try:
        _write_unseen(folder)
    except OSError as error:
        advice = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "give it to the gateway's user"
        raise _refused(journal, f"nothing can be written to {folder}: {error.strerror}", advice) from None


def _refused(journal: Path, problem: str, advice: str) -> AuditError:
    return AuditError(f"the audit log {journal} can't be written: {problem}; {advice}, or name another `audit: path:`")


def _is_there(folder: Path, journal: Path) -> bool:
    try:
        folder.stat()
    except FileNotFoundError:
        if folder.is_symlink():
            raise _refused(journal, f"{folder} is a link that leads nowhere", "mend that") from None
        return False
    except OSError as error:
        raise _refused(journal, f"{folder}: {error.strerror}", "mend that") from None
    return True


def _check_file(path: Path, journal: Path) -> None:
    """Open what is there as the journal does, but for making it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        return  # the folder says more
    except OSError as error:
        raise _refused(journal, f"{path}: {error.strerror}", "mend that") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _refused(journal, f"{path} is no regular file", "move it away")
    finally:
        os.close(descriptor)


def _write_unseen(folder: Path) -> None:
    """Write a file that has no name, or none for long.

    Raises:
        OSError: it can't be made or written.
    """
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
        descriptor, name = tempfile.mkstemp(prefix=".seamgate-", dir=folder)
        os.unlink(name)
    try:
        os.write(descriptor, bytes(_PROBE_BYTES))
    finally:
        os.close(descriptor)
