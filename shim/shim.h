/* What the rooms of the shim share. The shim is the guest's side of every system call: threads, memory, descriptors,
 * pipes, polling and sockets are answered here, the rest is asked of the host with the request in memory.
 *
 * It runs in ring 3 beside the program, which can overwrite it: it serves speed and compatibility, never policy.
 * Every handler returns the value that the call returns, a negative errno, or BLOCKED after park().
 */
#ifndef SEAMGATE_SHIM_H
#define SEAMGATE_SHIM_H
#include "wire.h"

#define CONTROL ((volatile struct wire_control *)GA_CONTROL)
#define PARAMS ((const volatile struct wire_params *)GA_PARAMS)
#define RING ((volatile struct wire_ring *)GA_RING)

#define PAGE 4096UL
#define NS_PER_S 1000000000UL
#define NEVER (~0UL)
#define BLOCKED (-4096L) /* below every errno */

enum {
    EPERM_ = 1, ENOENT_ = 2, EINTR_ = 4, EBADF_ = 9, ECHILD_ = 10, EAGAIN_ = 11, ENOMEM_ = 12, EFAULT_ = 14,
    EEXIST_ = 17, ENODEV_ = 19, ENOTDIR_ = 20, EINVAL_ = 22, EMFILE_ = 24, ENOTTY_ = 25, ESPIPE_ = 29, EPIPE_ = 32,
    ERANGE_ = 34, ENOSYS_ = 38, ENOTSOCK_ = 88, EDESTADDRREQ_ = 89, EMSGSIZE_ = 90, ENOPROTOOPT_ = 92,
    EPROTONOSUPPORT_ = 93, EOPNOTSUPP_ = 95, EAFNOSUPPORT_ = 97, EADDRNOTAVAIL_ = 99, ENETUNREACH_ = 101,
    ECONNRESET_ = 104, ENOBUFS_ = 105, EISCONN_ = 106, ENOTCONN_ = 107, ETIMEDOUT_ = 110, EALREADY_ = 114,
    EINPROGRESS_ = 115
};

/* ---- threads (thread.c) */
#define THREADS 128
#define FPU_BYTES 2688 /* x87, SSE, AVX and AVX-512 state, uncompacted */
#define SIGNALS 65

enum thread_state { THREAD_FREE, THREAD_READY, THREAD_FUTEX, THREAD_PARKED };

struct thread {
    struct wire_regs regs; /* first: entry.S reaches it through `current` */
    u8 fpu[FPU_BYTES] __attribute__((aligned(64)));
    u64 fs_base;
    u32 state, tid;
    u64 futex, deadline;
    u32 futex_bits, waiting; /* waiting: a call is in progress that parked before; its deadline stands */
    u64 seen;                /* io_events when it parked */
    u64 clear_tid;
    u64 cpu_ns;
    u64 signal_mask, pending;
};

extern struct thread *current;
extern u64 io_events; /* raised whenever something may have become readable or writable */

u64 now_ns(void);
u64 cpu_time_ns(u64 clock);
int park(struct thread *t, u64 deadline);
void schedule(void);
void yield_if_asked(void);
i64 rendezvous(u64 address, u64 length);
void deliver_signals(struct thread *t);
i64 sys_futex(struct thread *t, u64 address, u64 op, u64 value, u64 timeout, u64 second, u64 bits);
i64 sys_clone(struct thread *t, u64 flags, u64 stack, u64 parent_tid, u64 child_tid, u64 tls);
i64 sys_clone3(struct thread *t, u64 args, u64 size);
i64 sys_exit_thread(struct thread *t, i64 code);
i64 sys_nanosleep(struct thread *t, u64 request, int clock, int absolute);
i64 sys_arch_prctl(u64 code, u64 address);
i64 sys_sigaction(u64 number, u64 new_action, u64 old_action);
i64 sys_sigprocmask(struct thread *t, u64 how, u64 set, u64 old);
i64 sys_sigreturn(struct thread *t);
i64 sys_kill(struct thread *t, u64 number);
i64 sys_setitimer(u64 which, u64 value, u64 old);
i64 sys_alarm(u64 seconds);

