"""A guest's life: programs run, refusals are named, faults are typed, and nothing reaches past its memory and view."""

# ruff: noqa: E501 - programs inside are C and Python of their own

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seamgate_vmm import _kvm
from seamgate_vmm.image import Mount
from seamgate_vmm.outcome import Reason

from .conftest import SMALL, RunC

pytestmark = pytest.mark.kvm

_MAIN = "#include <stdio.h>\n#include <unistd.h>\n#include <sys/syscall.h>\n#include <errno.h>\n#include <string.h>\n"


def test_program_runs(run_c: RunC) -> None:
    """Arguments and environment go in; stdout, stderr and the exit status come back, apart."""
    code = _MAIN + (
        '#include <stdlib.h>\nint main(int n, char **a) { printf("%d %s %s", n, a[1], getenv("KEY"));'
        ' fprintf(stderr, "oh"); return 7; }'
    )
    result = run_c(code, "one two")
    assert (result.out, result.err) == (b"2 one two value", b"oh")
    assert (result.outcome.reason, result.outcome.code) == (Reason.EXITED, 7)


def test_unknown_calls_are_enosys_and_named(run_c: RunC) -> None:
    """A call that guests do not have fails with ENOSYS, and the outcome says which it was, once per call."""
    code = _MAIN + (
        "int main(void) { long a = syscall(SYS_ptrace, 0), b = syscall(SYS_ptrace, 0), c = syscall(SYS_bpf);"
        ' printf("%ld %d", a, errno); return 0; }'
    )
    result = run_c(code)
    assert result.out == b"-1 38"
    assert set(result.outcome.unsupported) == {"ptrace", "bpf"}
    assert result.outcome.unsupported["ptrace"] == 1


def test_odd_call_numbers_are_enosys(run_c: RunC) -> None:
    """Numbers that no kernel has, up to 64 bits wide, are refused like any other, and end nothing."""
    code = _MAIN + (
        "int main(void) { long n[] = {-1, 1023, 1L << 32 | 1, 0x7fffffffffffffff, 600}; int bad = 0;"
        ' for (int i = 0; i < 5; i++) { long r; __asm__ volatile("syscall" : "=a"(r) : "a"(n[i]) : "rcx", "r11",'
        ' "memory"); bad += r != -38; } return bad; }'
    )
    assert run_c(code).outcome.code == 0


def test_fork_and_exec_are_refused(run_c: RunC) -> None:
    """A guest has one process: fork, vfork and execve say so."""
    code = _MAIN + (
        'int main(void) { char *a[] = {"x", 0}; int f = fork(); int fe = errno; execv("/bin/true", a);'
        ' printf("%d %d %d", f, fe, errno); return 0; }'
    )
    result = run_c(code)
    assert result.out == b"-1 38 38"
    assert "execve" in result.outcome.unsupported


_FAULTS = {
    "null pointer": ("*(volatile int *)0 = 1;", Reason.FAULT, "bad address 0x0"),
    "invalid instruction": ('__asm__ volatile("ud2");', Reason.FAULT, "invalid instruction"),
    "int 0x80": ('__asm__ volatile("int $0x80");', Reason.FAULT, ""),
    "privileged instruction": ('__asm__ volatile("hlt");', Reason.FAULT, "protection fault"),
    "page tables": ("*(volatile long *)0x1000 = 7;", Reason.FAULT, "bad address 0x1000"),
    "descriptor table": ("*(volatile long *)0x6010 = 7;", Reason.FAULT, "bad address 0x6010"),
    "trap code": ("*(volatile long *)0x9000 = 7;", Reason.FAULT, "bad address 0x9000"),
    "shim code is read-only": ("*(volatile long *)0x10040 = 7;", Reason.FAULT, "bad address 0x10040"),
    "parameters are read-only": ("*(volatile long *)0xb0000 = 7;", Reason.FAULT, "bad address 0xb0000"),
    "executing data": ("((void (*)(void))0xc0000)();", Reason.FAULT, "bad address 0xc0000"),
    "below the stack": ("*(volatile long *)0x1ff000 = 7;", Reason.FAULT, "bad address 0x1ff000"),
    "beyond memory": ("*(volatile long *)0x3000000 = 7;", Reason.OUT_OF_MEMORY_RANGE, "0x3000000"),
    "no ring": ("*(volatile long *)0x40000000 = 7;", Reason.OUT_OF_MEMORY_RANGE, "0x40000000"),
    "kernel half": ("*(volatile long *)0xffff800000000000 = 7;", Reason.FAULT, ""),
    "end of addresses": ("*(volatile long *)0x7fffffff0000 = 7;", Reason.FAULT, "bad address"),
}


