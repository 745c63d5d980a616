/* poll, select and epoll over every kind of descriptor. A waiting thread is tried again when io_events moves. */
#include "shim.h"

enum { IN = 1, OUT = 4, ERR = 8, HUP = 0x10, NVAL = 0x20, RDHUP = 0x2000 };
#define EDGE 0x80000000u
#define ONE_SHOT 0x40000000u
#define ENTRIES 200

struct entry { struct file *file; u32 fd, events; u64 data, seen; };
struct epoll { u64 next; struct entry entries[ENTRIES]; };
#define EPOLL_PAGES ((sizeof(struct epoll) + PAGE - 1) / PAGE)

struct epoll_event_packed { u32 events; u64 data; } __attribute__((packed));

void file_changed(struct file *f)
{
    f->changes++;
    io_events++;
}

static u32 pipe_ready(const struct file *f)
{
    u32 ready = 0;
    const struct buffer *in = f->pipe.in, *out = f->pipe.out;
    if (in)
        ready |= (buffer_used(in) ? IN : 0) | (in->writer ? 0 : f->type == FILE_PAIR ? IN | HUP | RDHUP : HUP);
    if (out)
        ready |= !out->reader ? ERR | OUT : BUFFER_BYTES - buffer_used(out) >= PAGE ? OUT : 0;
    return ready;
}

static u32 epoll_ready(const struct epoll *e)
{
    for (u32 i = 0; i < ENTRIES; i++)
        if (e->entries[i].file && file_ready(e->entries[i].file) & (e->entries[i].events | ERR | HUP))
            return IN;
    return 0;
}

/* Returns the POLL bits that hold now. */
u32 file_ready(struct file *f)
{
    switch (f->type) {
    case FILE_PIPE_READ: case FILE_PIPE_WRITE: case FILE_PAIR:
        return pipe_ready(f);
    case FILE_EVENT:
        return (f->event.count ? IN : 0) | (f->event.count < ~0UL - 1 ? OUT : 0);
    case FILE_INPUT:
        return input_ready() ? IN : 0;
    case FILE_EPOLL:
        return epoll_ready(f->epoll);
    case FILE_STREAM:
        return stream_ready(f);
    case FILE_DATAGRAM:
        return datagram_ready(f);
    }
    return IN | OUT;
}

struct pollfd { u32 fd; u16 events, revents; };

i64 sys_poll(struct thread *t, u64 address, u64 count, u64 deadline)
{
    if (count > FDS)
        return -EINVAL_;
    if (!user_range(address, count * sizeof(struct pollfd)) && count)
        return -EFAULT_;
    ring_poll();
    struct pollfd *p = (struct pollfd *)address;
    i64 n = 0;
    for (u64 i = 0; i < count; i++) {
        p[i].revents = 0;
        if ((int)p[i].fd < 0)
            continue;
        struct file *f = file_of(p[i].fd);
        p[i].revents = f ? (u16)(file_ready(f) & (p[i].events | (u32)(ERR | HUP))) : NVAL;
        n += p[i].revents != 0;
    }
    return n || !deadline || !park(t, deadline) ? n : BLOCKED;
}

static u32 select_bits(struct file *f, u32 set)
{
    u32 ready = file_ready(f);
    return set == 0 ? ready & (IN | HUP | ERR) : set == 1 ? ready & (OUT | ERR) : 0;
}

i64 sys_select(struct thread *t, u64 count, u64 sets[3], u64 deadline)
{
    u64 result[3][FDS / 64] = {{0}}, words = (count + 63) / 64;
    if (count > FDS)
        return -EINVAL_;
    ring_poll();
    i64 n = 0;
    for (u32 s = 0; s < 3; s++) {
        if (!sets[s])
            continue;
        if (!user_range(sets[s], words * 8))
            return -EFAULT_;
        for (u64 fd = 0; fd < count; fd++) {
            if (!(((const u64 *)sets[s])[fd / 64] >> fd % 64 & 1))
                continue;
            struct file *f = file_of(fd);
            if (!f)
                return -EBADF_;
            if (select_bits(f, s)) {
                result[s][fd / 64] |= 1UL << fd % 64;
                n++;
            }
        }
    }
    if (!n && deadline && park(t, deadline))
        return BLOCKED;
    for (u32 s = 0; s < 3; s++)
        if (sets[s])
            copy((void *)sets[s], result[s], words * 8);
    return n;
}

