/* Threads without a kernel: contexts in an array, switched here, one processor. Also sleep and signals; futexes are in
 * futex.c.
 *
 * A thread is READY, waits on a FUTEX, or is PARKED in a call that is tried again when io_events moved or its deadline
 * passed. Nobody to run means that the host is told to let the guest sleep. A thread that never makes a call is
 * interrupted by the host (shim_preempt), which only happens while there is more than one thread or an alarm.
 */
#include "thread.h"

struct thread threads[THREADS] __attribute__((aligned(64)));
struct thread *current = threads;
u64 io_events;
static u64 fpu_mask;
static u32 last_tid;
static u64 yields_seen;
static u32 signals_seen[HOST_SIGNALS];
static u64 alarm_ns; /* 0: none */
static u64 alarm_interval_ns;
static u64 process_ns, running_since; /* processor time: all but what the guest slept */

struct action { u64 handler, flags, restorer, mask; }; /* as the kernel's struct sigaction */
static struct action actions[SIGNALS];

struct signal_frame { /* on the thread's stack while a handler runs; the handler returns to `restorer` */
    u64 alignment[7]; /* so that rsp is as after a call, and fpu on a border of 64 */
    u64 return_address; /* the handler's stack grows down from here */
    u8 fpu[FPU_BYTES];
    struct wire_regs regs;
    u64 mask;
    u8 siginfo[128];
};

enum { SIG_HUP = 1, SIG_INT = 2, SIG_ABRT = 6, SIG_KILL = 9, SIG_ALRM = 14, SIG_TERM = 15,
       SIG_CHLD = 17, SIG_CONT = 18, SIG_URG = 23, SIG_WINCH = 28 };
#define SA_NODEFER 0x40000000UL

/* Returns the guest's monotonic time in nanoseconds. */
u64 now_ns(void)
{
    u32 low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    u64 ticks = ((u64)high << 32 | low) - PARAMS->tsc0;
    return PARAMS->mono_ns + (u64)((unsigned __int128)ticks * PARAMS->mult >> 32);
}

static u64 fs_base(void)
{
    u64 v;
    __asm__ volatile("rdfsbase %0" : "=r"(v));
    return v;
}

static void set_fs_base(u64 v) { __asm__ volatile("wrfsbase %0" : : "r"(v)); }

static void fpu_save(void *area)
{
    __asm__ volatile("xsave64 (%0)" : : "r"(area), "a"((u32)fpu_mask), "d"(0) : "memory");
}

static void fpu_load(const void *area)
{
    __asm__ volatile("xrstor64 (%0)" : : "r"(area), "a"((u32)fpu_mask), "d"(0) : "memory");
}

/* Adds what has run since the last look to the current thread and to the process. */
static void account(void)
{
    u64 now = now_ns();
    current->cpu_ns += now - running_since;
    process_ns += now - running_since;
    running_since = now;
}

/* Returns the processor time of the process (clock 2) or of the current thread (clock 3). */
u64 cpu_time_ns(u64 clock)
{
    account();
    return clock == 2 ? process_ns : current->cpu_ns;
}

static void switch_to(struct thread *next)
{
    if (next == current)
        return;
    account();
    if (current->state != THREAD_FREE) {
        current->fs_base = fs_base();
        fpu_save(current->fpu);
    }
    current = next;
    set_fs_base(next->fs_base);
    fpu_load(next->fpu);
    CONTROL->switches++;
}

static u64 count_threads(void)
{
    u64 n = 0;
    for (u32 i = 0; i < THREADS; i++)
        n += threads[i].state != THREAD_FREE;
    return n;
}

/* The host preempts while this is above one; an armed alarm needs it too. */
static void publish_threads(void) { CONTROL->threads = count_threads() + (alarm_ns != 0); }

/* x87, SSE, AVX and AVX-512 as far as this processor has them switched on. */
static void find_fpu(void)
{
    u32 low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    fpu_mask = low & 0xe7;
}