@pytest.mark.parametrize("name", _FAULTS)
def test_faults_have_types(run_c: RunC, name: str) -> None:
    """A guest that faults is ended with a reason that says what it did, and an exit status of 70."""
    statement, reason, text = _FAULTS[name]
    result = run_c(_MAIN + f'int main(void) {{ write(1, "in", 2); {statement} write(1, "still", 5); return 0; }}')
    assert result.out == b"in"
    assert result.outcome.reason is reason
    assert result.outcome.code == 70
    assert text in result.outcome.detail


def test_stack_overflow_is_a_fault(run_c: RunC) -> None:
    """Endless recursion hits the unmapped page below the stack, not the shim."""
    result = run_c(
        "int f(volatile int *p) { volatile int a[999]; a[0] = *p; return f(a) + a[0]; } int main(void) { int x = 1; return f(&x); }"
    )
    assert result.outcome.reason is Reason.FAULT
    assert "bad address 0x1ff" in result.outcome.detail


def test_bad_pointers_are_efault(run_c: RunC) -> None:
    """A call with a pointer outside the program's memory gives EFAULT; no such pointer is ever followed."""
    code = (
        _MAIN
        + r"""
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
int main(void) {
    void *bad[] = {0, (void *)8, (void *)0x1000, (void *)0x10000, (void *)0xb0000, (void *)0x40000000,
                   (void *)0x3f000000, (void *)-8, (void *)0xffff800000000000, (void *)(1L << 47)};
    int wrong = 0;
    for (int i = 0; i < 10; i++) {
        errno = 0; wrong += !(syscall(SYS_write, 1, bad[i], 64) == -1 && errno == EFAULT);
        errno = 0; wrong += !(syscall(SYS_getrandom, bad[i], 64, 0) == -1 && errno == EFAULT);
        errno = 0; wrong += !(syscall(SYS_open, bad[i], 0) == -1 && errno == EFAULT);
        errno = 0; wrong += !(syscall(SYS_fstat, 1, bad[i]) == -1 && errno == EFAULT);
        errno = 0; wrong += !(syscall(SYS_pipe2, bad[i], 0) == -1 && errno == EFAULT);
        errno = 0; wrong += !(syscall(SYS_poll, bad[i], 1, 0) == -1 && errno == EFAULT);
        errno = 0; wrong += !(syscall(SYS_clock_gettime, 1, bad[i]) == -1 && errno == EFAULT);
        errno = 0; wrong += !(syscall(SYS_futex, bad[i], 0, 0, 0, 0, 0) == -1 && errno == EFAULT);
        errno = 0; wrong += !(syscall(SYS_getcwd, bad[i], 64) == -1 && errno == EFAULT);
    }
    int fd = open("/etc/hosts", O_RDONLY);
    for (int i = 0; i < 10; i++) { errno = 0; wrong += !(syscall(SYS_read, fd, bad[i], 64) == -1 && errno == EFAULT); }
    wrong += !(syscall(SYS_write, 1, main, 1UL << 40) == -1 && errno == EFAULT);
    return wrong;
}
"""
    )
    assert run_c(code).outcome.code == 0


