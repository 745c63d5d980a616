/* Guest memory: brk, mmap and their kin over one flat range, one bit a page for "used" and one for "may hold bytes".
 *
 * Pages are handed out lowest first, so that a template stays compact. A fresh page reads as zero because it never
 * was touched, because the host released it, or because it is cleared here. Protection bits are accepted and not
 * enforced: everything in a guest is one trust domain. Files are read into private pages; there is no shared mapping.
 */
#include "shim.h"

#define MAX_PAGES (GA_END / PAGE)
#define WORD 64UL
#define RELEASE_PAGES 64UL /* give 256 KiB and more back to the host; below, clearing on reuse is cheaper */

static u64 used[MAX_PAGES / WORD];
static u64 soiled[MAX_PAGES / WORD];
static u64 memory_end, brk_now, free_hint; /* no free page lies below free_hint */

enum { MAP_SHARED_ = 1, MAP_FIXED_ = 0x10, MAP_ANONYMOUS_ = 0x20, MAP_FIXED_NOREPLACE_ = 0x100000, PROT_WRITE_ = 2 };

static int bit(const u64 *map, u64 page) { return map[page / WORD] >> page % WORD & 1; }

static void set_bits(u64 *map, u64 page, u64 pages, int on)
{
    for (u64 p = page; p < page + pages; p++)
        if (on)
            map[p / WORD] |= 1UL << p % WORD;
        else
            map[p / WORD] &= ~(1UL << p % WORD);
}

void memory_start(void)
{
    memory_end = PARAMS->memory_end;
    brk_now = PARAMS->brk_start;
    free_hint = PARAMS->mmap_low / PAGE;
}

/* A restored guest may have been given more memory than its template had. */
void memory_refresh(void)
{
    if (PARAMS->memory_end > memory_end)
        memory_end = PARAMS->memory_end;
}

u64 memory_total(void) { return memory_end; }

u64 memory_free(void)
{
    u64 n = 0;
    for (u64 p = PARAMS->mmap_low / PAGE; p < memory_end / PAGE; p++)
        n += !bit(used, p);
    return n * PAGE;
}

/* Returns 1 if [address, address + length) is memory that a program may name. */
int user_range(u64 address, u64 length)
{
    return address >= GA_STACK && address < memory_end && length <= memory_end - address;
}

static int is_zero(const u64 *page)
{
    for (u64 i = 0; i < PAGE / 8; i++)
        if (page[i])
            return 0;
    return 1;
}

/* Makes pages read as zero; looks before it writes, so that an untouched page stays untouched. */
static void make_zero(u64 page, u64 pages)
{
    for (u64 p = page; p < page + pages; p++)
        if (bit(soiled, p) && !is_zero((const u64 *)(p * PAGE)))
            clear((void *)(p * PAGE), PAGE);
}

static u64 find_run(u64 pages)
{
    u64 run = 0, end = memory_end / PAGE;
    int first = 1;
    for (u64 p = free_hint; p < end; p++) {
        if (used[p / WORD] == ~0UL && p % WORD == 0) {
            p += WORD - 1;
            run = 0;
            continue;
        }
        if (bit(used, p)) {
            run = 0;
            continue;
        }
        if (first) {
            free_hint = p;
            first = 0;
        }
        if (++run == pages)
            return p - pages + 1;
    }
    return 0;
}

static int grow(u64 bytes)
{
    i64 end = host(HOST_GROW, bytes, 0, 0, 0, 0, 0);
    if (end <= (i64)memory_end || (u64)end > GA_END)
        return 0;
    memory_end = (u64)end;
    return 1;
}

/* Returns the address of `pages` zeroed pages, or 0 if there are no more. */
u64 pages_allocate(u64 pages)
{
    if (!pages || pages > MAX_PAGES)
        return 0;
    u64 page = find_run(pages);
    while (!page) {
        if (!grow(pages * PAGE))
            return 0;
        page = find_run(pages);
    }
    make_zero(page, pages);
    set_bits(used, page, pages, 1);
    set_bits(soiled, page, pages, 1);
    return page * PAGE;
}

void pages_free(u64 address, u64 pages)
{
    u64 page = address / PAGE;
    set_bits(used, page, pages, 0);
    if (page < free_hint)
        free_hint = page;
    if (pages >= RELEASE_PAGES && host(HOST_RELEASE, address, pages * PAGE, 0, 0, 0, 0) == 1)
        set_bits(soiled, page, pages, 0);
}

/* Returns the part of a range above the program and its libraries' loader, which are never handed out, as page
 * numbers; 0 pages if there is none. */
static u64 managed(u64 address, u64 pages, u64 *first)
{
    u64 low = PARAMS->mmap_low / PAGE, page = address / PAGE, end = page + pages;
    *first = page < low ? low : page;
    return end > *first ? end - *first : 0;
}

