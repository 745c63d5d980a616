/* `seamgate._connects`: the plain part of what a guest's supervisor does (proxy/seamgate/entry/netns/supervisor.py), in
 * one thread without the interpreter: connects of IPv4 and IPv6 sockets, which lead nowhere but into the socket's own
 * network namespace, whatever the address. Everything else is handed to Python, which could do these as well.
 *
 * The kernel is never told to go on with a call: until it looks up the descriptor, another thread (or process: clone(2)
 * with CLONE_FILES) could have put a unix socket there. What was duplicated stays what it is.
 *
 * A connect that waits would keep others waiting. The socket's own flags are the guest's to see, so it is a timer that
 * interrupts: then the connection is under way, and connect(2) once more, in a thread of its own, waits for it.
 *
 * Source: seccomp_unotify(2), linux/seccomp.h, pidfd_open(2), pidfd_getfd(2), process_vm_readv(2), kcmp(2).
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id /* glibc has no name for it */
#define sigev_notify_thread_id _sigev_un._tid
#endif
#define PATIENCE_NS 2000000       /* how long a connect may keep others waiting */
#define THREAD_HANDLE O_EXCL      /* PIDFD_THREAD, Linux 6.9: of a thread, not of a process */
#define SET_FLAGS 0x40082104      /* SECCOMP_IOCTL_NOTIF_SET_FLAGS, Linux 6.6 */
#define ON_THIS_PROCESSOR 1ULL    /* SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: one waits for the other, so they don't need two */
#define SHORTEST 16               /* struct sockaddr_in: a shorter address is Python's */

enum outcome { DONE, FOR_PYTHON, WAITS };

struct call {
    struct seccomp_notif report;
    struct sockaddr_storage address;
    socklen_t size;
    int copy; /* of the guest's socket */
};

static int process_of(pid_t thread)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/status", thread);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    const char *found = strstr(text, "\nTgid:"); /* a name before it has its line feeds escaped */
    return found ? atoi(found + 6) : -1;
}

/* A handle through which descriptors of this thread can be duplicated; -1: Python shall say why there is none. */
static int handle_of(pid_t thread)
{
    static atomic_int processes_only; /* before Linux 6.9 */
    if (!processes_only) {
        int handle = (int)syscall(SYS_pidfd_open, thread, THREAD_HANDLE);
        if (handle >= 0 || errno != EINVAL)
            return handle;
        processes_only = 1;
    }
    int process = process_of(thread);
    if (process < 0 || (process != thread && syscall(SYS_kcmp, process, thread, KCMP_FILES, 0, 0) != 0))
        return -1;
    return (int)syscall(SYS_pidfd_open, process, 0);
}

/* Copy the address and duplicate the socket; whether both were of a caller that still waits, and the socket is of IP. */
static int look(int listener, struct call *call)
{
    pid_t thread = (pid_t)call->report.pid;
    size_t size = (uint32_t)call->report.data.args[2];
    if (thread <= 0 || size < SHORTEST || size > sizeof call->address)
        return 0;
    call->size = (socklen_t)size;
    struct iovec here = {&call->address, size}, there = {(void *)(uintptr_t)call->report.data.args[1], size};
    if (process_vm_readv(thread, &here, 1, &there, 1, 0) != (ssize_t)size)
        return 0;
    int handle = handle_of(thread);
    if (handle < 0)
        return 0;
    call->copy = (int)syscall(SYS_pidfd_getfd, handle, (int)call->report.data.args[0], 0);
    close(handle);
    if (call->copy < 0)
        return 0;
    int domain = 0;
    if (getsockopt(call->copy, SOL_SOCKET, SO_DOMAIN, &domain, &(socklen_t){sizeof domain}) == 0 &&
        (domain == AF_INET || domain == AF_INET6) &&
        ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->report.id) == 0)
        return 1;
    close(call->copy);
    call->copy = -1;
    return 0;
}