def test_registers_flags_and_red_zone_survive_calls(run_c: RunC) -> None:
    """Across a call only rax, rcx and r11 change: the others, xmm0-15, carry and direction flags and the red zone stay."""
    code = r"""
typedef unsigned long u64;
u64 in[9], out[9], flags, sp_in, sp_out, red, nr; unsigned char x_in[256], x_out[256]; char buffer[512];
void __attribute__((noinline, naked)) probe(void) {
    __asm__ volatile(
        "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov in+0, %rbx\n mov in+8, %rbp\n mov in+16, %r12\n mov in+24, %r13\n mov in+32, %r14\n mov in+40, %r15\n"
        "mov in+48, %r8\n mov in+56, %r9\n mov in+64, %r10\n mov $buffer, %edi\n mov $buffer, %esi\n mov $64, %edx\n"
        "mov nr, %rax\n"
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n movdqu x_in+16*\\n, %xmm\\n\n .endr\n"
        "mov %rsp, sp_in\n movq $0x5eed, -120(%rsp)\n stc\n std\n syscall\n"
        "pushfq\n popq flags\n cld\n mov %rsp, sp_out\n mov -120(%rsp), %rax\n mov %rax, red\n"
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n movdqu %xmm\\n, x_out+16*\\n\n .endr\n"
        "mov %rbx, out+0\n mov %rbp, out+8\n mov %r12, out+16\n mov %r13, out+24\n mov %r14, out+32\n mov %r15, out+40\n"
        "mov %r8, out+48\n mov %r9, out+56\n mov %r10, out+64\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");
}
int main(void) {
    int calls[] = {39, 186, 24, 228, 500, 96, 63, 99}, wrong = 0;
    for (unsigned c = 0; c < sizeof calls / sizeof *calls; c++) {
        nr = calls[c];
        for (int i = 0; i < 9; i++) in[i] = 0x1111111111111111UL * (i + 1) + c;
        for (int i = 0; i < 256; i++) x_in[i] = i * 7 + c;
        probe();
        for (int i = 0; i < 9; i++) wrong += in[i] != out[i];
        for (int i = 0; i < 256; i++) wrong += x_in[i] != x_out[i];
        wrong += sp_in != sp_out; wrong += red != 0x5eed; wrong += !(flags & 1); wrong += !(flags & 0x400);
    }
    return wrong;
}
"""
    assert run_c(code).outcome.code == 0


def test_calls_made_at_run_time_are_caught(run_c: RunC) -> None:
    """Bytes of `syscall` that did not exist when the program was loaded land in the shim too."""
    code = (
        _MAIN
        + r"""
#include <sys/mman.h>
int main(void) {
    unsigned char code[] = {0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3};
    unsigned char *p = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(p, code, sizeof code);
    return ((int (*)(void))p)() == getpid() ? 0 : 1;
}
"""
    )
    assert run_c(code).outcome.code == 0


def test_memory_reads_as_zero(run_c: RunC) -> None:
    """Fresh, freed and reused memory reads as zero: mmap, brk, mremap and MADV_DONTNEED."""
    code = (
        _MAIN
        + r"""
#define _GNU_SOURCE
#include <sys/mman.h>
static int dirty(unsigned char *p, long n) { for (long i = 0; i < n; i++) if (p[i]) return 1; return 0; }
int main(void) {
    long sizes[] = {4096, 40960, 1 << 20, 300000};
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 4; i++) {
            unsigned char *p = mmap(0, sizes[i], 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p == MAP_FAILED || dirty(p, sizes[i])) return 1;
            memset(p, 0xaa, sizes[i]);
            if (madvise(p, 4096, MADV_DONTNEED) || dirty(p, 4096)) return 2;
            if (munmap(p, sizes[i])) return 3;
        }
    char *b = sbrk(0);
    if (brk(b + 20000)) return 4;
    memset(b, 0xaa, 20000);
    brk(b + 100); brk(b + 20000);
    return dirty(b + 100, 19900) ? 5 : 0;
}
"""
    )
    assert run_c(code).outcome.code == 0


def test_memory_grows_to_its_limit_and_no_further(run_c: RunC) -> None:
    """A guest gets more memory on demand; at its limit it gets ENOMEM and goes on."""
    code = (
        _MAIN
        + r"""
#include <sys/mman.h>
int main(void) {
    int n = 0; char *p;
    while (n < 200 && (p = mmap(0, 1 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED) { *p = 1; n++; }
    printf("%d %d", n, errno);
    return 0;
}
"""
    )
    result = run_c(code)
    count, number = map(int, result.text.split())
    assert 40 <= count < 64
    assert number == 12


