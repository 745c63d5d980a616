/* The table of system calls, and those that are answered with a constant. What is not here is ENOSYS, reported once. */
#include "shim.h"

i64 shim_dispatch(struct thread *t);
void shim_syscall(void);

static u8 reported[SYSCALL_COUNTERS / 8];
static u64 mode_mask = 022;

/* Returns the mask before. */
static i64 sys_umask(u64 mask)
{
    u64 before = mode_mask;
    mode_mask = mask & 0777;
    return (i64)before;
}

/* Returns -ENOSYS, after telling the host the first time. */
static i64 unknown(u64 number)
{
    if (number >= SYSCALL_COUNTERS || !(reported[number / 8] >> number % 8 & 1)) {
        if (number < SYSCALL_COUNTERS)
            reported[number / 8] |= (u8)(1u << number % 8);
        host(HOST_UNSUPPORTED, number, 0, 0, 0, 0, 0);
    }
    return -ENOSYS_;
}

static u64 poll_deadline_ms(const struct thread *t, u64 timeout)
{
    if (t->waiting)
        return t->deadline;
    i64 ms = (int)timeout;
    return ms < 0 ? NEVER : ms == 0 ? 0 : now_ns() + (u64)ms * 1000000;
}

/* Returns the deadline that a struct timespec (unit 1) or timeval (unit 1000) at `address` means; 1 if it is bad. */
static u64 poll_deadline(const struct thread *t, u64 address, u64 unit)
{
    if (t->waiting)
        return t->deadline;
    if (!address)
        return NEVER;
    if (!user_range(address, 16))
        return 1;
    const i64 *ts = (const i64 *)address;
    if (ts[0] < 0 || ts[1] < 0 || (u64)ts[1] >= NS_PER_S / unit)
        return 1;
    u64 ns = least((u64)ts[0], 1000000000) * NS_PER_S + (u64)ts[1] * unit;
    return ns ? now_ns() + ns : 0;
}

static i64 write_words(u64 address, const u64 *words, u64 n)
{
    if (!user_range(address, n * 8))
        return -EFAULT_;
    copy((void *)address, words, n * 8);
    return 0;
}

static i64 sys_clock_gettime(u64 clock, u64 out)
{
    u64 ns = now_ns();
    if ((i64)clock > 11)
        return -EINVAL_;
    if (clock == 0 || clock == 5 || clock == 11)
        ns += PARAMS->wall_offset_ns;
    if (clock == 2 || clock == 3) /* PROCESS_CPUTIME_ID, THREAD_CPUTIME_ID */
        ns = cpu_time_ns(clock);
    u64 ts[2] = {ns / NS_PER_S, ns % NS_PER_S};
    return write_words(out, ts, 2);
}

static i64 sys_prlimit(u64 resource, u64 out)
{
    if (!out)
        return 0;
    u64 limit[2] = {~0UL, ~0UL};
    if (resource == 3) /* RLIMIT_STACK: what glibc gives a new thread */
        limit[0] = 1 << 20;
    if (resource == 7) /* RLIMIT_NOFILE */
        limit[0] = limit[1] = FDS;
    if (resource == 9) /* RLIMIT_AS */
        limit[0] = limit[1] = GA_END;
    return write_words(out, limit, 2);
}

static i64 sys_uname(u64 out)
{
    static const char fields[6][24] = {"Linux", "seamgate", "6.1.0-seamgate", "#1 shim", "x86_64", "(none)"};
    if (!user_range(out, 6 * 65))
        return -EFAULT_;
    clear((void *)out, 6 * 65);
    for (u64 i = 0; i < 6; i++)
        copy((void *)(out + i * 65), fields[i], sizeof fields[i]);
    return 0;
}

static i64 sys_sysinfo(u64 out)
{
    u64 info[14] = {0}; /* uptime, loads[3], total, free, shared, buffer, swap.., procs, high.., unit */
    info[0] = now_ns() / NS_PER_S;
    info[4] = memory_total();
    info[5] = memory_free();
    info[10] = 1;
    info[13] = 1;
    return write_words(out, info, 14);
}

static i64 sys_getrusage(u64 out)
{
    u64 usage[18] = {0}, ns = cpu_time_ns(2);
    usage[0] = ns / NS_PER_S;
    usage[1] = ns % NS_PER_S / 1000;
    return write_words(out, usage, 18);
}

static i64 sys_times(u64 out)
{
    u64 ticks = now_ns() / 10000000, tms[4] = {cpu_time_ns(2) / 10000000, 0, 0, 0};
    if (out && write_words(out, tms, 4))
        return -EFAULT_;
    return (i64)ticks;
}