/* ---- memory (memory.c) */
void memory_start(void);
void memory_refresh(void);
int user_range(u64 address, u64 length);
u64 pages_allocate(u64 pages);
void pages_free(u64 address, u64 pages);
i64 sys_mmap(u64 address, u64 length, u64 protection, u64 flags, u64 fd, u64 offset);
i64 sys_munmap(u64 address, u64 length);
i64 sys_mremap(u64 address, u64 old_length, u64 length, u64 flags, u64 fixed);
i64 sys_madvise(u64 address, u64 length, u64 advice);
i64 sys_mprotect(u64 address, u64 length);
i64 sys_brk(u64 address);
u64 memory_total(void);
u64 memory_free(void);

/* ---- descriptors (files.c) */
#define FDS 256
#define FILES 256

enum file_type {
    FILE_NONE, FILE_HOST, FILE_INPUT, FILE_CONSOLE, FILE_NULL, FILE_RANDOM, FILE_CONTROL, FILE_PIPE_READ, FILE_PIPE_WRITE,
    FILE_PAIR, FILE_EVENT, FILE_EPOLL, FILE_STREAM, FILE_DATAGRAM
};

#define O_NONBLOCK_ 04000
#define O_APPEND_ 02000
#define O_CLOEXEC_ 02000000

struct buffer; /* a byte queue (ipc.c) */

struct file {
    u32 type, references, flags; /* flags: the O_ bits of fcntl(F_GETFL) */
    u64 changes;                 /* raised when readiness changes: edge-triggered epoll compares it */
    union {
        struct { u64 handle, offset; } host;
        u32 console;
        struct { struct buffer *in, *out; } pipe;
        struct { u64 count; u32 semaphore; } event;
        struct epoll *epoll;
        struct stream *stream;
        struct datagram *datagram;
    };
};

struct file *file_of(u64 fd);
i64 file_new(u32 type, u32 flags, struct file **out);
void file_release(struct file *f);
void input_changed(void);
i64 fd_install(struct file *f, int close_on_exec, u32 lowest);
i64 file_read(struct thread *t, struct file *f, u64 address, u64 length);
i64 file_write(struct thread *t, struct file *f, u64 address, u64 length);
u64 length_of(u64 path);
i64 path_call(u64 op, u64 directory, u64 path, u64 a, u64 b);
i64 sys_openat(u64 directory, u64 path, u64 flags, u64 mode);
i64 sys_close(u64 fd);
i64 sys_lseek(u64 fd, i64 offset, u64 whence);
i64 sys_pread(u64 fd, u64 address, u64 length, u64 offset, int write);
i64 sys_vector(struct thread *t, u64 fd, u64 vector, u64 count, int write, i64 offset);
i64 sys_fstatat(u64 directory, u64 path, u64 out, u64 flags);
i64 sys_getdents(u64 fd, u64 address, u64 length);
i64 sys_dup(u64 fd, u64 lowest, int close_on_exec);
i64 sys_dup3(u64 fd, u64 target, u64 flags);
i64 sys_fcntl(u64 fd, u64 command, u64 argument);
i64 sys_ioctl(u64 fd, u64 request, u64 argument);
i64 sys_ftruncate(u64 fd, u64 length);
i64 sys_utimensat(u64 directory, u64 path, u64 times);
i64 sys_fchdir(u64 fd);
u64 directory_handle(u64 fd);

/* ---- standard input (input.c) */
i64 input_read(u64 address, u64 length);
int input_ready(void);
int input_arrived(void);
int input_may_wake(void);
void input_refresh(void);