/* Asks the host for what may be answered on another processor, to another guest even: all state of the processor is in
 * memory meanwhile, and what the shim knows of its host is read again if this is not the machine that asked. */
static i64 ask_elsewhere(u64 op, u64 address, u64 length)
{
    u64 generation = PARAMS->generation;
    current->fs_base = fs_base();
    fpu_save(current->fpu);
    i64 result = host(op, address, length, 0, 0, 0, 0);
    find_fpu();
    *(u64 *)(current->fpu + 512) &= fpu_mask; /* xrstor refuses components that this processor lacks */
    fpu_load(current->fpu);
    set_fs_base(current->fs_base);
    running_since = now_ns();
    if (PARAMS->generation == generation)
        return result;
    yields_seen = PARAMS->yield_seq;
    for (u32 i = 0; i < HOST_SIGNALS; i++)
        signals_seen[i] = 0; /* each machine counts from there: one that came before this is not lost */
    memory_refresh();
    input_refresh();
    io_events++; /* what a thread waits for may be otherwise here */
    return result;
}

/* Returns what the host answers at the template's rendezvous. */
i64 rendezvous(u64 address, u64 length) { return ask_elsewhere(HOST_CONTROL_READ, address, length); }

/* The owner wants the guest to stand still. */
static void rest(void)
{
    if (PARAMS->rest == REST_HIBERNATE)
        ring_end_streams();
    account();
    ask_elsewhere(HOST_REST, 0, 0);
}

/* Called once, for a new guest. */
void shim_start(void)
{
    find_fpu();
    memory_start();
    running_since = now_ns();
    struct thread *t = &threads[0];
    t->state = THREAD_READY;
    t->tid = last_tid = 1000;
    t->regs.rip = PARAMS->start_rip;
    t->regs.rsp = PARAMS->start_rsp;
    t->regs.cs = SEL_USER_CODE;
    t->regs.ss = SEL_USER_DATA;
    t->regs.rflags = 0x202;
    publish_threads();
}

/* Returns 1 after parking `t` until io_events moves or `deadline`; 0 if the deadline of this wait has passed.
 * The caller returns BLOCKED after a 1, and is called again with the same arguments. */
int park(struct thread *t, u64 deadline)
{
    if (!t->waiting) {
        t->waiting = 1;
        t->deadline = deadline;
    }
    if (t->deadline != NEVER && now_ns() >= t->deadline)
        return 0;
    t->state = THREAD_PARKED;
    t->seen = io_events;
    return 1;
}

i64 shim_dispatch(struct thread *t);

void finish_call(struct thread *t, i64 result)
{
    t->regs.rax = (u64)result;
    t->waiting = 0;
    t->state = THREAD_READY;
}

static int deliverable(const struct thread *t) { return (t->pending & ~t->signal_mask) != 0; }

/* Returns 1 if `t` can run now, after ending or retrying what it waits for. */
static int try_thread(struct thread *t, u64 now)
{
    if (t->state == THREAD_READY)
        return 1;
    if (t->state == THREAD_FREE)
        return 0;
    if (deliverable(t)) {
        finish_call(t, -EINTR_);
        return 1;
    }
    if (t->state == THREAD_FUTEX) {
        if (now < t->deadline)
            return 0;
        finish_call(t, -ETIMEDOUT_);
        return 1;
    }
    if (t->seen == io_events && now < t->deadline)
        return 0;
    t->state = THREAD_READY;
    i64 result = shim_dispatch(t);
    if (result == BLOCKED)
        return 0;
    finish_call(t, result);
    return 1;
}

/* Leaves a signal that is for the whole program to the first thread that does not block it. */
static void signal_program(u64 number)
{
    struct thread *taker = 0;
    for (u32 i = 0; i < THREADS; i++)
        if (threads[i].state != THREAD_FREE && (!taker || taker->signal_mask >> number & 1))
            taker = &threads[i];
    if (taker)
        taker->pending |= 1UL << number;
}

