/* The clocks as a vDSO: glibc finds it by AT_SYSINFO_EHDR and reads the time without a system call.
 *
 * Reads the four numbers of struct wire_params that the host writes at each start and restore; a guest that is asked
 * for another clock falls back to the system call, which the shim answers.
 */
#include "wire.h"

#define PARAMS ((const volatile struct wire_params *)GA_PARAMS)
#define NS_PER_S 1000000000UL

struct timespec64 { i64 seconds, nanoseconds; };

/* Returns the guest's monotonic time in nanoseconds. */
static u64 monotonic_ns(void)
{
    u32 low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    u64 ticks = ((u64)high << 32 | low) - PARAMS->tsc0;
    return PARAMS->mono_ns + (u64)((unsigned __int128)ticks * PARAMS->mult >> 32);
}

/* Returns 0; every clock but the CPU-time ones is answered here. */
int __vdso_clock_gettime(int clock, struct timespec64 *out)
{
    u64 ns;
    switch (clock) {
    case 0: case 5: case 11: /* REALTIME, REALTIME_COARSE, TAI */
        ns = monotonic_ns() + PARAMS->wall_offset_ns;
        break;
    case 1: case 4: case 6: case 7: /* MONOTONIC, MONOTONIC_RAW, MONOTONIC_COARSE, BOOTTIME */
        ns = monotonic_ns();
        break;
    default: {
        i64 result;
        __asm__ volatile("syscall" : "=a"(result) : "a"(228), "D"((i64)clock), "S"(out) : "rcx", "r11", "memory");
        return (int)result;
    }
    }
    out->seconds = (i64)(ns / NS_PER_S);
    out->nanoseconds = (i64)(ns % NS_PER_S);
    return 0;
}

/* Returns 0. */
int __vdso_gettimeofday(struct timespec64 *out, void *zone)
{
    (void)zone;
    if (out) {
        u64 ns = monotonic_ns() + PARAMS->wall_offset_ns;
        out->seconds = (i64)(ns / NS_PER_S);
        out->nanoseconds = (i64)(ns % NS_PER_S / 1000);
    }
    return 0;
}

/* Returns the seconds since the epoch. */
i64 __vdso_time(i64 *out)
{
    i64 seconds = (i64)((monotonic_ns() + PARAMS->wall_offset_ns) / NS_PER_S);
    if (out)
        *out = seconds;
    return seconds;
}

/* Returns 0: a guest has one processor. */
int __vdso_getcpu(u32 *cpu, u32 *node, void *unused)
{
    (void)unused;
    if (cpu)
        *cpu = 0;
    if (node)
        *node = 0;
    return 0;
}
