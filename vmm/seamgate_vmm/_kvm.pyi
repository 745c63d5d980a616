"""Types of the extension `_kvm`; what each does is said in `_kvm.c` and in the C that it wraps."""

class RingViolation(Exception): ...

class Machine:
    end: int
    cpu_ns: int
    exit: tuple[int, int]
    control: bytes
    def __init__(
        self,
        kvm: int,
        shim: bytes,
        landing: int,
        first_bytes: int,
        limit_bytes: int,
        image: int = -1,
        image_bytes: int = 0,
        building: bool = False,
    ) -> None: ...
    def close(self) -> None: ...
    def read(self, address: int, length: int, any: bool = False, /) -> bytes: ...
    def write(self, address: int, data: bytes | bytearray | memoryview, any: bool = False, /) -> None: ...
    def read_file(self, fd: int, address: int, length: int, offset: int, /) -> int: ...
    def write_file(self, fd: int, address: int, length: int, offset: int, /) -> int: ...
    def write_fixed(self) -> None: ...
    def set_params(
        self,
        tsc_khz: int,
        mono_ns: int,
        generation: int,
        pid: int,
        brk_start: int,
        brk_limit: int,
        mmap_low: int,
        start_rip: int,
        start_rsp: int,
        flags: int = 0,
        /,
    ) -> None: ...
    def now_ns(self) -> int: ...
    def start(self) -> None: ...
    def run(self, slice_us: int, tick_us: int = 5000, /) -> int: ...
    def request(self) -> tuple[int, int, int, int, int, int, int]: ...
    def reply(self, result: int, extra: int = 0, /) -> None: ...
    def signal(self, number: int, /) -> None: ...
    def announce_input(self) -> None: ...
    def ask_rest(self, kind: int, /) -> None: ...
    def park(self) -> None: ...
    def unpark(self) -> None: ...
    def trap(self) -> tuple[int, int, int, int, int, int, int]: ...
    def save(self) -> bytes: ...
    def load(self, state: bytes, /) -> None: ...
    def reset(self) -> None: ...
    def grow(self, size: int, /) -> int: ...
    def release(self, address: int, length: int, /) -> int: ...
    def reserve_ring(self) -> None: ...
    def attach_ring(self, memory: int, doorbell: int, /) -> None: ...
    def set_hot(self, ranges: list[tuple[int, int]], /) -> None: ...
    def own_pages(self) -> list[tuple[int, int]]: ...
    def private_pages(self) -> list[tuple[int, int]]: ...
    def trim(self) -> int: ...

class Ring:
    def __init__(self, memory: int) -> None: ...
    def close(self) -> None: ...
    def take(self, most: int, /) -> list[tuple[int, int, int, bytes]]: ...
    def put(self, kind: int, stream: int, aux: int, payload: bytes | bytearray | memoryview, /) -> bool: ...
    def room(self) -> int: ...
    def guest_wants_wake(self) -> bool: ...
    def may_sleep(self) -> bool: ...
    def blocked(self) -> None: ...

def probe(kvm: int, /) -> tuple[int, int, int]: ...
def fixed_pages(shim: bytes, landing: int, /) -> bytes: ...
def kvm_check(kvm: int, what: str, number: int = 0, /) -> int: ...
def tsc_khz(kvm: int, /) -> int: ...
def open_pagemap() -> bool: ...
def die_with_parent() -> None: ...
def no_new_privileges() -> None: ...
def seccomp(kill: bool, /) -> None: ...
def landlock(readable: list[str], writable: list[str], /) -> bool: ...

WIRE_ABI: int
GA_LANDING: int
GA_SHIM: int
GA_SHIM_TEXT_END: int
GA_SHIM_DATA: int
GA_SHIM_DATA_END: int
GA_PARAMS: int
GA_CONTROL: int
GA_VDSO: int
GA_VDSO_END: int
GA_STACK: int
GA_STACK_END: int
GA_PROGRAM: int
GA_END: int
GA_RING: int
LANDING_USER: int
LANDING_KERNEL: int
RUN_REQUEST: int
RUN_SLICE: int
RUN_TRAP: int
RUN_MEMORY: int
RUN_BROKEN: int
RUN_ERROR: int
HOST_EXIT: int
HOST_ABORT: int
HOST_IDLE: int
HOST_WRITE: int
HOST_READ: int
HOST_RANDOM: int
HOST_GROW: int
HOST_RELEASE: int
HOST_UNSUPPORTED: int
HOST_CONTROL_READ: int
HOST_CONTROL_WRITE: int
HOST_REST: int
HOST_OPEN: int
HOST_CLOSE: int
HOST_PREAD: int
HOST_PWRITE: int
HOST_STAT: int
HOST_FSTAT: int
HOST_ACCESS: int
HOST_READLINK: int
HOST_GETDENTS: int
HOST_GETCWD: int
HOST_CHDIR: int
HOST_MKDIR: int
HOST_UNLINK: int
HOST_RENAME: int
HOST_TRUNCATE: int
HOST_CHMOD: int
HOST_UTIMES: int
HOST_OP_END: int
HOST_AT_CWD: int
PARAMS_TERMINAL: int
REST_NONE: int
REST_PARK: int
REST_HIBERNATE: int
SYSCALL_COUNTERS: int
RING_BYTES: int
RING_MAX_PAYLOAD: int
RING_RX_WINDOW: int
RING_TX_WINDOW: int
RING_STREAMS: int
RING_TX_SIZE: int
RING_RX_SIZE: int
RING_TX_OFFSET: int
RING_RX_OFFSET: int
FRAME_PAD: int
FRAME_OPEN: int
FRAME_DATA: int
FRAME_FIN: int
FRAME_RESET: int
FRAME_CREDIT: int
FRAME_NAME_QUERY: int
FRAME_NAME_ANSWER: int
CONTROL_CALLS_OFFSET: int
STATE_BYTES: int
