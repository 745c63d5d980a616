"""Templates: CPython, warmed up and at its rendezvous, as files by name; and guests restored from them.

`build` runs the host's own CPython (or that of a virtual environment) in a guest until it waits for its job, and saves
that. `restore` maps a loaded template privately and hands it a job. Used by the command line, by workers and by tests.
No secret and no open connection is ever in a template: the environment is made here, there is no ring, and a template
with an open file or a second thread is refused.
"""

import mmap
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from seamgate_vmm import _kvm
from seamgate_vmm.errors import TemplateError
from seamgate_vmm.files import FileService, Scratch
from seamgate_vmm.guest import MIB, Console, Guest, Limits, State, boot, round_memory, set_params
from seamgate_vmm.host import Host, shim_file
from seamgate_vmm.image import Mount, View
from seamgate_vmm.snapshot import (
    PORTABLE_FLAGS,
    Loaded,
    Meta,
    load,
    read_meta,
    save,
    sha256,
    shim_digests,
    used_pages,
)

SUFFIX = ".sgt"
# Memory of a template, tried in turn: every MiB costs each guest 2.5 KiB of kernel memory on shadow paging.
_SIZES = tuple(n * MIB for n in (64, 96, 128, 192, 256, 384, 512))
GUEST_LIBRARY = "/run/seamgate"
RESEED_DEADLINE_S = 10.0
STANDARD_IMPORTS = (
    "argparse", "array", "ast", "asyncio", "base64", "bisect", "calendar", "collections.abc", "concurrent.futures",
    "configparser", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "email.message",
    "email.parser", "encodings.idna", "enum", "fnmatch", "fractions", "functools", "glob", "gzip", "hashlib", "heapq",
    "hmac", "html", "http.client", "http.cookies", "inspect", "io", "ipaddress", "itertools", "json", "logging", "math",
    "mimetypes", "numbers", "operator", "pathlib", "pickle", "platform", "pprint", "queue", "random", "re", "secrets",
    "select", "selectors", "shlex", "shutil", "signal", "socket", "sqlite3", "ssl", "stat", "statistics", "string",
    "struct", "subprocess", "sysconfig", "tempfile", "textwrap", "threading", "time", "traceback", "types", "typing",
    "unicodedata", "urllib.error", "urllib.parse", "urllib.request", "uuid", "warnings", "weakref",
    "xml.etree.ElementTree",
    "zipfile", "zlib", "zoneinfo",
)  # fmt: skip
# Masks for what finds out about the processor in user space, so that a template depends on x86-64-v2 and no more.
_PORTABLE = {
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512BW,-AVX512VL,-AVX512DQ,-AVX512CD,-ERMS,-FSRM,-RTM,"
    "-BMI1,-BMI2,-LZCNT,-FMA,-XSAVEC",
    "OPENSSL_ia32cap": "~0x1000000000000000:~0xffffffff",
}
# Names have IPv4 addresses only here, so half of the questions need not be asked (no-aaaa: glibc 2.36 and newer). No
# file of hosts is read for each name, but for those that the seam does not know (/etc/nsswitch.conf).
_RESOLVER = b"nameserver 10.0.2.3\noptions no-aaaa single-request timeout:5 attempts:2\n"
_MADE_UP = {
    "/etc/resolv.conf": _RESOLVER,
    "/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: dns files\nservices: files\nprotocols: files\n",
    "/etc/host.conf": b"multi on\n",
    "/etc/gai.conf": b"",
    "/etc/passwd": b"agent:x:1000:1000:agent:/tmp:/bin/false\n",
    "/etc/group": b"agent:x:1000:\n",
    "/etc/services": b"http 80/tcp\nhttps 443/tcp\ndomain 53/udp\n",
}
_SYSTEM_ROOTS = (
    "/usr/lib",
    "/lib",
    "/lib64",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
)
_GUEST_FILES = ("bootstrap.py", "seamgate_rehearsal.py", "seamgate_guest.py")


@dataclass(frozen=True, slots=True)
class Job:
    """What a restored guest is to do."""

    argv: Sequence[str]  # as after `python`: a script, -c CODE or -m MODULE, and its arguments
    env: Mapping[str, str]
    cwd: str = "/"
    terminals: Sequence[int] = ()  # which of 0, 1, 2 are terminals
    own_file: tuple[Sequence[str], bytes] | None = None  # of this guest alone, of a pool: places in it, and the bytes


