"""Runs inside a guest: warms CPython up, waits at the rendezvous, and becomes the program that it is given.

Everything before the rendezvous happens once, when the template is built; everything after it once a guest. The host
takes the snapshot inside the read of /run/seamgate/host; a restored guest gets its job as the answer. A guest says that
its randomness is its own before it runs a line of the program, and is not scheduled further if it does not.

The host puts this file into the guest's view; it is not imported by the host.
"""

# Runs in guests only and patches private parts of the standard library, which stubs do not know.
# mypy: ignore-errors
# pyright: basic, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportArgumentType=false, reportMissingImports=false
# pyright: reportIncompatibleVariableOverride=false, reportIndexIssue=false
# ruff: noqa: BLE001, D103, T201, S102
import gc
import os
import sys

_HOST = "/run/seamgate/host"
_SEQUENCES = {"tempfile": ("_name_sequence",), "uuid": ("_last_timestamp", "_node")}
_ROOM = 100_000  # below malloc's mmap threshold, so that the buffer is a piece of the heap


def _import_all(names):
    import importlib

    for name in names:
        importlib.import_module(name)


_TIMES = 40  # CPython specialises what it has run eight times or more
_POOL = 16384  # bytes; CPython 3.10 and newer on 64 bits
_MOST_FILLING = 2 << 20
_filling = []


def _rehearse(source, *parts):
    """Do what every guest will do, often enough that none has to do it for the first time."""
    own = sys.modules["__main__"]
    with open(source, encoding="utf-8") as f:
        program = f.read()
    for _ in range(_TIMES):
        for part in parts:
            part()
        exec(compile(program, "<string>", "exec"), _main_module(None))
        sys.modules["__main__"] = own


def _fill_pools():
    """Fill the free blocks between the template's objects, so that what a guest allocates lies together.

    CPython takes the next block from the pool that was touched last; after a collection the free blocks of each size
    lie one here, one there, and each allocation would unshare another page. So take blocks until they come one after
    the other, from a pool that was empty, and keep the others.
    """
    for size in range(16, 513, 16):
        whole = (_POOL - 48) // size - 1  # a pool begins with 48 bytes of its own
        held, run, last = [], 0, 0
        while run < whole and len(held) * size < _MOST_FILLING:
            block = object() if size == 16 else len(held) + 1000 if size == 32 else bytes(size - 33)
            run = run + 1 if id(block) - last == size else 0
            last = id(block)
            held.append(block)
        del held[-run - 1 :]
        _filling.append(held)