static void check_signals(u64 now)
{
    static const u8 numbers[HOST_SIGNALS] = {SIG_INT, SIG_TERM, SIG_HUP};
    for (u32 i = 0; i < HOST_SIGNALS; i++)
        if (PARAMS->signals[i] != signals_seen[i]) {
            signals_seen[i] = PARAMS->signals[i];
            signal_program(numbers[i]);
        }
    if (!alarm_ns || now < alarm_ns)
        return;
    alarm_ns = alarm_interval_ns ? now + alarm_interval_ns : 0;
    signal_program(SIG_ALRM);
    publish_threads();
}

/* Returns 1 if the program waits for what its owner may send: it has a handler of its own for being asked to end.
 * (SIGINT does not count: every Python has one.) */
static int owner_may_wake(void) { return actions[SIG_TERM].handler > 1 || actions[SIG_HUP].handler > 1; }

/* Picks the next thread that can run and makes it current; sleeps in the host while there is none. */
void schedule(void)
{
    for (;;) {
        if (PARAMS->rest)
            rest();
        ring_poll();
        if (input_arrived())
            input_changed();
        u64 now = now_ns(), first = alarm_ns ? alarm_ns : NEVER, events = io_events;
        check_signals(now);
        u64 here = (u64)(current - threads);
        for (u64 k = 1; k <= THREADS; k++) {
            struct thread *t = &threads[(here + k) % THREADS];
            if (try_thread(t, now)) {
                switch_to(t);
                return;
            }
            if (t->state != THREAD_FREE)
                first = least(first, t->deadline);
        }
        if (events != io_events) /* a retried call changed something that an earlier thread waits for */
            continue;
        account();
        if (ring_sleep())
            host(HOST_IDLE, first == NEVER ? 0 : first, (u64)(ring_may_wake() || input_may_wake() || owner_may_wake()), 0, 0, 0, 0);
        ring_awake();
        running_since = now_ns();
    }
}

/* Gives the processor away if the host asked for it while the shim ran, or an alarm is due. */
void yield_if_asked(void)
{
    if (PARAMS->yield_seq == yields_seen)
        return;
    yields_seen = PARAMS->yield_seq;
    schedule();
}

/* The host interrupted the current thread in program code and left its registers in GA_CONTROL. */
void shim_preempt(void)
{
    current->regs = *(const struct wire_regs *)&CONTROL->preempted;
    current->regs.cs = SEL_USER_CODE;
    current->regs.ss = SEL_USER_DATA;
    yields_seen = PARAMS->yield_seq;
    CONTROL->preemptions++;
    schedule();
    deliver_signals(current);
}

i64 sys_clone(struct thread *t, u64 flags, u64 stack, u64 parent_tid, u64 child_tid, u64 tls)
{
    const u64 vm = 0x100, thread_flag = 0x10000, set_tls = 0x80000, parent_set = 0x100000, child_clear = 0x200000,
              child_set = 0x1000000;
    if (!(flags & thread_flag) || !(flags & vm)) { /* fork and vfork: a guest has one process */
        host(HOST_UNSUPPORTED, t->regs.rax, 0, 0, 0, 0, 0);
        return -ENOSYS_;
    }
    struct thread *child = 0;
    for (u32 i = 0; i < THREADS && !child; i++)
        if (threads[i].state == THREAD_FREE)
            child = &threads[i];
    if (!child)
        return -EAGAIN_;
    if ((flags & parent_set && !user_range(parent_tid, 4)) ||
        (flags & (child_clear | child_set) && !user_range(child_tid, 4)))
        return -EFAULT_;
    child->regs = t->regs;
    child->regs.rax = 0;
    child->regs.rsp = stack;
    fpu_save(child->fpu);
    child->fs_base = flags & set_tls ? tls : fs_base();
    child->tid = ++last_tid;
    child->waiting = 0;
    child->pending = 0;
    child->cpu_ns = 0;
    child->deadline = NEVER;
    child->signal_mask = t->signal_mask;
    child->clear_tid = flags & child_clear ? child_tid : 0;
    child->state = THREAD_READY;
    if (flags & parent_set)
        *(u32 *)parent_tid = child->tid;
    if (flags & child_set)
        *(u32 *)child_tid = child->tid;
    publish_threads();
    return child->tid;
}

