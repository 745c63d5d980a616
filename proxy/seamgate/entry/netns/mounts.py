"""What a guest sees of the machine's files: everything, but for what would lead around the gateway.

Called by the launcher in its new mount namespace. A network namespace does not hold unix sockets that have a path:
name services would resolve names that policy denies, a container engine or a session manager would start programs
outside. `supervisor` holds those; the ones that are known when the guest starts are covered as well, so that their
services don't even hear that somebody tried. Covered are folders with the gateway's secrets (`covers`); the kernel's
own files can't be written; devices are the room of `devices`.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from seamgate.entry.netns import system
from seamgate.entry.netns.layout import LOOPBACK, LOOPBACK_6
from seamgate.entry.netns.mountinfo import read_mounts

_EMPTY: Final = "/dev/null"
_RESOLVER: Final = Path("/etc/resolv.conf")
_HOSTS: Final = Path("/etc/hosts")
RESOLVER_TEXT: Final = (
    f"# Names are answered by the gateway, by its policy.\nnameserver {LOOPBACK}\noptions timeout:5 attempts:2\n"
)
# Debian and Alpine, Fedora, SUSE, and what OpenSSL was built with.
_TRUST_STORES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_PROCESSES = "/proc"
_OF_KERNEL: Final = frozenset(
    "binfmt_misc bpf cgroup cgroup2 configfs debugfs efivarfs fusectl pstore resctrl securityfs selinuxfs sysfs"
    " tracefs".split()
)
_CONTROL: Final = "/sys/"  # whatever is mounted there: a tmpfs holds control groups of the first kind
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)


def socket_paths(table: str) -> list[str]:
    """Return the paths in the text of /proc/net/unix, each once."""
    rows = (line.split(maxsplit=7) for line in table.splitlines()[1:])
    return list(dict.fromkeys(row[7] for row in rows if len(row) == 8 and row[7].startswith("/")))


def keep_apart() -> None:
    """Let no mount made here be seen outside, nor the other way round."""
    system.mount("none", "/", flags=system.RECURSIVE | system.PRIVATE)


def hosts_text(own_name: str) -> str:
    """Return what the guest's hosts file says: who it is itself, and nobody else."""
    return f"{LOOPBACK} localhost {own_name}\n{LOOPBACK_6} localhost ip6-localhost ip6-loopback\n"


def name_resolver() -> None:
    """Let the C library ask the gateway, for every name: an address from the hosts file would stand for no name.

    Where a file is not there, nothing is lost: what is asked is redirected anyway.
    """
    texts = {_RESOLVER: RESOLVER_TEXT, _HOSTS: hosts_text(os.uname().nodename)}
    with tempfile.TemporaryDirectory(prefix="seamgate-") as folder:
        # In a file system of their own, so that they are still there, and can be mounted over, once the folder is gone.
        system.mount("tmpfs", folder, "tmpfs", system.NOSUID | system.NODEV, "mode=0755,size=64k")
        for path, text in texts.items():
            if path.exists():
                file = Path(folder) / path.name
                file.write_text(text)
                file.chmod(0o644)
                system.mount(str(file), str(path), flags=system.BIND)
        system.unmount(folder)


def trust(bundle: str) -> None:
    """Put a file of PEM roots in place of the machine's, for clients that find no variable. It can't be written.

    It is the gateway's own file: other guests trust it, it outlives this one, and the guest has its owner's user.
    """
    if not _is(bundle, stat.S_ISREG):
        return
    for path in dict.fromkeys(os.path.realpath(store) for store in _TRUST_STORES):
        if _is(path, stat.S_ISREG):
            system.mount(bundle, path, flags=system.BIND)
            system.make_read_only(path)


def cover_sockets(paths: Iterable[str]) -> None:
    """Cover unix sockets. One that can't be reached or is gone needs no cover."""
    for path in paths:
        if _is(path, stat.S_ISSOCK):
            _cover(path)


def pin(folders: Iterable[str]) -> None:
    """Let nobody in here rename these folders: each is a mount of itself. Outer ones have to come first.

    The current folder is entered again: seen from the old one, what is mounted from here on would not be there.
    """
    here = os.getcwd()
    for folder in folders:
        system.mount(folder, folder, flags=system.BIND | system.RECURSIVE)
    os.chdir(here)


def cover_folders(folders: Iterable[str], shown: Sequence[str]) -> None:
    """Put an empty folder over each of these, with copies of the files that are shown. None of it can be written."""
    texts = {path: Path(path).read_bytes() for path in shown}
    for folder in folders:
        system.mount("tmpfs", folder, "tmpfs", system.NOSUID | system.NODEV | system.NOEXEC, "mode=0755,size=16m")
        for path, text in texts.items():
            if path.startswith(folder.rstrip("/") + "/"):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                Path(path).write_bytes(text)
        system.make_read_only(folder)


def fix(paths: Iterable[str]) -> None:
    """Let nobody in here change these files, or what is in these folders."""
    for path in paths:
        system.mount(path, path, flags=system.BIND | system.RECURSIVE)
        system.make_read_only(path, recursive=True)


def fix_kernel() -> None:
    """Let nobody in here write to the kernel's file systems but /proc (`fix_processes`): as root it would be heard."""
    for mounted in read_mounts():
        of_kernel = mounted.kind in _OF_KERNEL or mounted.place.startswith(_CONTROL)
        if of_kernel or (mounted.kind == "proc" and mounted.place != _PROCESSES):
            try:
                system.make_read_only(mounted.place)
            except OSError as error:
                if error.errno not in (*_GONE, errno.EINVAL):  # EINVAL: another mount hides it
                    raise


def fix_processes() -> None:
    """Let nobody in here write to what of /proc is the kernel's and no process's: core_pattern, sysrq-trigger ...

    For root only: it owns those files, and nobody else does. Others could make no /proc further in after it
    (user_namespaces(7), "Restrictions on mount namespaces" in mount_namespaces(7)).
    """
    if os.geteuid() != 0:
        return
    with os.scandir(_PROCESSES) as entries:
        of_kernel = [each for each in entries if not each.name.isdigit() and not each.is_symlink()]
    fix(each.path for each in of_kernel if each.is_dir() or each.stat().st_mode & 0o222)


def own_queues() -> None:
    """Show the message queues of the present IPC namespace: where those of outside are mounted, they can be opened."""
    for place in dict.fromkeys(mounted.place for mounted in read_mounts() if mounted.kind == "mqueue"):
        system.mount("mqueue", place, "mqueue", system.NOSUID | system.NODEV | system.NOEXEC)


def empty_runtime(user: int, configured: str) -> None:
    """Put an empty folder over where this user's services have their sockets, those to come included."""
    for folder in {f"/run/user/{user}", os.path.realpath(configured) if configured else ""}:
        if folder.startswith("/run/") and _is(folder, stat.S_ISDIR):
            flags = system.NOSUID | system.NODEV
            system.mount("tmpfs", folder, "tmpfs", flags, "mode=0700,size=64m")


def show_processes() -> None:
    """Show the processes of the present process namespace only.

    Raises:
        OSError: the kernel does not permit it here, because a container hides parts of its /proc.
    """
    system.mount("proc", "/proc", "proc", system.NOSUID | system.NODEV | system.NOEXEC)


def _is(path: str, kind: Callable[[int], bool]) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return kind(mode)


def _cover(path: str) -> None:
    try:
        system.mount(_EMPTY, path, flags=system.BIND)
    except OSError as error:
        if error.errno not in _GONE:
            raise
