/* Gives back the pages of a guest that are what the template has, and of a parked one also those that are nearly so.
 *
 * Most pages that a guest makes its own hold reference counts that went up and down. For one that waits the equal ones
 * are dropped: whoever touches such a page again gets a copy again. For one that is parked the words that differ are
 * noted, the page is dropped, and they are put back before its machine is made anew; nothing reads its memory meanwhile.
 */
#define _GNU_SOURCE
#include "machine_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BATCH (64 * PAGE)
#define WORDS (PAGE / sizeof(u64))
#define MOST_WORDS 24 /* noted of a page; one with more differences is kept */
#define NOTES 16384   /* noted of a guest */

struct noted {
    struct machine_word words[NOTES];
    u32 count;
};

struct trimming {
    const struct machine *m;
    struct noted *noted; /* null: equal pages only */
    u64 dropped;
};

/* Notes the words of a page that differ. Returns whether the page can be dropped. */
static bool note(struct noted *noted, u64 address, const u64 *now, const u64 *before)
{
    u32 first = noted->count, most = first + MOST_WORDS < NOTES ? first + MOST_WORDS : NOTES;
    for (u32 i = 0; i < WORDS; i++) {
        if (now[i] == before[i])
            continue;
        if (noted->count == most) {
            noted->count = first;
            return false;
        }
        noted->words[noted->count++] = (struct machine_word){address + i * sizeof(u64), now[i]};
    }
    return true;
}

static int drop(struct trimming *t, u64 address, u64 length)
{
    t->dropped += length;
    /* SAFE: the range is part of a run of private pages of the template's part of memory. */
    return length ? madvise(t->m->memory + address, length, MADV_DONTNEED) : 0;
}

static int trim_run(void *context, u64 address, u64 length)
{
    static __thread u64 before[BATCH / sizeof(u64)];
    struct trimming *t = context;
    u64 goes = 0; /* bytes of pages to drop that end at the page looked at */
    for (u64 done = 0; done < length; done += PAGE) {
        if (done % BATCH == 0) {
            u64 size = length - done < BATCH ? length - done : BATCH;
            if (pread(t->m->image, before, size, (off_t)(address + done)) != (ssize_t)size)
                return -1;
        }
        /* SAFE: address + length <= template_bytes: machine_private_pages() names no other pages. */
        const u64 *now = (const u64 *)(t->m->memory + address + done), *then = before + done % BATCH / sizeof(u64);
        /* What lies below the stack the host writes to, also while a guest is parked. */
        if (memcmp(now, then, PAGE) == 0 ||
            (t->noted && address + done >= GA_STACK && note(t->noted, address + done, now, then))) {
            goes += PAGE;
            continue;
        }
        if (drop(t, address + done - goes, goes))
            return -1;
        goes = 0;
    }
    return drop(t, address + length - goes, goes);
}

/* Returns how many bytes were given back, or -1 with errno. The guest must not run meanwhile. */
i64 machine_trim(struct machine *m)
{
    struct trimming t = {.m = m};
    if (!m->template_bytes || m->building)
        return 0;
    return machine_private_pages(m, trim_run, &t) ? -1 : (i64)t.dropped;
}

static void put_back(struct machine *m, const struct machine_word *words, u32 count)
{
    for (u32 i = 0; i < count; i++) /* SAFE: an address within a page of this machine, noted above */
        *(u64 *)(m->memory + words[i].address) = words[i].value;
}

/* Drops what can be put together again from the template. A failure costs memory only: what was noted is right. */
void machine_fold(struct machine *m, struct machine_folded *out)
{
    static __thread struct noted noted;
    struct trimming t = {.m = m, .noted = &noted};
    noted.count = 0;
    *out = (struct machine_folded){0};
    if (!m->template_bytes || m->building)
        return;
    (void)machine_private_pages(m, trim_run, &t);
    out->words = malloc((noted.count + 1) * sizeof *out->words);
    if (!out->words) {
        put_back(m, noted.words, noted.count);
        return;
    }
    memcpy(out->words, noted.words, noted.count * sizeof *out->words);
    out->count = noted.count;
}

/* Puts it together again. */
void machine_unfold(struct machine *m, struct machine_folded *folded)
{
    put_back(m, folded->words, folded->count);
    free(folded->words);
    *folded = (struct machine_folded){0};
}