i64 sys_epoll_create(u64 flags)
{
    struct file *f;
    i64 error = file_new(FILE_EPOLL, 2, &f);
    if (error)
        return error;
    f->epoll = (struct epoll *)pages_allocate(EPOLL_PAGES);
    if (!f->epoll) {
        f->references = 0;
        return -ENOMEM_;
    }
    return fd_install(f, (flags & O_CLOEXEC_) != 0, 0);
}

static struct entry *entry_of(struct epoll *e, const struct file *f, u32 fd)
{
    for (u32 i = 0; i < ENTRIES; i++)
        if (e->entries[i].file == f && e->entries[i].fd == fd)
            return &e->entries[i];
    return 0;
}

i64 sys_epoll_ctl(u64 epfd, u64 op, u64 fd, u64 event)
{
    struct file *ep = file_of(epfd), *f = file_of(fd);
    if (!ep || !f)
        return -EBADF_;
    if (ep->type != FILE_EPOLL || ep == f)
        return -EINVAL_;
    if (f->type == FILE_HOST || f->type == FILE_NULL)
        return -EPERM_;
    if (op != 2 && !user_range(event, 12))
        return -EFAULT_;
    struct entry *entry = entry_of(ep->epoll, f, (u32)fd);
    if (op == 2) { /* DEL */
        if (!entry)
            return -ENOENT_;
        entry->file = 0;
        return 0;
    }
    if (op == 1) { /* ADD */
        if (entry)
            return -EEXIST_;
        for (u32 i = 0; i < ENTRIES && !entry; i++)
            if (!ep->epoll->entries[i].file)
                entry = &ep->epoll->entries[i];
        if (!entry)
            return -ENOMEM_;
    } else if (op != 3)
        return -EINVAL_;
    if (!entry)
        return -ENOENT_;
    const struct epoll_event_packed *ev = (const struct epoll_event_packed *)event;
    entry->file = f;
    entry->fd = (u32)fd;
    entry->events = ev->events;
    entry->data = ev->data;
    entry->seen = f->changes - 1; /* a change counts as new once */
    io_events++;
    return 0;
}

static u32 entry_ready(struct entry *e)
{
    if (!e->file || (e->events & ~(EDGE | ONE_SHOT)) == 0)
        return 0;
    u32 ready = file_ready(e->file) & (e->events | ERR | HUP);
    if (ready && e->events & EDGE) {
        if (e->seen == e->file->changes)
            return 0;
        e->seen = e->file->changes;
    }
    return ready;
}

i64 sys_epoll_wait(struct thread *t, u64 epfd, u64 events, i64 max, u64 deadline)
{
    struct file *ep = file_of(epfd);
    if (!ep)
        return -EBADF_;
    if (ep->type != FILE_EPOLL || max <= 0)
        return -EINVAL_;
    if (max > ENTRIES)
        max = ENTRIES;
    if (!user_range(events, (u64)max * 12))
        return -EFAULT_;
    ring_poll();
    struct epoll *e = ep->epoll;
    struct epoll_event_packed *out = (struct epoll_event_packed *)events;
    i64 n = 0;
    u64 from = e->next;
    for (u64 k = 0; k < ENTRIES && n < max; k++) {
        struct entry *entry = &e->entries[(from + k) % ENTRIES];
        u32 ready = entry_ready(entry);
        if (!ready)
            continue;
        out[n].events = ready;
        out[n++].data = entry->data;
        if (entry->events & ONE_SHOT)
            entry->events &= EDGE | ONE_SHOT;
        e->next = (from + k + 1) % ENTRIES; /* no descriptor starves another */
    }
    return n || !deadline || !park(t, deadline) ? n : BLOCKED;
}


/* Takes a file that is closed out of every epoll set. */
void epoll_forget(struct file *f)
{
    for (u64 fd = 0; fd < FDS; fd++) {
        struct file *ep = file_of(fd);
        if (!ep || ep->type != FILE_EPOLL || !ep->epoll)
            continue;
        for (u32 i = 0; i < ENTRIES; i++)
            if (ep->epoll->entries[i].file == f)
                ep->epoll->entries[i].file = 0;
    }
    io_events++;
}

void epoll_close(struct file *f)
{
    pages_free((u64)f->epoll, EPOLL_PAGES);
    f->epoll = 0;
}