def test_a_spinning_guest_is_ended(run_c: RunC) -> None:
    """A guest that makes no call at all is stopped at its CPU limit."""
    result = run_c("int main(void) { for (volatile int i = 0;; i++); }", limits=replace(SMALL, cpu_s=0.2))
    assert result.outcome.reason is Reason.CPU_LIMIT
    assert result.outcome.cpu_s < 2


def test_a_guest_that_only_asks_is_ended(run_c: RunC) -> None:
    """What answering a guest costs is counted as its own CPU time."""
    code = _MAIN + 'int main(void) { struct { long s[20]; } b; for (;;) syscall(SYS_stat, "/etc/hosts", &b); }'
    result = run_c(code, limits=replace(SMALL, cpu_s=0.3))
    assert result.outcome.reason is Reason.CPU_LIMIT


def test_a_guest_that_floods_its_output_is_ended(run_c: RunC) -> None:
    """Output over the limit ends the guest with that reason."""
    code = _MAIN + "int main(void) { static char b[4096]; for (;;) write(1, b, sizeof b); }"
    assert run_c(code, limits=replace(SMALL, output_bytes=100_000)).outcome.reason is Reason.OUTPUT_LIMIT


def test_a_deadlock_is_told(run_c: RunC) -> None:
    """A guest in which nothing can ever happen again is ended at once, not left to hang."""
    code = _MAIN + "int main(void) { int p[2]; char c; pipe(p); read(p[0], &c, 1); return 0; }"
    assert run_c(code).outcome.reason is Reason.DEADLOCK


def test_abort_is_told(run_c: RunC) -> None:
    """abort() ends a guest as a shell sees it: 128 + SIGABRT."""
    result = run_c("#include <stdlib.h>\nint main(void) { abort(); }")
    assert (result.outcome.reason, result.outcome.code) == (Reason.SIGNALLED, 134)


def test_impossible_requests_end_the_guest(run_c: RunC) -> None:
    """A guest that writes its own requests to the host is ended when no shim would have sent them."""
    code = 'int main(void) { *(volatile long *)0xc0000 = 4711; __asm__ volatile("outb %al, $0x80"); return 0; }'
    result = run_c(code)
    assert result.outcome.reason is Reason.BAD_REQUEST
    code = 'int main(void) { __asm__ volatile("outb %al, $0x81"); return 0; }'
    assert run_c(code).outcome.reason is Reason.FAULT
    code = 'int main(void) { __asm__ volatile("outb %al, $0x99"); return 0; }'
    assert run_c(code).outcome.reason is Reason.MACHINE_FAILED


def test_forged_requests_stay_in_bounds(run_c: RunC) -> None:
    """Requests with addresses and lengths of all kinds never reach past the guest's memory: they give EFAULT."""
    code = r"""
typedef unsigned long u64;
int main(void) {
    volatile u64 *r = (u64 *)0xc0000;
    u64 addresses[] = {0, 0x1000, 0x6000, 0x10000, 0xb0000, 0xfffff000, 0x1000000, -4096, 1UL << 63};
    u64 lengths[] = {1, 4096, 1UL << 24, 1UL << 40, -1UL};
    int wrong = 0;
    for (int a = 0; a < 9; a++)
        for (int l = 0; l < 5; l++) {
            r[0] = HOST_RANDOM; r[1] = addresses[a]; r[2] = lengths[l];
            __asm__ volatile("outb %%al, $0x80" ::: "memory");
            if ((long)r[7] >= 0 && addresses[a] != 0x1000000) wrong++;
        }
    return wrong;
}
"""
    assert run_c(f"#define HOST_RANDOM {_kvm.HOST_RANDOM}\n{code}").outcome.code == 0


def test_the_view_is_read_only_and_scratch_is_not(run_c: RunC, tmp_path: Path) -> None:
    """Files of the view can be read and not changed; scratch can be written; nothing else of the host is there."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "data.txt").write_text("hello")
    (folder / "out").symlink_to("/etc/shadow")
    (folder / "in").symlink_to("data.txt")
    code = (
        _MAIN
        + r"""
