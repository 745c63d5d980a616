/* See machine.h: which pages a guest has made its own (read from the kernel, never from the guest), and how they are given back. */
#define _GNU_SOURCE
#include "machine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POPULATE_WRITE 23 /* MADV_POPULATE_WRITE, since Linux 5.14 */
#define MOST_LEARNT 256   /* pages that tenants make hot: 1 MiB of a machine that waits for the next one */

static int pagemap = -1;

/* Returns 0 once this process can tell private pages apart; call it before paths are given up. */
int machine_open_pagemap(void)
{
    if (pagemap < 0)
        pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    return pagemap < 0 ? -1 : 0;
}

/* A process that was forked has other pages than its parent. */
void machine_close_pagemap(void)
{
    if (pagemap >= 0)
        close(pagemap);
    pagemap = -1;
}

static bool is_hot(const struct machine *m, u64 page) { return m->hot && m->hot[page / 8] >> page % 8 & 1; }

static int make_hot_bits(struct machine *m)
{
    u64 bytes = m->template_bytes / PAGE / 8 + 1;
    if (!m->hot)
        m->hot = calloc(bytes, 1);
    if (!m->seen)
        m->seen = calloc(bytes, 1);
    return m->hot && m->seen ? 0 : -1;
}

/* Returns 0 with the range unshared now and kept over resets: every guest of the template writes there. */
int machine_set_hot(struct machine *m, u64 address, u64 length)
{
    if (address % PAGE || length % PAGE || address > m->template_bytes || length > m->template_bytes - address) {
        errno = EINVAL;
        return -1;
    }
    if (make_hot_bits(m))
        return -1;
    for (u64 page = address / PAGE; page < (address + length) / PAGE; page++)
        m->hot[page / 8] |= (u8)(1u << page % 8);
    /* SAFE: the range lies in the template's part of memory. A failure costs time only: the pages fault in later. */
    (void)madvise(m->memory + address, length, POPULATE_WRITE);
    return 0;
}

/* Puts the template's bytes back into the hot pages: copying is far cheaper than losing and faulting them again. */
static int refill_hot(const struct machine *m)
{
    u64 pages = m->template_bytes / PAGE, start = 0, run = 0;
    for (u64 page = 0; m->hot && page <= pages; page++) {
        bool hot = page < pages && is_hot(m, page);
        if (hot && !run++)
            start = page;
        if (hot || !run)
            continue;
        /* SAFE: start + run <= pages, the template's part of memory. */
        if (pread(m->image, m->memory + start * PAGE, run * PAGE, (off_t)(start * PAGE)) != (ssize_t)(run * PAGE))
            return -1;
        run = 0;
    }
    return 0;
}

/* Calls `each` with every run of private pages below `end`. Returns 0, or -1 with errno. */
static int private_pages(const struct machine *m, u64 end, bool skip_hot, int (*each)(void *, u64, u64), void *context)
{
    enum { BATCH = 2048 };
    static __thread u64 entries[BATCH];
    u64 pages = end / PAGE, run = 0, start = 0;
    if (machine_open_pagemap())
        return -1;
    for (u64 page = 0; page < pages; page += BATCH) {
        u64 n = pages - page < BATCH ? pages - page : BATCH;
        off_t at = (off_t)(((u64)m->memory / PAGE + page) * sizeof *entries);
        if (pread(pagemap, entries, n * sizeof *entries, at) != (ssize_t)(n * sizeof *entries)) {
            errno = EIO;
            return -1;
        }
        for (u64 i = 0; i < n; i++) {
            /* Source: Documentation/admin-guide/mm/pagemap.rst: 63 present, 62 swapped, 61 page of a file */
            bool own = entries[i] >> 62 && !(entries[i] >> 61 & 1);
            if (skip_hot && is_hot(m, page + i))
                own = false;
            if (own && !run++)
                start = page + i;
            if (!own && run) {
                if (each(context, start * PAGE, run * PAGE))
                    return -1;
                run = 0;
            }
        }
    }
    return run && each(context, start * PAGE, run * PAGE) ? -1 : 0;
}

int machine_private_pages(const struct machine *m, int (*each)(void *, u64 address, u64 length), void *context)
{
    return private_pages(m, m->template_bytes, false, each, context);
}

/* The same for all of its memory, what lies beyond the template included. */
int machine_own_pages(const struct machine *m, int (*each)(void *, u64 address, u64 length), void *context)
{
    return private_pages(m, m->end, false, each, context);
}

/* Whether a page that a tenant wrote is kept for the next one. What two tenants of a machine wrote the third will write:
 * putting the template's bytes back costs a twentieth of losing the page and faulting it, in two tables, again. */
static bool learn(struct machine *m, u64 page)
{
    u8 bit = (u8)(1u << page % 8);
    bool again = m->seen[page / 8] & bit;
    m->seen[page / 8] |= bit;
    if (!again || m->learnt == MOST_LEARNT)
        return false;
    m->hot[page / 8] |= bit;
    m->learnt++;
    return true;
}

static int drop(const struct machine *m, u64 address, u64 length)
{
    /* SAFE: the range is part of a run of private pages of the template's part of memory. */
    return length ? madvise(m->memory + address, length, MADV_DONTNEED) : 0;
}

static int drop_run(void *context, u64 address, u64 length)
{
    struct machine *m = context;
    u64 goes = 0; /* bytes of pages to drop that end at the page looked at */
    for (u64 done = 0; done < length; done += PAGE) {
        if (!learn(m, (address + done) / PAGE)) {
            goes += PAGE;
            continue;
        }
        if (drop(m, address + done - goes, goes))
            return -1;
        goes = 0;
    }
    return drop(m, address + length - goes, goes);
}

/* Returns 0 after bringing memory back to the template and detaching the ring: for the next tenant. Only pages that the
 * last tenant wrote are dropped, or have the template's bytes put back: what it merely read stays mapped, which is what
 * makes a machine warm. The processor is set by machine_load(), which replaces every register. Slots that were added
 * stay, emptied. A machine that was brought back and not used since is left as it is: so the work can be done before a
 * guest waits for it. */
int machine_reset(struct machine *m)
{
    if (m->clean)
        return 0;
    if (machine_settle(m) || !m->template_bytes || m->building)
        return -1;
    if (make_hot_bits(m) || private_pages(m, m->template_bytes, true, drop_run, m) || refill_hot(m)) {
        if (machine_map_image(m)) /* all of it anew: slower, and just as clean */
            return -1;
    }
    if (m->end > m->template_bytes && madvise(m->memory + m->template_bytes, m->end - m->template_bytes, MADV_DONTNEED))
        return -1;
    m->cpu_ns = 0;
    m->runs = 0;
    m->yield_seq = 0;
    memset(m->signals, 0, sizeof m->signals);
    m->input_seq = 0;
    m->interrupting = false;
    if (m->has_ring && machine_detach_ring(m))
        return -1;
    m->clean = !machine_set_xcr0(m) && !machine_set_msrs(m);
    return m->clean ? 0 : -1;
}
