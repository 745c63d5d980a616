/* What thread.c (contexts, who runs next, signals) and futex.c share. */
#ifndef SEAMGATE_THREAD_H
#define SEAMGATE_THREAD_H
#include "shim.h"

extern struct thread threads[THREADS];

/* Ends the call in which a thread waits, with this result. */
void finish_call(struct thread *t, i64 result);

/* Wakes up to `most` threads that wait at the address for one of `bits`; returns how many. */
int futex_wake(u64 address, u32 bits, u64 most);

/* Returns the time at `address` in nanoseconds, or -1 if it is not a valid struct timespec. */
i64 timespec_ns(u64 address);

#endif