static i64 read_file(u64 fd, u64 address, u64 length, u64 offset)
{
    struct file *f = file_of(fd);
    if (!f || f->type != FILE_HOST)
        return f ? -ENODEV_ : -EBADF_;
    for (u64 done = 0; done < length;) {
        i64 n = host(HOST_PREAD, f->host.handle, address + done, length - done, offset + done, 0, 0);
        if (n < 0)
            return n;
        if (n == 0)
            break;
        done += (u64)n;
    }
    return 0;
}

static u64 place(u64 address, u64 pages, u64 flags)
{
    u64 first;
    if (!(flags & (MAP_FIXED_ | MAP_FIXED_NOREPLACE_)))
        return pages_allocate(pages);
    while (!user_range(address, pages * PAGE))
        if (address < GA_STACK || address >= GA_END || pages * PAGE > GA_END - address ||
            !grow(address + pages * PAGE - memory_end))
            return 0;
    u64 n = managed(address, pages, &first);
    set_bits(used, first, n, 1);
    set_bits(soiled, address / PAGE, pages, 1);
    make_zero(address / PAGE, pages);
    return address;
}

i64 sys_mmap(u64 address, u64 length, u64 protection, u64 flags, u64 fd, u64 offset)
{
    if (!length || offset % PAGE || (flags & MAP_FIXED_ && address % PAGE))
        return -EINVAL_;
    if (length > GA_END)
        return -ENOMEM_;
    if (!(flags & MAP_ANONYMOUS_) && flags & MAP_SHARED_ && !(flags & 2) && protection & PROT_WRITE_)
        return -ENODEV_;
    u64 pages = (length + PAGE - 1) / PAGE, at = place(address, pages, flags);
    if (!at)
        return -ENOMEM_;
    if (flags & MAP_ANONYMOUS_)
        return (i64)at;
    i64 error = read_file(fd, at, pages * PAGE, offset);
    if (error && !(flags & MAP_FIXED_))
        pages_free(at, pages);
    return error ? error : (i64)at;
}

i64 sys_munmap(u64 address, u64 length)
{
    u64 pages = (length + PAGE - 1) / PAGE, first;
    if (address % PAGE || !length || !user_range(address, pages * PAGE))
        return -EINVAL_;
    u64 n = managed(address, pages, &first);
    if (n)
        pages_free(first * PAGE, n);
    return 0;
}

i64 sys_mremap(u64 address, u64 old_length, u64 length, u64 flags, u64 fixed)
{
    (void)fixed;
    u64 old_pages = (old_length + PAGE - 1) / PAGE, pages = (length + PAGE - 1) / PAGE, page = address / PAGE;
    if (address % PAGE || !old_pages || !pages || length > GA_END || !user_range(address, old_pages * PAGE))
        return -EINVAL_;
    if (flags & 2) /* MREMAP_FIXED: nobody needs it */
        return -EINVAL_;
    if (pages <= old_pages)
        return pages < old_pages && sys_munmap(address + pages * PAGE, (old_pages - pages) * PAGE) < 0
                   ? -EINVAL_ : (i64)address;
    u64 more = pages - old_pages, free = 0;
    while (free < more && page + old_pages + free < memory_end / PAGE && !bit(used, page + old_pages + free))
        free++;
    if (free == more && address >= PARAMS->mmap_low) {
        make_zero(page + old_pages, more);
        set_bits(used, page + old_pages, more, 1);
        set_bits(soiled, page + old_pages, more, 1);
        return (i64)address;
    }
    if (!(flags & 1)) /* MREMAP_MAYMOVE */
        return -ENOMEM_;
    u64 at = pages_allocate(pages);
    if (!at)
        return -ENOMEM_;
    copy((void *)at, (const void *)address, old_pages * PAGE);
    sys_munmap(address, old_pages * PAGE);
    return (i64)at;
}

i64 sys_madvise(u64 address, u64 length, u64 advice)
{
    u64 pages = (length + PAGE - 1) / PAGE, page = address / PAGE;
    if (address % PAGE)
        return -EINVAL_;
    if (!pages)
        return 0;
    if (!user_range(address, pages * PAGE))
        return -ENOMEM_;
    if (advice != 4) /* MADV_DONTNEED; the others are hints */
        return advice <= 25 ? 0 : -EINVAL_;
    if (pages < RELEASE_PAGES || host(HOST_RELEASE, address, pages * PAGE, 0, 0, 0, 0) != 1) {
        set_bits(soiled, page, pages, 1);
        make_zero(page, pages);
    }
    return 0;
}

i64 sys_mprotect(u64 address, u64 length)
{
    if (address % PAGE)
        return -EINVAL_;
    return !length || user_range(address, length) ? 0 : -ENOMEM_;
}

i64 sys_brk(u64 address)
{
    if (address < PARAMS->brk_start || address > PARAMS->brk_limit)
        return (i64)brk_now;
    if (address < brk_now) {
        clear((void *)address, (PAGE - address % PAGE) % PAGE);
        u64 page = (address + PAGE - 1) / PAGE, end = (brk_now + PAGE - 1) / PAGE;
        if (end > page) {
            set_bits(soiled, page, end - page, 1);
            make_zero(page, end - page);
        }
    }
    brk_now = address;
    return (i64)brk_now;
}