def directory() -> Path:
    """Return where templates live: $SEAMGATE_TEMPLATES, else the user's data folder."""
    chosen = os.environ.get("SEAMGATE_TEMPLATES")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(base) / "seamgate" / "templates"


def path_of(name: str) -> Path:
    """Return the file of a template. Raises: TemplateError for a name that is no plain word."""
    if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
        raise TemplateError(f"{name!r} is not a template's name; use letters, digits, - and _")
    return directory() / (name + SUFFIX)


def names() -> list[str]:
    """Return the names of the templates that exist."""
    place = directory()
    return sorted(p.name[: -len(SUFFIX)] for p in place.glob(f"*{SUFFIX}")) if place.is_dir() else []


def inspect(name: str) -> Meta:
    """Return what a template says about itself. Raises: TemplateError."""
    return read_meta(_existing(name))[0]


def open_template(name: str, host: Host) -> Loaded:
    """Check a template wholly and bring it into memory. Raises: TemplateError."""
    return load(_existing(name), host)


def _existing(name: str) -> Path:
    path = path_of(name)
    if not path.exists():
        known = ", ".join(names()) or "none yet"
        raise TemplateError(f"no template {name!r} (there are: {known}); build it with `seamgate vm template build`")
    return path


def made_up_files() -> dict[str, bytes]:
    """Return the files that exist only in guests."""
    library = resources.files("seamgate_vmm").joinpath("guest_files")
    ours = {f"{GUEST_LIBRARY}/{n}": library.joinpath(n).read_bytes() for n in _GUEST_FILES}
    return {**_MADE_UP, **ours}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The CPython that goes into a template."""

    executable: Path  # as the guest sees it: in a virtual environment, its python
    program: Path  # the ELF file
    roots: tuple[Mount, ...]


def find_interpreter(venv: Path | None) -> Interpreter:
    """Return the CPython of a virtual environment, or the host's own. Raises: TemplateError."""
    if venv is not None:
        executable = venv.absolute() / "bin" / "python"
        if not (venv / "pyvenv.cfg").exists() or not executable.exists():
            raise TemplateError(f"{venv} is not a virtual environment: it has no pyvenv.cfg or no bin/python")
    else:
        executable = Path(getattr(sys, "_base_executable", sys.executable))
    program = executable.resolve()
    prefix = program.parent.parent
    places = [Mount(p, p) for p in _SYSTEM_ROOTS if os.path.exists(p)]
    chain = executable
    while chain.is_symlink():  # every link on the way to the program must be visible
        chain = (chain.parent / os.readlink(chain)).absolute()
        if chain.parent.parent not in (Path("/"), prefix):
            places.append(Mount(str(chain), str(chain)))
    if str(prefix) == "/usr":
        places.append(Mount(str(program), str(program)))
    else:
        places.append(Mount(str(prefix), str(prefix)))
    if venv is not None:
        places.append(Mount(str(venv.absolute()), str(venv.absolute())))
    return Interpreter(executable.absolute(), program, tuple(dict.fromkeys(places)))


def view_of(roots: Iterable[tuple[str, str]], folders: Iterable[Mount] = ()) -> View:
    """Return the view of a guest: the template's folders, the made-up files, and the caller's folders."""
    return View([*(Mount(g, h) for g, h in roots), *folders], made_up_files())


def base_environment() -> dict[str, str]:
    """Return the environment of every guest, before what its owner adds."""
    return {
        "HOME": "/tmp",  # noqa: S108 - the guest's own scratch
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": "/tmp",  # noqa: S108
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_BIND_NOW": "1",  # what the loader would write later, every guest would write for itself
        "MALLOC_ARENA_MAX": "1",
    }


def build(
    host: Host,
    name: str,
    *,
    imports: Sequence[str] = (),
    venv: Path | None = None,
    portable: bool = True,
    output: Console | None = None,
) -> Meta:
    """Warm CPython up with the standard modules and `imports`, and save it under `name`.

    portable: depend on x86-64-v2 only; else on this very processor's features.
    Raises: TemplateError if the interpreter ends before it is ready, with what it said.
    """
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    interpreter = find_interpreter(venv)
    for first in _SIZES if not imports else _SIZES[2:]:  # to try in vain costs seconds
        meta = _build(host, name, interpreter, imports, portable, first, output)
        if meta is not None:
            return meta
    raise TemplateError(f"these imports need more than {_SIZES[-1] >> 20} MiB; import less")