i64 sys_clone3(struct thread *t, u64 args, u64 size)
{
    if (size < 64 || !user_range(args, 64))
        return -EINVAL_;
    const u64 *a = (const u64 *)args; /* flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls */
    return sys_clone(t, a[0], a[5] + a[6], a[3], a[2], a[7]);
}

i64 sys_exit_thread(struct thread *t, i64 code)
{
    if (count_threads() == 1)
        host(HOST_EXIT, (u64)code & 0xff, 0, 0, 0, 0, 0);
    if (t->clear_tid && user_range(t->clear_tid, 4)) {
        *(volatile u32 *)t->clear_tid = 0;
        futex_wake(t->clear_tid, ~0u, ~0u);
    }
    t->state = THREAD_FREE;
    publish_threads();
    return BLOCKED;
}

i64 sys_nanosleep(struct thread *t, u64 request, int clock, int absolute)
{
    u64 deadline = t->deadline;
    if (!t->waiting) {
        if (!user_range(request, 16))
            return -EFAULT_;
        i64 ns = timespec_ns(request);
        if (ns < 0)
            return -EINVAL_;
        i64 wall = clock == 0 ? (i64)PARAMS->wall_offset_ns : 0;
        deadline = absolute ? (u64)(ns > wall ? ns - wall : 0) : now_ns() + (u64)ns;
    }
    return park(t, deadline) ? BLOCKED : 0;
}

i64 sys_arch_prctl(u64 code, u64 address)
{
    if (code == 0x1002) { /* ARCH_SET_FS */
        set_fs_base(address);
        return 0;
    }
    if (code == 0x1003) { /* ARCH_GET_FS */
        if (!user_range(address, 8))
            return -EFAULT_;
        *(u64 *)address = fs_base();
        return 0;
    }
    return -EINVAL_;
}

/* ---- signals: sent by the program to itself, by its alarm, or by its owner; delivered when the shim
 * returns to the thread, on its own stack. */

i64 sys_sigaction(u64 number, u64 new_action, u64 old_action)
{
    if (number == 0 || number >= SIGNALS)
        return -EINVAL_;
    if ((new_action && !user_range(new_action, sizeof(struct action))) ||
        (old_action && !user_range(old_action, sizeof(struct action))))
        return -EFAULT_;
    struct action old = actions[number];
    if (new_action) {
        if (number == SIG_KILL || number == 19)
            return -EINVAL_;
        actions[number] = *(const struct action *)new_action;
    }
    if (old_action)
        *(struct action *)old_action = old;
    return 0;
}

i64 sys_sigprocmask(struct thread *t, u64 how, u64 set, u64 old)
{
    if ((set && !user_range(set, 8)) || (old && !user_range(old, 8)))
        return -EFAULT_;
    u64 before = t->signal_mask;
    if (set) {
        u64 bits = *(const u64 *)set << 1; /* the kernel's bit 0 is signal 1; ours is bit n for signal n */
        if (how == 0)
            t->signal_mask |= bits;
        else if (how == 1)
            t->signal_mask &= ~bits;
        else if (how == 2)
            t->signal_mask = bits;
        else
            return -EINVAL_;
        t->signal_mask &= ~(1UL << SIG_KILL);
    }
    if (old)
        *(u64 *)old = before >> 1;
    return 0;
}

