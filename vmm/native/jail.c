/* Source: Documentation/userspace-api/{no_new_privs,seccomp_filter,landlock}.rst */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns 0, or -1 with errno. */
int jail_no_new_privileges(void) { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); }

/* Returns 0 with SIGKILL to come when the parent ends, or -1 with errno. */
int jail_die_with_parent(void) { return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); }

static int drop_bounding_set(void)
{
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0))
            return -1;
    return 0;
}

/* Returns 0 as another user without groups, or -1 with errno. Of root's privileges one is kept: to read files that other
 * users may not (the program's folder may be root's), of which Landlock then leaves the view's.
 * Source: capabilities(7), "Effect of user ID changes on capabilities"; the sizes of capset(2) are those of version 3. */
int jail_become(uid_t uid)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {{0}, {0}};
    sets[0].permitted = sets[0].effective = 1u << CAP_DAC_READ_SEARCH;
    if (drop_bounding_set() || prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) || setgroups(0, NULL) || setresgid(uid, uid, uid) ||
        setresuid(uid, uid, uid))
        return -1;
    if (syscall(SYS_capset, &head, sets) || prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0))
        return -1;
    return getuid() == uid && geteuid() == uid && getgid() == uid ? 0 : -1;
}

/* ---- Landlock. The numbers are spelled out: Debian 12's headers know ABI 2 only. */
#define LL_EXECUTE (1ULL << 0)
#define LL_WRITE_FILE (1ULL << 1)
#define LL_READ_FILE (1ULL << 2)
#define LL_READ_DIR (1ULL << 3)
#define LL_REFER (1ULL << 13)
#define LL_TRUNCATE (1ULL << 14)
#define LL_ALL_V1 ((1ULL << 13) - 1)

struct ruleset_attr { uint64_t handled_access_fs, handled_access_net, scoped; };
struct path_beneath { uint64_t allowed_access; int32_t parent_fd; } __attribute__((packed));

static int allow_path(int ruleset, const char *path, uint64_t access)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    struct stat s;
    if (fd < 0)
        return errno == ENOENT ? 0 : -1; /* what is not there needs no leave */
    if (fstat(fd, &s) == 0 && !S_ISDIR(s.st_mode))
        access &= LL_EXECUTE | LL_WRITE_FILE | LL_READ_FILE | LL_TRUNCATE;
    struct path_beneath rule = {.allowed_access = access, .parent_fd = fd};
    int result = (int)syscall(SYS_landlock_add_rule, ruleset, 1, &rule, 0);
    close(fd);
    return result;
}

/* Returns 1 if only the named paths can be reached from now on, 0 if this kernel has no Landlock, -1 with errno. */
int jail_landlock(const char *const *readable, size_t n_readable, const char *const *writable, size_t n_writable)
{
    int abi = (int)syscall(SYS_landlock_create_ruleset, NULL, 0, 1);
    if (abi < 1)
        return 0;
    uint64_t write = LL_ALL_V1 & ~LL_EXECUTE;
    struct ruleset_attr attr = {.handled_access_fs = LL_ALL_V1};
    if (abi >= 2)
        attr.handled_access_fs |= LL_REFER, write |= LL_REFER;
    if (abi >= 3)
        attr.handled_access_fs |= LL_TRUNCATE, write |= LL_TRUNCATE;
    if (abi >= 4)
        attr.handled_access_net = 3; /* bind and connect: nowhere */
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, abi >= 6 ? 24 : abi >= 4 ? 16 : 8, 0);
    if (ruleset < 0)
        return -1;
    int result = 1;
    for (size_t i = 0; i < n_readable && result == 1; i++)
        if (allow_path(ruleset, readable[i], LL_READ_FILE | LL_READ_DIR))
            result = -1;
    for (size_t i = 0; i < n_writable && result == 1; i++)
        if (allow_path(ruleset, writable[i], write))
            result = -1;
    if (result == 1 && syscall(SYS_landlock_restrict_self, ruleset, 0))
        result = -1;
    int saved = errno;
    close(ruleset);
    errno = saved;
    return result;
}

