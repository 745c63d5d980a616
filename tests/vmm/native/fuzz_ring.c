/* A guest that does its worst to the host's side of a ring, in one process, under sanitizers.
 *
 * Invariant: whatever the shared memory holds, and however it changes while it is read, ring_take() gives a frame whose
 * payload has at most RING_MAX_PAYLOAD bytes and a type that guests send, nothing, or a violation; ring_put() never
 * writes outside the ring; neither crashes, loops or reads out of bounds. The memory is followed by a page that faults.
 *
 * Two ways to run: with libFuzzer (-DLIBFUZZER, clang -fsanitize=fuzzer), or alone: fuzz_ring SECONDS SEED, with its
 * own generator of nearly right frames and a second thread that flips words of the memory all the time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "../../../vmm/native/ring.h"

#define PAGE 4096u
static u8 *base;
static volatile int stop;
static u8 payload[RING_MAX_PAYLOAD];

/* Returns the ring's memory, with a page that faults right behind it. */
static u8 *fenced(void)
{
    size_t bytes = (RING_BYTES + PAGE - 1) / PAGE * PAGE;
    u8 *at = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + bytes, PAGE, PROT_NONE))
        abort();
    return at;
}

static void check(const struct wire_frame *f)
{
    if (f->length > RING_MAX_PAYLOAD || f->type == FRAME_PAD || f->type >= FRAME_END || f->type == FRAME_NAME_ANSWER)
        abort();
    volatile u8 sum = 0;
    for (u32 i = 0; i < f->length; i++)
        sum ^= payload[i];
}

/* Takes everything that can be taken; returns how many frames that was. A guest can publish at most a ring at a time, so
 * that a bounded number of calls comes to an end. */
static unsigned drain(struct ring *r)
{
    struct wire_frame f;
    for (unsigned n = 0;; n++) {
        if (n > 100000)
            abort();
        enum ring_result what = ring_take(r, &f, payload);
        if (what != RING_FRAME)
            return n;
        check(&f);
        if (n > RING_TX_SIZE / 16) /* the racing thread publishes for ever: enough */
            return n;
    }
}

static void put_some(struct ring *r, u32 dice)
{
    static u8 data[RING_MAX_PAYLOAD];
    for (u32 i = 0; i < 8; i++) {
        u32 room = ring_room(r), n = (dice >> i) % 3 == 0 ? room : (dice * (i + 1)) % (RING_MAX_PAYLOAD + 1);
        enum ring_result what = ring_put(r, FRAME_DATA, i, 0, data, n);
        if (what == RING_FRAME && n > RING_MAX_PAYLOAD)
            abort();
        (void)ring_guest_wants_wake(r);
    }
    (void)ring_may_sleep(r);
    ring_blocked(r);
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
    struct ring r;
    if (!base)
        base = fenced();
    memset(base, 0, RING_BYTES);
    ring_init(&r, base);
    if (size < 12)
        return 0;
    memcpy(base, data, 4);        /* tx_head */
    memcpy(base + 192, data + 4, 4); /* rx_tail */
    size_t n = size - 12 < RING_TX_SIZE ? size - 12 : RING_TX_SIZE;
    memcpy(base + RING_TX_OFFSET, data + 12, n);
    drain(&r);
    put_some(&r, (u32)data[8] << 8 | data[9]);
    return 0;
}
#else
static u32 next(u64 *state)
{
    *state = *state * 6364136223846793005UL + 1442695040888963407UL;
    return (u32)(*state >> 33);
}

static void *racer(void *seed)
{
    u64 state = (u64)seed * 77 + 1;
    while (!stop) {
        u32 what = next(&state);
        volatile u32 *word = what % 4 == 0   ? (volatile u32 *)base
                             : what % 4 == 1 ? (volatile u32 *)(base + 192)
                                             : (volatile u32 *)(base + RING_TX_OFFSET + next(&state) % RING_TX_SIZE / 4 * 4);
        *word = what % 7 == 0 ? next(&state) : *word + 16 * (next(&state) % 64);
    }
    return NULL;
}

static void fill(u64 *state)
{
    u32 at = 0;
    while (at + 32 < RING_TX_SIZE) {
        u32 dice = next(state), length = dice % 11 == 0 ? next(state) : next(state) % 600;
        struct wire_frame f = {.length = length, .type = (u16)(dice % 13 == 0 ? next(state) : 2 + dice % 6),
                               .stream = next(state) % 9, .aux = next(state)};
        memcpy(base + RING_TX_OFFSET + at, &f, sizeof f);
        at += (16 + length % 600 + 15) & ~15u;
    }
}

int main(int argc, char **argv)
{
    u64 state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, frames = 0, rounds = 0;
    time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 5);
    pthread_t thread;
    base = fenced();
    if (pthread_create(&thread, NULL, racer, (void *)state))
        abort();
    for (; time(NULL) < end; rounds++) {
        struct ring r;
        fill(&state);
        ring_init(&r, base);
        r.tx_tail = next(&state) & ~15u;
        r.rx_head = next(&state) & ~15u;
        for (u32 i = 0; i < 4; i++) {
            *(volatile u32 *)base = r.tx_tail + 16 * (next(&state) % 4097);
            frames += drain(&r);
            *(volatile u32 *)(base + 192) = r.rx_head - 16 * (next(&state) % 4097);
            put_some(&r, next(&state));
        }
    }
    stop = 1;
    pthread_join(thread, NULL);
    printf("%lu rounds, %lu frames\n", rounds, frames);
    return 0;
}
#endif