static i64 sys_affinity(u64 length, u64 out)
{
    u64 one = 1;
    if (length < 8)
        return -EINVAL_;
    return write_words(out, &one, 1) ? -EFAULT_ : 8;
}

static i64 sys_getrandom(u64 address, u64 length)
{
    if (length && !user_range(address, length))
        return -EFAULT_;
    return length ? host(HOST_RANDOM, address, least(length, 1 << 20), 0, 0, 0, 0) : 0;
}

static i64 sys_prctl(u64 option, u64 argument)
{
    static char name[16] = "seamgate";
    if (option == 15 || option == 16) { /* PR_SET_NAME, PR_GET_NAME */
        if (!user_range(argument, 16))
            return -EFAULT_;
        copy(option == 15 ? (void *)name : (void *)argument, option == 15 ? (const void *)argument : name, 16);
        return 0;
    }
    return -EINVAL_;
}

static i64 sys_read_write(struct thread *t, u64 fd, u64 address, u64 length, int write)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    if (length && !user_range(address, length))
        return -EFAULT_;
    return write ? file_write(t, f, address, length) : file_read(t, f, address, length);
}

static i64 sys_pselect(struct thread *t, u64 a[6], u64 unit)
{
    u64 deadline = poll_deadline(t, a[4], unit);
    return deadline == 1 ? -EINVAL_ : sys_select(t, a[0], a + 1, deadline);
}

static i64 sys_sendfile(struct thread *t, u64 a[6])
{
    (void)t;
    (void)a;
    return -EINVAL_; /* Python falls back to read and send */
}

static i64 rename_call(u64 from_directory, u64 from, u64 to_directory, u64 to)
{
    u64 n = length_of(from), m = length_of(to);
    if (n > 4095 || m > 4095)
        return -EFAULT_;
    return host(HOST_RENAME, directory_handle(from_directory), from, n, directory_handle(to_directory), to, m);
}

static i64 sys_getcwd(u64 address, u64 length)
{
    return user_range(address, length) ? host(HOST_GETCWD, address, length, 0, 0, 0, 0) : -EFAULT_;
}

static i64 readlink_call(u64 directory, u64 path, u64 out, u64 length)
{
    return user_range(out, length) ? path_call(HOST_READLINK, directory, path, out, length) : -EFAULT_;
}

static i64 clock_getres(u64 out)
{
    u64 ts[2] = {0, 1};
    return out ? write_words(out, ts, 2) : 0;
}

#define AT_CWD ((u64)HOST_AT_CWD)