def _build(
    host: Host,
    name: str,
    interpreter: Interpreter,
    imports: Sequence[str],
    portable: bool,
    first: int,
    output: Console | None,
) -> Meta | None:
    """Build with this much memory; None if it was not enough."""
    path = path_of(name)
    fd = os.memfd_create("seamgate-build", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, first)
        guest = _warm_up(host, interpreter, (*STANDARD_IMPORTS, *imports), portable, first, fd, output)
        if guest is None:
            return None
        try:
            meta = _describe(host, guest, name, interpreter, imports, portable, first)
        finally:
            guest.close()
        with mmap.mmap(fd, first, mmap.MAP_SHARED, mmap.PROT_READ) as memory, memoryview(memory) as view:
            pages = used_pages(view)
            meta = _with_memory(meta, pages[-1] + 4096)
            with view[: meta.memory_bytes] as used:
                save(path, used, meta, [])
                return save(path, used, meta, _hot_pages(host, path))
    finally:
        os.close(fd)


def _with_memory(meta: Meta, memory_bytes: int) -> Meta:
    values = {n: getattr(meta, n) for n in Meta.__dataclass_fields__}
    return Meta(**{**values, "memory_bytes": memory_bytes})


def _warm_up(
    host: Host,
    interpreter: Interpreter,
    imports: Sequence[str],
    portable: bool,
    first: int,
    fd: int,
    output: Console | None,
) -> Guest | None:
    said = bytearray()

    def console(number: int, data: bytes) -> int:
        said.extend(data[: max(0, 8192 - len(said))])
        return output(number, data) if output is not None else len(data)

    env = {**base_environment(), "SEAMGATE_IMPORTS": ",".join(imports)}
    if portable:
        env.update(_PORTABLE)
    guest = boot(
        host,
        view_of((m.guest, m.host) for m in interpreter.roots),
        interpreter.program,
        [str(interpreter.executable), f"{GUEST_LIBRARY}/bootstrap.py"],
        env,
        console,
        Limits(memory_bytes=first, first_memory_bytes=first, wall_s=300),
        image=fd,
    )
    while guest.step(100_000) not in (State.RENDEZVOUS, State.OVER) and not guest.refused_memory:
        time.sleep(min(guest.wait_s() or 0.0, 0.1) if guest.state is State.WAITING else 0.0)
    if guest.state is not State.RENDEZVOUS:
        outcome = guest.outcome
        guest.close()
        if guest.refused_memory:
            return None
        raise TemplateError(f"the interpreter ended before it was ready: {outcome}\n{said.decode(errors='replace')}")
    return guest


def _describe(
    host: Host, guest: Guest, name: str, interpreter: Interpreter, imports: Sequence[str], portable: bool, first: int
) -> Meta:
    _check_quiet(guest)
    request = guest.machine.request()
    shim, vdso = shim_digests()
    required = PORTABLE_FLAGS if portable else host.cpu_flags
    return Meta(
        name=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        program=str(interpreter.executable),
        python=sha256(interpreter.program.read_bytes()),
        imports=tuple(imports),
        wire_abi=_kvm.WIRE_ABI,
        shim_sha256=shim,
        vdso_sha256=vdso,
        cpu_model=host.cpu_model,
        cpu_required=tuple(sorted(required & host.cpu_flags)),
        memory_bytes=first,
        first_bytes=first,
        layout=guest.layout,
        mono_ns=guest.machine.now_ns(),
        rendezvous=(request[1], request[2]),
        state=guest.machine.save().hex(),
        roots=tuple((m.guest, m.host) for m in interpreter.roots),
        extents=(),
    )


def _check_quiet(guest: Guest) -> None:
    """Refuse what must not be in a template. Raises: TemplateError."""
    threads = int.from_bytes(guest.machine.control[64 + 160 : 64 + 168], "little")
    if guest.files.open_count:
        raise TemplateError("an import left a file open; a template must have none")
    if threads != 1:
        raise TemplateError(f"an import left {threads - 1} threads or timers running; a template must have none")


def _hot_pages(host: Host, path: Path) -> list[int]:
    """Restore once, run nothing, and return the pages that this wrote: every guest will write them."""
    loaded = load(path, host)
    try:
        guest = restore(
            host,
            loaded,
            Job(["-c", "import os; os._exit(0)"], base_environment()),
            view_of(loaded.meta.roots),
            _swallow,
        )
        try:
            while guest.step() is not State.OVER:
                pass
            return [at for a, n in guest.machine.private_pages() for at in range(a, a + n, 4096)]
        finally:
            guest.close()
    finally:
        loaded.close()


