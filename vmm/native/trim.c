/* Gives back the pages of a guest that are what the template has: most of those whose reference counts went up and down.
 * Called for a guest that waits; whoever touches such a page again gets a copy again, from the template. */
#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define BATCH (64 * PAGE)

struct trimming {
    const struct machine *m;
    u64 dropped;
};

static int drop(struct trimming *t, u64 address, u64 length)
{
    t->dropped += length;
    /* SAFE: the range is part of a run of private pages of the template's part of memory. */
    return length ? madvise(t->m->memory + address, length, MADV_DONTNEED) : 0;
}

static int trim_run(void *context, u64 address, u64 length)
{
    static __thread u8 before[BATCH];
    struct trimming *t = context;
    u64 equal = 0; /* bytes of equal pages that end at the page looked at */
    for (u64 done = 0; done < length; done += PAGE) {
        if (done % BATCH == 0) {
            u64 size = length - done < BATCH ? length - done : BATCH;
            if (pread(t->m->image, before, size, (off_t)(address + done)) != (ssize_t)size)
                return -1;
        }
        /* SAFE: address + length <= template_bytes: machine_private_pages() names no other pages. */
        if (memcmp(t->m->memory + address + done, before + done % BATCH, PAGE) == 0) {
            equal += PAGE;
            continue;
        }
        if (drop(t, address + done - equal, equal))
            return -1;
        equal = 0;
    }
    return drop(t, address + length - equal, equal);
}

/* Returns how many bytes were given back, or -1 with errno. The guest must not run meanwhile. */
i64 machine_trim(struct machine *m)
{
    struct trimming t = {.m = m};
    if (!m->template_bytes || m->building)
        return 0;
    return machine_private_pages(m, trim_run, &t) ? -1 : (i64)t.dropped;
}