/* ---- seccomp: an allow-list. No socket, connect, clone, fork, execve, ptrace, mount, or any executable mapping. */
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define PERMIT(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), ALLOW

/* Returns 0 with the filter on for every thread; denied calls end the process if `kill`, else give EPERM. */
int jail_seccomp(bool kill)
{
    const uint32_t deny = kill ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    struct sock_filter filter[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
        PERMIT(SYS_read), PERMIT(SYS_write), PERMIT(SYS_readv), PERMIT(SYS_writev), PERMIT(SYS_pread64),
        PERMIT(SYS_pwrite64), PERMIT(SYS_close), PERMIT(SYS_lseek), PERMIT(SYS_fstat), PERMIT(SYS_newfstatat),
        PERMIT(SYS_stat), PERMIT(SYS_lstat), PERMIT(SYS_openat), PERMIT(SYS_readlink), PERMIT(SYS_readlinkat),
        PERMIT(SYS_getdents64), PERMIT(SYS_access), PERMIT(SYS_faccessat), PERMIT(SYS_faccessat2),
        PERMIT(SYS_mkdir), PERMIT(SYS_mkdirat), PERMIT(SYS_unlink), PERMIT(SYS_unlinkat), PERMIT(SYS_rmdir),
        PERMIT(SYS_rename), PERMIT(SYS_renameat), PERMIT(SYS_renameat2), PERMIT(SYS_ftruncate), PERMIT(SYS_chmod),
        PERMIT(SYS_fchmod), PERMIT(SYS_fchmodat), PERMIT(SYS_utimensat), PERMIT(SYS_fcntl), PERMIT(SYS_dup),
        PERMIT(SYS_munmap), PERMIT(SYS_mremap), PERMIT(SYS_madvise), PERMIT(SYS_brk), PERMIT(SYS_futex),
        PERMIT(SYS_sched_yield), PERMIT(SYS_getrandom), PERMIT(SYS_clock_gettime), PERMIT(SYS_clock_nanosleep),
        PERMIT(SYS_nanosleep), PERMIT(SYS_gettimeofday), PERMIT(SYS_timer_settime), PERMIT(SYS_timer_create),
        PERMIT(SYS_timer_delete), PERMIT(SYS_epoll_wait), PERMIT(SYS_epoll_pwait), PERMIT(SYS_epoll_ctl),
        PERMIT(SYS_epoll_create1), PERMIT(SYS_poll), PERMIT(SYS_ppoll), PERMIT(SYS_eventfd2), PERMIT(SYS_recvmsg),
        PERMIT(SYS_sendmsg), PERMIT(SYS_recvfrom), PERMIT(SYS_sendto), PERMIT(SYS_getpid), PERMIT(SYS_gettid),
        PERMIT(SYS_rt_sigaction), PERMIT(SYS_rt_sigprocmask), PERMIT(SYS_rt_sigreturn), PERMIT(SYS_sigaltstack),
        PERMIT(SYS_exit), PERMIT(SYS_exit_group), PERMIT(SYS_restart_syscall), PERMIT(SYS_getrusage),
        PERMIT(SYS_getcwd), PERMIT(SYS_fallocate), PERMIT(SYS_rseq), PERMIT(SYS_set_robust_list),
        /* tgkill: to threads of its own only */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 4),
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)getpid(), 0, 1),
        ALLOW,
        BPF_STMT(BPF_RET | BPF_K, deny),
        /* mmap and mprotect: never executable */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 4),
        LOAD(args[2]),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 4 /* PROT_EXEC */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, deny),
        ALLOW,
        /* ioctl: KVM's type byte, and what Python asks of a file that it opens */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 6),
        LOAD(args[1]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x5401 /* TCGETS */, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x5421 /* FIONBIO */, 2, 0),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff00),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, KVMIO << 8, 0, 1),
        ALLOW,
        BPF_STMT(BPF_RET | BPF_K, deny),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}