def _swallow(_: int, data: bytes) -> int:
    return len(data)


# What a warm machine has run: a program of some length, compiled as an agent's is. Read now: a jailed worker cannot.
REHEARSAL = made_up_files()[f"{GUEST_LIBRARY}/seamgate_rehearsal.py"].decode() + "\nrehearse()\nos._exit(0)\n"


_next_pid = 2000 + secrets.randbelow(10_000)


def _new_pid() -> int:
    global _next_pid
    _next_pid += 1
    return _next_pid


def restore(
    host: Host,
    loaded: Loaded,
    job: Job,
    view: View,
    console: Console,
    limits: Limits | None = None,
    *,
    ring: tuple[int, int] | None = None,
    reuse: Guest | None = None,
    pid: int = 0,
) -> Guest:
    """Return a guest that will do `job` when it is stepped.

    ring: (memfd, doorbell eventfd), both stay the caller's. reuse: an ended guest of the same template, whose machine
    is brought back to the template instead of making a new one; it must not be used any more.
    pid: what it sees as its process number; 0: one that no other guest of this process has.
    Raises: OSError if KVM refuses; VmmError if the job is too long.
    """
    limits = limits or Limits()
    meta = loaded.meta
    machine = recycle(reuse) if reuse is not None else new_machine(host, loaded, limits)
    try:
        if ring is not None:
            machine.attach_ring(*ring)
        if reuse is None:
            machine.set_hot([(a, n) for a, n in meta.hot])
        generation, pid = secrets.randbits(63) | 1, pid or _new_pid()
        set_params(machine, host, meta.layout, meta.mono_ns, generation, pid, terminal_flags(job.terminals))
        machine.load(bytes.fromhex(meta.state))
        files = FileService(machine, view, Scratch(limits.scratch_bytes, limits.scratch_files), "/")
        files.program = meta.program
        guest = Guest(machine, files, console, limits, meta.layout, pid)
        guest.expect_note(b"reseeded %d" % generation, RESEED_DEADLINE_S)
        guest.answer_rendezvous(*meta.rendezvous, _encode(job, generation))
    except BaseException:
        machine.close()
        raise
    return guest


def terminal_flags(terminals: Iterable[int]) -> int:
    """Return what the parameter page says of these standard descriptors: that they are terminals."""
    return sum(_kvm.PARAMS_TERMINAL << fd for fd in set(terminals) & {0, 1, 2})


def _encode(job: Job, generation: int) -> bytes:
    """Return the job as bootstrap.py splits it: NUL between the words, as the kernel has them."""
    env = {**base_environment(), **job.env}
    words = [secrets.token_hex(32), str(generation), job.cwd, str(len(job.argv)), *job.argv]
    for key, value in env.items():
        words += [key, value]
    if any("\0" in word for word in words):
        raise TemplateError("arguments and environment must not hold NUL characters")
    return b"\0".join(os.fsencode(word) for word in words)


def new_machine(host: Host, loaded: Loaded, limits: Limits) -> _kvm.Machine:
    """Return a machine with the template's memory. Raises: OSError if KVM refuses."""
    first = loaded.meta.first_bytes
    return _kvm.Machine(
        host.kvm,
        shim_file(),
        host.landing,
        first,
        max(first, round_memory(limits.memory_bytes)),
        loaded.fd,
        loaded.meta.memory_bytes,
    )


def rehearse(host: Host, loaded: Loaded, view: View, limits: Limits | None = None) -> Guest:
    """Return an ended guest whose machine is warm and at its template, for `restore(reuse=...)`.

    Raises: OSError if KVM refuses.
    """
    guest = restore(host, loaded, Job(["-c", REHEARSAL, "0", "1"], {"LLM_API_KEY": "x"}), view, _swallow, limits)
    while guest.step(50_000) is not State.OVER:
        if guest.state is State.WAITING:
            time.sleep(min(guest.wait_s() or 0.0, 0.01))
    guest.machine.set_hot(guest.machine.private_pages())
    guest.machine.reserve_ring()
    recycle(guest)
    return guest


def recycle(guest: Guest) -> _kvm.Machine:
    """End a guest and bring its machine back to the template; one that is there already costs nothing.

    Raises: OSError if KVM refuses: then the machine serves nobody any more.
    """
    guest.stop()
    guest.files.close()
    guest.machine.reset()
    return guest.machine