static void enter_handler(struct thread *t, u64 number, const struct action *a)
{
    u64 at = (t->regs.rsp - 128 - sizeof(struct signal_frame)) & ~63UL; /* 128: the red zone */
    struct signal_frame *frame = (struct signal_frame *)at;
    if (!user_range(at, sizeof *frame))
        host(HOST_ABORT, 11, 0, 0, 0, 0, 0);
    clear(frame->fpu + 512, 64); /* xrstor wants a clean header */
    fpu_save(frame->fpu);
    clear(frame->siginfo, sizeof frame->siginfo);
    *(u32 *)frame->siginfo = (u32)number;
    frame->return_address = a->restorer;
    frame->regs = t->regs;
    frame->mask = t->signal_mask;
    t->signal_mask |= a->mask << 1;
    if (!(a->flags & SA_NODEFER))
        t->signal_mask |= 1UL << number;
    t->regs.rip = a->handler;
    t->regs.rsp = (u64)&frame->return_address;
    _Static_assert(__builtin_offsetof(struct signal_frame, return_address) % 16 == 8, "as after a call");
    t->regs.rdi = number;
    t->regs.rsi = (u64)frame->siginfo;
    t->regs.rdx = 0;
    t->regs.rax = 0;
    t->regs.rflags = 0x202;
}

/* Runs the handler of one pending signal, or its default action. `t` is current. */
void deliver_signals(struct thread *t)
{
    u64 ready = t->pending & ~t->signal_mask;
    if (!ready)
        return;
    u64 number = (u64)__builtin_ctzl(ready);
    t->pending &= ~(1UL << number);
    const struct action *a = &actions[number];
    if (a->handler > 1)
        enter_handler(t, number, a);
    else if (a->handler == 0 && number != SIG_CHLD && number != SIG_CONT && number != SIG_URG && number != SIG_WINCH)
        host(HOST_ABORT, number, 0, 0, 0, 0, 0);
}

i64 sys_sigreturn(struct thread *t)
{
    u64 at = t->regs.rsp - 8 - __builtin_offsetof(struct signal_frame, return_address);
    if (!user_range(at, sizeof(struct signal_frame)) || at % 64)
        host(HOST_ABORT, 11, 0, 0, 0, 0, 0);
    const struct signal_frame *frame = (const struct signal_frame *)at;
    fpu_load(frame->fpu);
    t->regs = frame->regs;
    t->regs.cs = SEL_USER_CODE;
    t->regs.ss = SEL_USER_DATA;
    t->signal_mask = frame->mask;
    return (i64)t->regs.rax;
}

i64 sys_kill(struct thread *t, u64 number)
{
    if (number >= SIGNALS - 1)
        return -EINVAL_;
    if (number)
        t->pending |= 1UL << number;
    return 0;
}

i64 sys_setitimer(u64 which, u64 value, u64 old)
{
    if (which != 0) /* ITIMER_REAL only */
        return -EINVAL_;
    if ((value && !user_range(value, 32)) || (old && !user_range(old, 32)))
        return -EFAULT_;
    u64 now = now_ns(), left = alarm_ns > now ? alarm_ns - now : 0, interval = alarm_interval_ns;
    if (value) {
        const u64 *v = (const u64 *)value; /* interval seconds, microseconds; value seconds, microseconds */
        u64 ns = v[2] * NS_PER_S + v[3] * 1000;
        alarm_interval_ns = v[0] * NS_PER_S + v[1] * 1000;
        alarm_ns = ns ? now + ns : 0;
        publish_threads();
    }
    if (old) {
        u64 *o = (u64 *)old;
        o[0] = interval / NS_PER_S;
        o[1] = interval % NS_PER_S / 1000;
        o[2] = left / NS_PER_S;
        o[3] = left % NS_PER_S / 1000;
    }
    return 0;
}

i64 sys_alarm(u64 seconds)
{
    u64 now = now_ns(), left = alarm_ns > now ? (alarm_ns - now + NS_PER_S - 1) / NS_PER_S : 0;
    alarm_interval_ns = 0;
    alarm_ns = (u32)seconds ? now + (u32)seconds * NS_PER_S : 0;
    publish_threads();
    return (i64)left;
}