def _fill_heap():
    """The same for malloc, whose blocks are C libraries': from large to small, until each comes from the heap's end."""
    import ctypes

    libc = ctypes.CDLL(None)
    take, free = libc.malloc, libc.free
    take.restype, take.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    top = 0
    for size in [*range(100_000, 8_000, -4_000), *range(8_000, 1_032, -256), *range(1_032, 16, -16)]:
        for _ in range(_MOST_FILLING // size):
            block = take(size)
            if block > top:
                above = take(size)
                if above > block:
                    free(above)
                    free(block)
                    break
                top = block


def _randoms():
    """Every Random object that exists now: each clone must reseed all of them, not only the module's own."""
    random = sys.modules.get("random")
    if random is None:
        return []
    return [o for o in gc.get_objects() if isinstance(o, random.Random) and not isinstance(o, random.SystemRandom)]


def _reseed(seed, randoms):
    """Give this clone its own randomness. OpenSSL reseeds itself, because it sees another process number."""
    for index, generator in enumerate(randoms):
        generator.seed(seed + index.to_bytes(4, "little"))
    if "numpy.random" in sys.modules:
        words = [int.from_bytes(seed[i : i + 4], "little") for i in range(0, len(seed), 4)]
        sys.modules["numpy.random"].seed(words)
    for module, names in _SEQUENCES.items():
        known = sys.modules.get(module)
        for name in names:
            if getattr(known, name, None) is not None:  # what is not written stays shared
                setattr(known, name, None)


def _rendezvous(randoms):
    fd = os.open(_HOST, os.O_RDWR)
    seed, generation, cwd, count, *rest = os.read(fd, _ROOM).split(b"\0")
    _reseed(bytes.fromhex(seed.decode()), randoms)
    os.write(fd, b"reseeded " + generation)
    os.close(fd)
    words = [os.fsdecode(word) for word in rest]
    n = int(count)
    return words[:n], dict(zip(words[n::2], words[n + 1 :: 2], strict=True)), os.fsdecode(cwd)


def _environment(env, cwd):
    """Take over environment and folder, touching only what differs: what is not touched stays shared."""
    for key in [k for k in os.environ if k not in env]:
        del os.environ[key]
    for key, value in env.items():
        if os.environ.get(key) != value:
            os.environ[key] = value
    try:
        if cwd != "/":
            os.chdir(cwd)
    except OSError as error:
        print(f"seamgate: {cwd}: {error.strerror}", file=sys.stderr)
        return False
    if os.isatty(1):
        sys.stdout.reconfigure(line_buffering=True)
    if "TZ" in env:
        import time

        time.tzset()
    return True


def _main_module(path):
    import builtins
    import types

    module = types.ModuleType("__main__")
    module.__builtins__ = builtins
    if path is not None:
        module.__file__ = path
    sys.modules["__main__"] = module
    return module.__dict__


def _run_program(argv):
    """Do what `python ARGV...` does, for a script, -c and -m."""
    options = {"-u", "-B", "-E", "-s", "-S", "-I", "-q", "-O", "-b"}
    argv = list(argv)
    while argv and argv[0] in options:
        argv.pop(0)
    if not argv:
        print("seamgate: no program: give a script, -c CODE or -m MODULE", file=sys.stderr)
        return 2
    if argv[0] == "-c" and len(argv) > 1:
        sys.argv = ["-c", *argv[2:]]
        sys.path.insert(0, "")
        exec(compile(argv[1], "<string>", "exec"), _main_module(None))
    elif argv[0] == "-m" and len(argv) > 1:
        import runpy

        sys.argv = [argv[1], *argv[2:]]
        sys.path.insert(0, os.getcwd())
        _main_module(None)
        runpy._run_module_as_main(argv[1])
    elif argv[0].startswith("-"):
        print(f"seamgate: the option {argv[0]} is not supported in a guest", file=sys.stderr)
        return 2
    else:
        path = argv[0]
        sys.argv = argv
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        try:
            with open(path, "rb") as f:
                source = f.read()
        except OSError as error:
            print(f"seamgate: can't open file {path!r}: {error}", file=sys.stderr)
            return 2
        exec(compile(source, path, "exec"), _main_module(path))
    return 0


def _report(error):
    import traceback

    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)


def _status(code):
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _finish(code):
    """End as CPython does, without tearing the interpreter down: that would touch every page of the template."""
    import atexit

    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
    except BaseException as error:
        _report(error)
        code = code or 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            code = code or 120
    os._exit(code)


def _live(argv):
    try:
        code = _run_program(argv)
    except SystemExit as error:
        code = _status(error.code)
    except KeyboardInterrupt as error:
        _report(error)
        code = 130
    except BaseException as error:
        _report(error)
        code = 1
    _finish(code)


def main():
    import seamgate_guest

    seamgate_guest.install()
    import seamgate_rehearsal as rehearsal

    sys.path[:] = [p for p in sys.path if p != os.path.dirname(__file__)]
    _import_all([n for n in os.environ.get("SEAMGATE_IMPORTS", "").split(",") if n])
    import ctypes  # noqa: F401 - now, and not behind the last collection

    _rehearse(rehearsal.__file__, rehearsal.rehearse, rehearsal.rehearse_more)
    seamgate_guest.restock_contexts()
    randoms = _randoms()
    gc.collect()
    gc.freeze()
    _fill_pools()
    _fill_heap()
    argv, env, cwd = _rendezvous(randoms)
    if not _environment(env, cwd):
        _finish(2)
    _live(argv)


main()