/* Have this thread interrupted each time that so long has passed (0: no more). Again and again, as the first time may
 * pass before the call begins that is to be interrupted. Once this returned for 0, no signal of the timer is left. */
static int set_timer(int signal_number, long period_ns)
{
    static _Thread_local timer_t timer;
    static _Thread_local int is_there;
    if (!is_there) {
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = signal_number};
        event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
        if (timer_create(CLOCK_MONOTONIC, &event, &timer))
            return 0;
        is_there = 1;
    }
    struct itimerspec patience = {.it_interval.tv_nsec = period_ns, .it_value.tv_nsec = period_ns};
    return timer_settime(timer, 0, &patience, NULL) == 0;
}

static void answer(int listener, uint64_t report, int code)
{
    struct seccomp_notif_resp response = {.id = report, .error = -code};
    while (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response) && errno == EINTR)
        ; /* any other failure: nobody waits any more, and that is fine */
}

/* Whether the socket waits is not asked: the guest shares its flags, and could change them after the answer. */
static enum outcome serve(int listener, int signal_number, struct call *call)
{
    if (!look(listener, call))
        return FOR_PYTHON;
    if (!set_timer(signal_number, PATIENCE_NS)) {
        close(call->copy);
        return FOR_PYTHON;
    }
    int code = connect(call->copy, (struct sockaddr *)&call->address, call->size) ? errno : 0;
    set_timer(signal_number, 0);
    if (code == EINTR)
        return WAITS;
    close(call->copy);
    answer(listener, call->report.id, code);
    return DONE;
}

static int is_over(int listener)
{
    struct pollfd events = {.fd = listener};
    return poll(&events, 1, 0) > 0 && events.revents & POLLHUP;
}

/* Take reports until there is one for Python; 0 then, an error, or -1: nobody is left who could be reported. */
static int take(int listener, int number, int signal_number, struct call *call, enum outcome *outcome)
{
    for (;;) {
        memset(call, 0, sizeof *call);
        call->copy = -1;
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call->report)) {
            if (errno != ENOENT && errno != EINTR)
                return errno;
            if (errno == ENOENT && is_over(listener))
                return -1;
            continue;
        }
        *outcome = call->report.data.nr == number ? serve(listener, signal_number, call) : FOR_PYTHON;
        if (*outcome != DONE)
            return 0;
    }
}

static PyObject *connects_take(PyObject *Py_UNUSED(module), PyObject *args)
{
    int listener, number, signal_number, failed;
    if (!PyArg_ParseTuple(args, "iii", &listener, &number, &signal_number))
        return NULL;
    struct call call;
    enum outcome outcome;
    Py_BEGIN_ALLOW_THREADS;
    ioctl(listener, SET_FLAGS, ON_THIS_PROCESSOR); /* fails before Linux 6.6: slower then */
    failed = take(listener, number, signal_number, &call, &outcome);
    Py_END_ALLOW_THREADS;
    if (failed > 0) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (failed)
        Py_RETURN_NONE;
    Py_ssize_t size = outcome == WAITS ? (Py_ssize_t)call.size : 0;
    return Py_BuildValue("y#iy#", (char *)&call.report, (Py_ssize_t)sizeof call.report,
                         outcome == WAITS ? call.copy : -1, (char *)&call.address, size);
}

static PyMethodDef functions[] = {
    {"take", connects_take, METH_VARARGS,
     "take(listener, connect_number, signal_number) -> (report, socket, address) | None\n\n"
     "Serve plain connects until there is a report for Python; None once nobody is left. `socket` is -1, or that of a\n"
     "connect that waits and was begun with this address: the duplicate is the caller's from here on. The signal\n"
     "interrupts; it has to have a handler.\n\nRaises:\n    OSError: no reports can be had."},
    {0},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_methods = functions,
    .m_name = "seamgate._connects",
    .m_doc = "Connects of guests in a network namespace; see proxy/native/netns.",
};

PyMODINIT_FUNC PyInit__connects(void)
{
    return PyModuleDef_Init(&definition);
}