#include <fcntl.h>
#include <sys/stat.h>
static int try(const char *p, int flags) { int fd = open(p, flags, 0644); return fd < 0 ? -errno : 0; }
int main(int n, char **a) {
    char path[4096], b[64] = {0};
    chdir(a[1]);
    int fd = open("in", O_RDONLY); read(fd, b, 64); printf("%s ", b);
    printf("%d %d %d ", try("data.txt", O_WRONLY), try("new", O_CREAT | O_WRONLY), try("out", O_RDONLY));
    printf("%d %d %d ", try("/etc/shadow", O_RDONLY), try("/root", O_RDONLY), try("../../../../etc/shadow", O_RDONLY));
    printf("%d %d %d ", unlink("data.txt") ? -errno : 0, mkdir("d", 0755) ? -errno : 0, rename("data.txt", "/tmp/x") ? -errno : 0);
    printf("%d ", try("/tmp/f", O_CREAT | O_WRONLY));
    printf("%d ", try("/tmp/../tmp/./f", O_RDONLY));
    printf("%d", symlink("/etc/shadow", "/tmp/l") ? -errno : 0);
    return 0;
}
"""
    )
    result = run_c(code, str(folder), mounts=[Mount(str(folder), str(folder))])
    assert result.text == "hello -30 -30 -2 -2 -2 -2 -30 -30 -30 0 0 -38"
    assert (folder / "data.txt").read_text() == "hello"


def test_scratch_has_a_quota(run_c: RunC) -> None:
    """Bytes and files over the limits are ENOSPC; what is deleted counts no more."""
    code = (
        _MAIN
        + r"""
#include <fcntl.h>
int main(void) {
    static char b[65536]; char name[32]; int made = 0; long total = 0, n;
    for (int i = 0; i < 40; i++) { sprintf(name, "/tmp/f%d", i); int fd = open(name, O_CREAT | O_WRONLY, 0600); if (fd < 0) break; close(fd); made++; }
    int first = errno, fd = open("/tmp/f0", O_WRONLY);
    while ((n = write(fd, b, sizeof b)) > 0) total += n;
    int second = errno; close(fd);
    errno = 0; ftruncate(open("/tmp/f1", O_WRONLY), 1 << 24); int third = errno;
    unlink("/tmp/f0"); fd = open("/tmp/f1", O_WRONLY);
    printf("%d %d %ld %d %d %ld", made, first, total, second, third, write(fd, b, sizeof b));
    return 0;
}
"""
    )
    assert run_c(code).text == "16 28 1048576 28 28 65536"


def test_room_comes_back_only_with_what_is_gone(run_c: RunC) -> None:
    """A rename or an unlink that fails gives nothing back; one that replaces a file, or an empty folder, does so once."""
    code = (
        _MAIN
        + r"""
#include <fcntl.h>
#include <sys/stat.h>
static char b[65536];
static long fill(const char *name) {
    int fd = open(name, O_CREAT | O_WRONLY, 0600); long total = 0, n;
    while ((n = write(fd, b, sizeof b)) > 0) total += n;
    close(fd);
    return total;
}
int main(void) {
    long first = fill("/tmp/a");
    chdir("/tmp"); mkdir("d", 0700); mkdir("e", 0700);
    close(open("e/in", O_CREAT | O_WRONLY, 0600));
    int to_file = rename("/tmp/d", "/tmp/a") ? errno : 0, to_folder = rename("/tmp/a", "/tmp/d") ? errno : 0;
    int to_full = rename("/tmp/d", "/tmp/e") ? errno : 0, away = unlink("/tmp/d") ? errno : 0, same = rename("/tmp/a", "/tmp/a");
    long more = fill("/tmp/b");
    int replaced = rename("/tmp/b", "/tmp/a");
    long again = fill("/tmp/c");
    mkdir("/tmp/g", 0700); int made = 0, put = rename("/tmp/d", "/tmp/g"); char name[32];
    for (int i = 0; i < 40; i++) { sprintf(name, "/tmp/f%d", i); int fd = open(name, O_CREAT | O_WRONLY, 0600); if (fd < 0) break; close(fd); made++; }
    printf("%ld %d %d %d %d %d %ld %d %ld %d %d", first, to_file, to_folder, to_full, away, same, more, replaced, again, put, made);
    return 0;
}
"""
    )
    # Of 16 files there are then a, c, e, e/in and g.
    assert run_c(code).text == "1048576 20 21 39 21 0 0 0 1048576 0 11"
