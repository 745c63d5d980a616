/* Futexes (futex(2)): threads wait for a word in memory to change, and wake each other. A waiter is found by its address. */
#include "thread.h"

int futex_wake(u64 address, u32 bits, u64 most)
{
    int n = 0;
    for (u32 i = 0; i < THREADS && (u64)n < most; i++) {
        struct thread *t = &threads[i];
        if (t->state == THREAD_FUTEX && t->futex == address && (t->futex_bits & bits)) {
            finish_call(t, 0);
            n++;
        }
    }
    return n;
}

static int requeue(u64 from, u64 to, u64 most)
{
    int n = 0;
    for (u32 i = 0; i < THREADS && (u64)n < most; i++)
        if (threads[i].state == THREAD_FUTEX && threads[i].futex == from) {
            threads[i].futex = to;
            n++;
        }
    return n;
}

/* Returns the time at `address` in nanoseconds, or -1 if it is not a valid struct timespec. */
i64 timespec_ns(u64 address)
{
    if (!user_range(address, 16))
        return -1;
    const i64 *ts = (const i64 *)address;
    if (ts[0] < 0 || ts[1] < 0 || ts[1] >= (i64)NS_PER_S)
        return -1;
    return ts[0] > 1000000000 ? (i64)(1000000000 * NS_PER_S) : ts[0] * (i64)NS_PER_S + ts[1]; /* 31 years is for ever */
}

static i64 futex_wait(struct thread *t, u64 address, u64 op, u32 value, u64 timeout, u32 bits)
{
    if (*(volatile u32 *)address != value)
        return -EAGAIN_;
    t->deadline = NEVER;
    if (timeout) {
        if (!user_range(timeout, 16))
            return -EFAULT_;
        i64 ns = timespec_ns(timeout);
        if (ns < 0)
            return -EINVAL_;
        if ((op & 0x7f) == 0)
            t->deadline = now_ns() + (u64)ns;
        else {
            i64 at = op & 256 ? ns - (i64)PARAMS->wall_offset_ns : ns;
            t->deadline = at < 0 ? 0 : (u64)at;
        }
    }
    t->futex = address;
    t->futex_bits = bits;
    t->state = THREAD_FUTEX;
    return BLOCKED;
}

i64 sys_futex(struct thread *t, u64 address, u64 op, u64 value, u64 timeout, u64 second, u64 bits)
{
    if (!user_range(address, 4) || address % 4)
        return address % 4 ? -EINVAL_ : -EFAULT_;
    switch (op & 0x7f) {
    case 0: /* WAIT */
        return futex_wait(t, address, op, (u32)value, timeout, ~0u);
    case 9: /* WAIT_BITSET */
        return (u32)bits ? futex_wait(t, address, op, (u32)value, timeout, (u32)bits) : -EINVAL_;
    case 1: /* WAKE */
        return futex_wake(address, ~0u, (u32)value);
    case 10: /* WAKE_BITSET */
        return (u32)bits ? futex_wake(address, (u32)bits, (u32)value) : -EINVAL_;
    case 4: /* CMP_REQUEUE */
        if (*(volatile u32 *)address != (u32)bits)
            return -EAGAIN_;
        /* fall through */
    case 3: { /* REQUEUE: the timeout argument is a count */
        if (!user_range(second, 4))
            return -EFAULT_;
        int n = futex_wake(address, ~0u, (u32)value);
        return n + requeue(address, second, (u32)timeout);
    }
    }
    return -ENOSYS_;
}
