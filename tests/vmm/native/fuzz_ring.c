/* A guest that does its worst to the host's side of a ring, in one process, under sanitizers.
 *
 * Invariant: whatever the shared memory holds, and however it changes while it is read, ring_take() gives a frame whose
 * payload has at most RING_MAX_PAYLOAD bytes and a type that guests send, nothing, or a violation; it takes no more than
 * was published and reads nothing but the guest's ring, as ring_put() writes nothing but ours; neither crashes or loops.
 * The other ring is poisoned meanwhile, and the memory is followed by a page that faults.
 *
 * Two ways to run: with libFuzzer (-DLIBFUZZER, clang -fsanitize=fuzzer), from the corpus beside, or alone: fuzz_ring
 * SECONDS SEED, with its own generator of nearly right frames. In both a second thread flips words of the memory all the
 * time, first of all the head of the frame that is read; half of the time, and with libFuzzer only for inputs
 * whose first byte is odd, so that what must hold without it is checked as well, and a finding can be run again.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "../../../vmm/native/ring.h"

#define PAGE 4096u
static u8 *base;
static volatile int stop, racing, idle;
static volatile u32 reading; /* offset of the frame that is read: where a race hurts most */
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
        sum ^= payload[i]; /* read, so that a sanitizer sees it */
    (void)sum;
}

/* Takes a frame, and checks what must hold beside its own shape. */
static enum ring_result take(struct ring *r, struct wire_frame *f)
{
    u32 tail = r->tx_tail, published = *(volatile u32 *)base - tail;
    reading = tail & (RING_TX_SIZE - 1);
    ASAN_POISON_MEMORY_REGION(base + RING_RX_OFFSET, RING_RX_SIZE);
    enum ring_result what = ring_take(r, f, payload);
    ASAN_UNPOISON_MEMORY_REGION(base + RING_RX_OFFSET, RING_RX_SIZE);
    if (r->tx_tail - tail > RING_TX_SIZE)
        abort();
    if (racing)
        return what;
    if ((published > RING_TX_SIZE || published % 16) != (what == RING_BAD_INDEX))
        abort();
    if (r->tx_tail - tail > published && what != RING_BAD_INDEX)
        abort();
    return what;
}

/* Takes everything that can be taken; returns how many frames that was. A guest can publish at most a ring at a time, so
 * that a bounded number of calls comes to an end. */
static unsigned drain(struct ring *r)
{
    struct wire_frame f;
    for (unsigned n = 0;; n++) {
        if (n > 100000)
            abort();
        if (take(r, &f) != RING_FRAME)
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
        ASAN_POISON_MEMORY_REGION(base + RING_TX_OFFSET, RING_TX_SIZE);
        enum ring_result what = ring_put(r, FRAME_DATA, i, 0, data, n);
        ASAN_UNPOISON_MEMORY_REGION(base + RING_TX_OFFSET, RING_TX_SIZE);
        if (what == RING_FRAME && n > RING_MAX_PAYLOAD)
            abort();
        (void)ring_guest_wants_wake(r);
    }
    (void)ring_may_sleep(r);
    ring_blocked(r);
}

static u32 next(u64 *state)
{
    *state = *state * 6364136223846793005UL + 1442695040888963407UL;
    return (u32)(*state >> 33);
}

/* Not instrumented: it writes where the other thread may not. */
__attribute__((no_sanitize("address"))) static void *racer(void *seed)
{
    u64 state = (u64)seed * 77 + 1;
    while (!stop) {
        idle = !racing;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (!racing) {
            __builtin_ia32_pause();
            continue;
        }
        for (u32 i = 0; i < 4096 && racing; i++) {
            volatile u32 *length = (volatile u32 *)(base + RING_TX_OFFSET + reading);
            u32 before = *length;
            *length = 0x4010 + before % 4096 * 8;
            for (u32 n = i % 32; n; n--) /* else both stores leave this processor as one */
                __builtin_ia32_pause();
            *length = before;
            for (u32 n = i % 16; n; n--)
                __builtin_ia32_pause();
        }
        u32 what = next(&state);
        volatile u32 *word = what % 4 == 0   ? (volatile u32 *)base
                             : what % 4 == 1 ? (volatile u32 *)(base + 192)
                                             : (volatile u32 *)(base + RING_TX_OFFSET + next(&state) % RING_TX_SIZE / 4 * 4);
        if (racing)
            *word = what % 7 == 0 ? next(&state) : *word + 16 * (next(&state) % 64);
    }
    return NULL;
}

/* Begins or ends the race; after its end nothing changes by itself. */
static void race(int on)
{
    racing = on;
    while (!on && !idle)
        __builtin_ia32_pause();
}

#ifdef LIBFUZZER
/* Input: flags (1: race), tx_head, rx_tail, where our own indices are (16 bytes each), two dice; then the guest's ring. */
int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
    enum { HEAD = 16 };
    static pthread_t thread;
    struct ring r;
    u32 at[3];
    if (!base) {
        base = fenced();
        if (pthread_create(&thread, NULL, racer, (void *)1))
            abort();
    }
    if (size < HEAD)
        return 0;
    memset(base, 0, RING_BYTES);
    ring_init(&r, base);
    memcpy(at, data + 1, sizeof at);
    r.tx_tail = at[2] & ~15u;
    r.rx_head = at[2] * 16;
    *(volatile u32 *)base = data[0] & 2 ? at[0] : r.tx_tail + at[0] % (RING_TX_SIZE + 1);
    *(volatile u32 *)(base + 192) = data[0] & 4 ? at[1] : r.rx_head - at[1] % (RING_RX_SIZE + 1);
    u32 begin = r.tx_tail & (RING_TX_SIZE - 1), n = (u32)(size - HEAD), first = RING_TX_SIZE - begin;
    if (n > RING_TX_SIZE)
        n = RING_TX_SIZE;
    memcpy(base + RING_TX_OFFSET + begin, data + HEAD, n < first ? n : first);
    if (n > first)
        memcpy(base + RING_TX_OFFSET, data + HEAD + first, n - first);
    race(data[0] & 1);
    drain(&r);
    put_some(&r, (u32)data[13] << 8 | data[14]);
    race(0);
    return 0;
}
#else
static void fill(u64 *state)
{
    u32 at = 0;
    while (at + 32 < RING_TX_SIZE) {
        u32 dice = next(state), length = dice % 11 == 0   ? next(state)
                                          : dice % 11 == 1 ? next(state) % (RING_TX_SIZE + 64)
                                                           : next(state) % 600;
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
    racing = 1;
    if (pthread_create(&thread, NULL, racer, (void *)state))
        abort();
    for (; time(NULL) < end; rounds++) {
        struct ring r;
        fill(&state);
        ring_init(&r, base);
        r.tx_tail = next(&state) & ~15u;
        r.rx_head = next(&state) & ~15u;
        race(rounds >> 7 & 1); /* long enough for the other thread to come to it */
        for (u32 i = 0; i < 4; i++) {
            *(volatile u32 *)base = r.tx_tail + 16 * (next(&state) % (i ? 4097 : 4200));
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