/* ---- pipes, events, polling (ipc.c, poll.c) */
#define BUFFER_BYTES (4 * PAGE - 64) /* with its head, four pages */
struct buffer {
    u64 head, tail;      /* free-running; head - tail is what is in it */
    struct file *reader, *writer; /* whose readiness changes; null when closed */
    u8 data[];
};
i64 buffer_read(struct buffer *b, u64 address, u64 length, int peek);
i64 buffer_write(struct buffer *b, u64 address, u64 length);
struct buffer *buffer_new(void);
u64 buffer_used(const struct buffer *b);
void pipe_close(struct file *f);
i64 sys_pipe2(u64 out, u64 flags);
i64 sys_socketpair(u64 family, u64 type, u64 out);
i64 sys_eventfd(u64 count, u64 flags);
i64 event_read(struct thread *t, struct file *f, u64 address, u64 length);
i64 event_write(struct thread *t, struct file *f, u64 address, u64 length);
u32 file_ready(struct file *f);
void file_changed(struct file *f);
i64 sys_poll(struct thread *t, u64 fds, u64 count, u64 deadline);
i64 sys_select(struct thread *t, u64 count, u64 sets[3], u64 deadline);
i64 sys_epoll_create(u64 flags);
i64 sys_epoll_ctl(u64 epfd, u64 op, u64 fd, u64 event);
i64 sys_epoll_wait(struct thread *t, u64 epfd, u64 events, i64 max, u64 deadline);
void epoll_forget(struct file *f);
void epoll_close(struct file *f);

/* ---- sockets and the ring (ring.c, net.c) */
void ring_poll(void);
int ring_may_wake(void);
int ring_sleep(void);
void ring_awake(void);
void ring_end_streams(void);
i64 sys_socket(u64 family, u64 type, u64 protocol);
i64 sys_connect(struct thread *t, u64 fd, u64 address, u64 length);
i64 sys_sendto(struct thread *t, u64 fd, u64 data, u64 length, u64 flags, u64 address, u64 address_length);
i64 sys_recvfrom(struct thread *t, u64 fd, u64 data, u64 length, u64 flags, u64 address, u64 address_length);
i64 sys_sendmsg(struct thread *t, u64 fd, u64 message, u64 flags);
i64 sys_recvmsg(struct thread *t, u64 fd, u64 message, u64 flags);
i64 sys_sendmmsg(struct thread *t, u64 fd, u64 vector, u64 count, u64 flags);
i64 sys_shutdown(u64 fd, u64 how);
i64 sys_getsockopt(u64 fd, u64 level, u64 name, u64 value, u64 length);
i64 sys_setsockopt(u64 fd, u64 level, u64 name);
i64 sys_getname(u64 fd, u64 address, u64 length, int peer);
i64 stream_read(struct thread *t, struct file *f, u64 address, u64 length, u64 flags);
i64 stream_write(struct thread *t, struct file *f, u64 address, u64 length, u64 flags);
i64 datagram_read(struct thread *t, struct file *f, u64 address, u64 length, u64 flags);
i64 datagram_write(struct file *f, u64 address, u64 length);
u32 stream_ready(const struct file *f);
u32 datagram_ready(const struct file *f);
u64 socket_pending(const struct file *f);
void socket_close(struct file *f);

/* ---- small things */
/* Returns what the host answered. */
static inline i64 host(u64 op, u64 a0, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5)
{
    volatile struct wire_request *r = &CONTROL->request;
    r->op = op;
    r->arg[0] = a0;
    r->arg[1] = a1;
    r->arg[2] = a2;
    r->arg[3] = a3;
    r->arg[4] = a4;
    r->arg[5] = a5;
    __asm__ volatile("outb %%al, %0" : : "i"(PORT_REQUEST) : "memory");
    return r->result;
}

static inline void copy(void *to, const void *from, u64 n)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

static inline void clear(void *to, u64 n)
{
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(0) : "memory");
}

static inline u64 least(u64 a, u64 b) { return a < b ? a : b; }
#endif
