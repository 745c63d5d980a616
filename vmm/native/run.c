/* See machine.h: the run loop, the timer that ends slices, requests and their answers. */
#define _GNU_SOURCE
#include "machine_internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define KICK_SIGNAL (SIGRTMIN + 3)
#define MIN_TICK_NS 1000000UL

static __thread struct kvm_run *volatile kicked; /* what this thread's timer interrupts */
static __thread timer_t kick_timer;
static __thread pid_t timer_owner; /* a forked process inherits this variable, but no timer */

static void on_kick(int signal)
{
    (void)signal;
    struct kvm_run *run = kicked;
    if (run)
        run->immediate_exit = 1; /* closes the gap between the last check and KVM_RUN */
}

static int make_timer(void)
{
    struct sigaction action = {.sa_handler = on_kick};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = KICK_SIGNAL};
    event._sigev_un._tid = (int)syscall(SYS_gettid);
    if (sigaction(KICK_SIGNAL, &action, NULL) || timer_create(CLOCK_MONOTONIC, &event, &kick_timer))
        return -1;
    timer_owner = getpid();
    return 0;
}

static struct timespec timespec_of(u64 ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

/* Returns 0, or -1: without a timer no guest may run. A period under MIN_TICK_NS would leave no time to do anything but take signals, for ever. */
static int arm(u64 first_ns, u64 period_ns)
{
    const u64 min_ns = MIN_TICK_NS;
    struct itimerspec spec = {.it_value = timespec_of(first_ns && first_ns < min_ns / 8 ? min_ns / 8 : first_ns),
                              .it_interval = timespec_of(period_ns && period_ns < min_ns ? min_ns : period_ns)};
    return timer_settime(kick_timer, 0, &spec, NULL);
}

/* Returns the CPU time of this thread in nanoseconds. */
u64 thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

/* Makes a guest with more than one thread choose the next: at once if it runs program code, else when the shim is done.
 * Returns 0, or -1 if KVM refuses. */
static int preempt(struct machine *m)
{
    /* SAFE: GA_CONTROL and GA_PARAMS lie below the 4 MiB that every machine has at least. */
    volatile struct wire_control *control = (volatile struct wire_control *)(m->memory + GA_CONTROL);
    volatile struct wire_params *params = (volatile struct wire_params *)(m->memory + GA_PARAMS);
    struct kvm_regs r;
    if (control->threads < 2 && !m->interrupting)
        return 0;
    m->interrupting = false;
    if (ioctl(m->vcpu, KVM_GET_REGS, &r))
        return -1;
    params->yield_seq = ++m->yield_seq;
    if (r.rip < GA_STACK)
        return 0;
    struct wire_regs saved = {r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
                              r.r14, r.r15, r.rip, SEL_USER_CODE, r.rflags, r.rsp, SEL_USER_DATA};
    *(struct wire_regs *)&control->preempted = saved;
    r.rip = m->shim.preempt;
    r.rflags = 2 | IOPL;
    return ioctl(m->vcpu, KVM_SET_REGS, &r);
}

static enum run_exit classify(struct machine *m)
{
    const struct kvm_run *run = m->run;
    m->exit_reason = run->exit_reason;
    m->detail = 0;
    switch (run->exit_reason) {
    case KVM_EXIT_IO:
        if (run->io.direction == KVM_EXIT_IO_OUT && run->io.port == PORT_REQUEST)
            return RUN_REQUEST;
        if (run->io.direction == KVM_EXIT_IO_OUT && run->io.port == PORT_TRAP)
            return RUN_TRAP;
        if (run->io.port == PORT_DOORBELL)
            return 0; /* no gateway is listening */
        m->detail = run->io.port;
        return RUN_BROKEN;
    case KVM_EXIT_MMIO:
        m->detail = run->mmio.phys_addr;
        return RUN_MEMORY;
    case KVM_EXIT_INTERNAL_ERROR:
        m->detail = run->internal.suberror;
        return RUN_BROKEN;
    case KVM_EXIT_FAIL_ENTRY:
        m->detail = run->fail_entry.hardware_entry_failure_reason;
        return RUN_BROKEN;
    }
    return RUN_BROKEN;
}

static enum run_exit run_loop(struct machine *m, u64 end_ns)
{
    for (;;) {
        if (ioctl(m->vcpu, KVM_RUN, 0UL) == 0) {
            enum run_exit what = classify(m);
            if (what)
                return what;
            continue;
        }
        m->run->immediate_exit = 0;
        if (errno != EINTR && errno != EAGAIN) {
            m->detail = (u64)errno;
            return RUN_ERROR;
        }
        if (preempt(m)) {
            m->detail = (u64)errno;
            return RUN_ERROR;
        }
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        if ((u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec >= end_ns)
            return RUN_SLICE;
    }
}

/* Runs the guest until it asks for something or `slice_ns` passed; threads are switched every `tick_ns`.
 * Returns why it stopped. Runs on: any thread, one at a time, without the interpreter's lock. */
enum run_exit machine_run(struct machine *m, u64 slice_ns, u64 tick_ns)
{
    struct timespec t;
    if (timer_owner != getpid() && make_timer()) {
        m->detail = (u64)errno;
        return RUN_ERROR;
    }
    clock_gettime(CLOCK_MONOTONIC, &t);
    u64 before = thread_cpu_ns();
    m->clean = false;
    m->runs++;
    kicked = m->run;
    if (arm(tick_ns < slice_ns ? tick_ns : slice_ns, tick_ns)) {
        kicked = NULL;
        m->detail = (u64)errno;
        return RUN_ERROR;
    }
    enum run_exit why = run_loop(m, (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec + slice_ns);
    (void)arm(0, 0);
    kicked = NULL;
    m->run->immediate_exit = 0;
    m->cpu_ns += thread_cpu_ns() - before;
    return why;
}

/* Sends the guest a signal; it takes it at its next step. */
void machine_signal(struct machine *m, enum host_signal which)
{
    /* SAFE: GA_PARAMS lies below the 4 MiB that every machine has at least. */
    volatile struct wire_params *params = (volatile struct wire_params *)(m->memory + GA_PARAMS);
    params->signals[which] = ++m->signals[which];
    m->interrupting = true;
}

/* Tells the guest that standard input, which had nothing, may have something. */
void machine_announce_input(struct machine *m)
{
    /* SAFE: GA_PARAMS lies below the 4 MiB that every machine has at least. */
    volatile struct wire_params *params = (volatile struct wire_params *)(m->memory + GA_PARAMS);
    params->input_seq = ++m->input_seq;
}

/* Asks the guest to stand still at its next step, or takes that back. */
void machine_ask_rest(struct machine *m, enum rest_kind kind)
{
    /* SAFE: GA_PARAMS lies below the 4 MiB that every machine has at least. */
    volatile struct wire_params *params = (volatile struct wire_params *)(m->memory + GA_PARAMS);
    params->rest = kind;
    m->interrupting |= kind != REST_NONE;
}

/* Copies the request once; what is judged and used is the copy. */
void machine_request(const struct machine *m, struct wire_request *out)
{
    /* SAFE: GA_CONTROL lies below the 4 MiB that every machine has at least. */
    const volatile struct wire_control *control = (const volatile struct wire_control *)(m->memory + GA_CONTROL);
    *out = *(const struct wire_request *)&control->request;
}

/* Answers the request; `extra` goes to arg[5], where some requests return a second value. */
void machine_reply(struct machine *m, i64 result, u64 extra)
{
    /* SAFE: as above. */
    volatile struct wire_control *control = (volatile struct wire_control *)(m->memory + GA_CONTROL);
    control->request.result = result;
    control->request.arg[5] = extra;
}

/* Reads the frame that the processor pushed on the trap stack, which no guest code can write. */
void machine_trap(struct machine *m, struct machine_trap *out)
{
    /* SAFE: the trap stack lies below the 4 MiB that every machine has at least. */
    const u64 *frame = (const u64 *)(m->memory + GA_TRAP_STACK + PAGE - 56);
    struct kvm_sregs s;
    *out = (struct machine_trap){.vector = frame[0], .error = frame[1], .rip = frame[2], .cs = frame[3],
                                 .rflags = frame[4], .rsp = frame[5]};
    if (frame[0] == 14 && ioctl(m->vcpu, KVM_GET_SREGS, &s) == 0)
        out->address = s.cr2;
}
