/* Whether the host's side of a ring loads each shared word once: what is checked has to be what is used.
 *
 * ring.c is compiled with the compiler's instrumentation for races (-fsanitize=thread -c) and linked without its run-time
 * library: the calls that the compiler puts before every load come here. A word of the guest's ring that is loaded
 * twice within one ring_take() ends the program, whatever it holds; no second thread has to come at the right moment.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring.h"

static _Alignas(4096) u8 memory[RING_BYTES];
static u8 loaded[RING_BYTES]; /* within the call under way */
static unsigned long loads;

static void on_load(const volatile void *address, unsigned long size)
{
    unsigned long at = (unsigned long)((const volatile u8 *)address - memory);
    if (at >= RING_BYTES)
        return; /* not shared */
    for (unsigned long i = at; i < at + size; i++) {
        if (loaded[i]++) {
            fprintf(stderr, "byte %#lx of the shared memory is loaded twice\n", i);
            exit(1);
        }
        loads++;
    }
}

#define LOAD(name, size) void name(void *p); void name(void *p) { on_load(p, size); }
LOAD(__tsan_read1, 1) LOAD(__tsan_read2, 2) LOAD(__tsan_read4, 4) LOAD(__tsan_read8, 8) LOAD(__tsan_read16, 16)
LOAD(__tsan_unaligned_read2, 2) LOAD(__tsan_unaligned_read4, 4) LOAD(__tsan_unaligned_read8, 8)
LOAD(__tsan_volatile_read1, 1) LOAD(__tsan_volatile_read2, 2) LOAD(__tsan_volatile_read4, 4)
LOAD(__tsan_volatile_read8, 8)
#define IGNORE(name) void name(void *p); void name(void *p) { (void)p; }
IGNORE(__tsan_write1) IGNORE(__tsan_write2) IGNORE(__tsan_write4) IGNORE(__tsan_write8) IGNORE(__tsan_write16)
IGNORE(__tsan_unaligned_write2) IGNORE(__tsan_unaligned_write4) IGNORE(__tsan_unaligned_write8)
IGNORE(__tsan_volatile_write1) IGNORE(__tsan_volatile_write2) IGNORE(__tsan_volatile_write4)
IGNORE(__tsan_volatile_write8) IGNORE(__tsan_func_entry)
void __tsan_read_range(void *p, unsigned long size);
void __tsan_read_range(void *p, unsigned long size) { on_load(p, size); }
void __tsan_write_range(void *p, unsigned long size);
void __tsan_write_range(void *p, unsigned long size) { (void)p, (void)size; }
void __tsan_init(void);
void __tsan_init(void) {}
void __tsan_func_exit(void);
void __tsan_func_exit(void) {}
u32 __tsan_atomic32_load(const volatile u32 *p, int order);
u32 __tsan_atomic32_load(const volatile u32 *p, int order)
{
    (void)order;
    on_load(p, 4);
    return *p;
}
void __tsan_atomic32_store(volatile u32 *p, u32 value, int order);
void __tsan_atomic32_store(volatile u32 *p, u32 value, int order)
{
    (void)order;
    *p = value;
}
void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_thread_fence(int order) { (void)order; }

static enum ring_result take(struct ring *r)
{
    static u8 payload[RING_MAX_PAYLOAD];
    struct wire_frame f;
    memset(loaded, 0, sizeof loaded);
    return ring_take(r, &f, payload);
}

int main(void)
{
    const u16 types[] = {FRAME_OPEN, FRAME_DATA, FRAME_FIN, FRAME_RESET, FRAME_CREDIT, FRAME_NAME_QUERY, 99};
    struct ring r;
    ring_init(&r, memory);
    u32 head = 0;
    for (u32 i = 0; i < sizeof types / sizeof *types; i++) {
        struct wire_frame f = {.length = 20 * i, .type = types[i], .stream = 1};
        memcpy(memory + RING_TX_OFFSET + head, &f, sizeof f);
        head += (16 + f.length + 15) & ~15u;
    }
    *(volatile u32 *)memory = head;
    u32 frames = 0;
    while (take(&r) == RING_FRAME)
        frames++;
    if (frames != sizeof types / sizeof *types - 1 || loads < 16 * frames)
        return 2; /* the loads are not seen: instrumented otherwise than thought */
    memset(loaded, 0, sizeof loaded);
    static u8 data[100];
    for (u32 i = 0; i < 4; i++) { /* one load of each of the guest's words in a put, too */
        if (ring_put(&r, FRAME_DATA, 1, 0, data, sizeof data) != RING_FRAME)
            return 3;
        memset(loaded, 0, sizeof loaded);
    }
    printf("%lu loads, %u frames\n", loads, frames);
    return 0;
}