/* Returns what the call at rax of `t` returns, or BLOCKED. */
i64 shim_dispatch(struct thread *t)
{
    u64 n = t->regs.rax;
    u64 a[6] = {t->regs.rdi, t->regs.rsi, t->regs.rdx, t->regs.r10, t->regs.r8, t->regs.r9};
    switch (n) {
    /* files and descriptors */
    case 0: return sys_read_write(t, a[0], a[1], a[2], 0);
    case 1: return sys_read_write(t, a[0], a[1], a[2], 1);
    case 2: return sys_openat(AT_CWD, a[0], a[1], a[2] & ~mode_mask);
    case 3: return sys_close(a[0]);
    case 4: return sys_fstatat(AT_CWD, a[0], a[1], 0);
    case 5: return sys_fstatat(a[0], 0, a[1], 0);
    case 6: return sys_fstatat(AT_CWD, a[0], a[1], 0x100);
    case 8: return sys_lseek(a[0], (i64)a[1], a[2]);
    case 16: return sys_ioctl(a[0], a[1], a[2]);
    case 17: return sys_pread(a[0], a[1], a[2], a[3], 0);
    case 18: return sys_pread(a[0], a[1], a[2], a[3], 1);
    case 19: return sys_vector(t, a[0], a[1], a[2], 0, -1);
    case 20: return sys_vector(t, a[0], a[1], a[2], 1, -1);
    case 295: return sys_vector(t, a[0], a[1], a[2], 0, (i64)a[3]);
    case 296: return sys_vector(t, a[0], a[1], a[2], 1, (i64)a[3]);
    case 21: return path_call(HOST_ACCESS, AT_CWD, a[0], a[1], 0);
    case 269: case 439: return path_call(HOST_ACCESS, a[0], a[1], a[2], 0);
    case 32: return sys_dup(a[0], 0, 0);
    case 33: return sys_dup3(a[0], a[1], ~0UL);
    case 292: return sys_dup3(a[0], a[1], a[2]);
    case 40: return sys_sendfile(t, a);
    case 72: return sys_fcntl(a[0], a[1], a[2]);
    case 73: return file_of(a[0]) ? 0 : -EBADF_; /* flock: no other process */
    case 74: case 75: return file_of(a[0]) ? 0 : -EBADF_; /* fsync, fdatasync: scratch lives as long as the guest */
    case 77: return sys_ftruncate(a[0], a[1]);
    case 79: return sys_getcwd(a[0], a[1]);
    case 80: return path_call(HOST_CHDIR, AT_CWD, a[0], 0, 0);
    case 81: return sys_fchdir(a[0]);
    case 82: return rename_call(AT_CWD, a[0], AT_CWD, a[1]);
    case 264: case 316: return rename_call(a[0], a[1], a[2], a[3]);
    case 83: return path_call(HOST_MKDIR, AT_CWD, a[0], a[1] & ~mode_mask, 0);
    case 258: return path_call(HOST_MKDIR, a[0], a[1], a[2] & ~mode_mask, 0);
    case 84: return path_call(HOST_UNLINK, AT_CWD, a[0], 0x200, 0);
    case 87: return path_call(HOST_UNLINK, AT_CWD, a[0], 0, 0);
    case 263: return path_call(HOST_UNLINK, a[0], a[1], a[2], 0);
    case 89: return readlink_call(AT_CWD, a[0], a[1], a[2]);
    case 267: return readlink_call(a[0], a[1], a[2], a[3]);
    case 90: return path_call(HOST_CHMOD, AT_CWD, a[0], a[1], 0);
    case 268: case 452: return path_call(HOST_CHMOD, a[0], a[1], a[2], 0);
    case 91: case 93: return file_of(a[0]) ? 0 : -EBADF_; /* fchmod, fchown: one user */
    case 95: return sys_umask(a[0]);
    case 217: return sys_getdents(a[0], a[1], a[2]);
    case 221: return file_of(a[0]) ? 0 : -EBADF_; /* fadvise64 */
    case 257: return sys_openat(a[0], a[1], a[2], a[3] & ~mode_mask);
    case 262: return sys_fstatat(a[0], a[1], a[2], a[3]);
    case 280: return sys_utimensat(a[0], a[1], a[2]);
    /* memory */
    case 9: return sys_mmap(a[0], a[1], a[2], a[3], a[4], a[5]);
    case 10: return sys_mprotect(a[0], a[1]);
    case 11: return sys_munmap(a[0], a[1]);
    case 12: return sys_brk(a[0]);
    case 25: return sys_mremap(a[0], a[1], a[2], a[3], a[4]);
    case 28: return sys_madvise(a[0], a[1], a[2]);
    case 149: case 150: case 151: case 152: return 0; /* mlock and kin: nothing is swapped */
    /* threads, time, signals */
    case 35: return sys_nanosleep(t, a[0], 1, 0);
    case 230: return sys_nanosleep(t, a[2], (int)a[0], (int)a[1] & 1);
    case 36: return -EINVAL_; /* getitimer */
    case 37: return sys_alarm(a[0]);
    case 38: return sys_setitimer(a[0], a[1], a[2]);
    case 56: return sys_clone(t, a[0], a[1], a[2], a[3], a[4]);
    case 57: case 58: return sys_clone(t, 0, 0, 0, 0, 0);
    case 435: return sys_clone3(t, a[0], a[1]);
    case 60: return sys_exit_thread(t, (i64)a[0]);
    case 231: return host(HOST_EXIT, a[0] & 0xff, 0, 0, 0, 0, 0);
    case 61: case 247: return -ECHILD_; /* wait4, waitid */
    case 62: return sys_kill(t, a[1]);
    case 200: return sys_kill(t, a[1]);
    case 234: return sys_kill(t, a[2]);
    case 13: return sys_sigaction(a[0], a[1], a[2]);
    case 14: return sys_sigprocmask(t, a[0], a[1], a[2]);
    case 15: return sys_sigreturn(t);
    case 131: return 0; /* sigaltstack: handlers run on the thread's stack */
    case 34: return park(t, NEVER) ? BLOCKED : 0; /* pause */
    case 96: { u64 ns = now_ns() + PARAMS->wall_offset_ns, tv[2] = {ns / NS_PER_S, ns % NS_PER_S / 1000};
               return a[0] ? write_words(a[0], tv, 2) : 0; }
    case 201: return (i64)((now_ns() + PARAMS->wall_offset_ns) / NS_PER_S);
    case 228: return sys_clock_gettime(a[0], a[1]);
    case 229: return clock_getres(a[1]);
    case 158: return sys_arch_prctl(a[0], a[1]);
    case 157: return sys_prctl(a[0], a[1]);
    case 186: return t->tid;
    case 202: return sys_futex(t, a[0], a[1], a[2], a[3], a[4], a[5]);
    case 204: return sys_affinity(a[1], a[2]);
    case 203: return 0;
    case 218: t->clear_tid = a[0]; return t->tid;
    case 273: return 0; /* set_robust_list: no shared futexes */
    case 334: return -ENOSYS_; /* rseq: glibc does without; not worth a report */
    case 324: return a[0] == 0 ? 0 : -EINVAL_; /* membarrier: nothing to fence */
    /* identity and limits */
    case 39: return (i64)PARAMS->pid;
    case 110: return 1;
    case 102: case 104: case 107: case 108: return 1000;
    case 111: case 121: case 124: return (i64)PARAMS->pid;
    case 115: return 0;
    case 63: return sys_uname(a[0]);
    case 97: return sys_prlimit(a[0], a[1]);
    case 302: return sys_prlimit(a[1], a[3]);
    case 98: return sys_getrusage(a[1]);
    case 99: return sys_sysinfo(a[0]);
    case 100: return sys_times(a[0]);
    case 318: return sys_getrandom(a[0], a[1]);
    /* pipes, events, polling */
    case 7: return sys_poll(t, a[0], a[1], poll_deadline_ms(t, a[2]));
    case 271: { u64 d = poll_deadline(t, a[2], 1); return d == 1 ? -EINVAL_ : sys_poll(t, a[0], a[1], d); }
    case 23: return sys_pselect(t, a, 1000);
    case 270: return sys_pselect(t, a, 1);
    case 22: return sys_pipe2(a[0], 0);
    case 293: return sys_pipe2(a[0], a[1]);
    case 284: return sys_eventfd(a[0], 0);
    case 290: return sys_eventfd(a[0], a[1]);
    case 213: return sys_epoll_create(0);
    case 291: return sys_epoll_create(a[0]);
    case 233: return sys_epoll_ctl(a[0], a[1], a[2], a[3]);
    case 232: case 281: return sys_epoll_wait(t, a[0], a[1], (int)a[2], poll_deadline_ms(t, a[3]));
    case 441: { u64 d = poll_deadline(t, a[3], 1);
                return d == 1 ? -EINVAL_ : sys_epoll_wait(t, a[0], a[1], (int)a[2], d); }
    /* sockets */
    case 41: return sys_socket(a[0], a[1], a[2]);
    case 42: return sys_connect(t, a[0], a[1], a[2]);
    case 44: return sys_sendto(t, a[0], a[1], a[2], a[3], a[4], a[5]);
    case 45: return sys_recvfrom(t, a[0], a[1], a[2], a[3], a[4], a[5]);
    case 46: return sys_sendmsg(t, a[0], a[1], a[2]);
    case 47: return sys_recvmsg(t, a[0], a[1], a[2]);
    case 307: return sys_sendmmsg(t, a[0], a[1], a[2], a[3]);
    case 48: return sys_shutdown(a[0], a[1]);
    case 49: case 50: case 43: case 288: /* bind, listen, accept, accept4 */
        unknown(n);
        return -EOPNOTSUPP_;
    case 51: return sys_getname(a[0], a[1], a[2], 0);
    case 52: return sys_getname(a[0], a[1], a[2], 1);
    case 53: return sys_socketpair(a[0], a[1], a[3]);
    case 54: return sys_setsockopt(a[0], a[1], a[2]);
    case 55: return sys_getsockopt(a[0], a[1], a[2], a[3], a[4]);
    }
    return unknown(n);
}

/* From entry.S: the registers of the caller are in *current. On return `current` is the thread to resume. */
void shim_syscall(void)
{
    struct thread *t = current;
    u64 number = t->regs.rax;
    if (number < SYSCALL_COUNTERS)
        CONTROL->calls[number]++;
    if (number == 24) { /* sched_yield: stays ready, goes to the end of the line */
        t->regs.rax = 0;
        schedule();
    } else {
        i64 result = shim_dispatch(t);
        if (result == BLOCKED)
            schedule();
        else {
            t->regs.rax = (u64)result;
            t->waiting = 0;
            yield_if_asked();
        }
    }
    deliver_signals(current);
}
