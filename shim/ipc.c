/* Pipes, socket pairs and event counters: byte queues and numbers inside the guest. No host is asked. */
#include "shim.h"

enum { SOCK_STREAM_ = 1, AF_UNIX_ = 1, EFD_SEMAPHORE_ = 1 };
#define PIPE_ATOMIC 4096UL

_Static_assert(sizeof(struct buffer) <= 64, "the head of a buffer");

/* Returns an empty queue, or null without memory. */
struct buffer *buffer_new(void)
{
    return (struct buffer *)pages_allocate(4);
}

u64 buffer_used(const struct buffer *b) { return b->head - b->tail; }

static void buffer_copy(struct buffer *b, u64 position, u64 address, u64 length, int in)
{
    u64 at = position % BUFFER_BYTES, first = least(length, BUFFER_BYTES - at);
    if (in) {
        copy(b->data + at, (const void *)address, first);
        copy(b->data, (const void *)(address + first), length - first);
    } else {
        copy((void *)address, b->data + at, first);
        copy((void *)(address + first), b->data, length - first);
    }
}

/* Returns the bytes read, 0 at the end, -EAGAIN while there are none. */
i64 buffer_read(struct buffer *b, u64 address, u64 length, int peek)
{
    u64 n = b ? least(length, buffer_used(b)) : 0;
    if (!n)
        return b && length && b->writer ? -EAGAIN_ : 0;
    buffer_copy(b, b->tail, address, n, 0);
    if (peek)
        return (i64)n;
    b->tail += n;
    if (b->writer)
        file_changed(b->writer);
    return (i64)n;
}

/* Returns the bytes written, -EPIPE without a reader, -EAGAIN without room. Up to PIPE_ATOMIC bytes go whole. */
i64 buffer_write(struct buffer *b, u64 address, u64 length)
{
    if (!b || !b->reader)
        return -EPIPE_;
    u64 room = BUFFER_BYTES - buffer_used(b), n = least(length, room);
    if (length && (!room || (length <= PIPE_ATOMIC && room < length)))
        return -EAGAIN_;
    buffer_copy(b, b->head, address, n, 1);
    b->head += n;
    file_changed(b->reader);
    return (i64)n;
}

static void leave(struct buffer *b, struct file **mine, struct file *other)
{
    *mine = 0;
    if (other)
        file_changed(other);
    else
        pages_free((u64)b, 4);
}

/* Closes one end of a pipe or pair; a queue that nobody holds is freed. */
void pipe_close(struct file *f)
{
    if (f->pipe.in)
        leave(f->pipe.in, &f->pipe.in->reader, f->pipe.in->writer);
    if (f->pipe.out)
        leave(f->pipe.out, &f->pipe.out->writer, f->pipe.out->reader);
}

static i64 install_two(struct file *a, struct file *b, u64 out, u64 flags)
{
    i64 first = fd_install(a, (flags & O_CLOEXEC_) != 0, 0);
    i64 second = first < 0 ? (file_release(b), first) : fd_install(b, (flags & O_CLOEXEC_) != 0, 0);
    if (second < 0) {
        if (first >= 0)
            sys_close((u64)first);
        return second;
    }
    ((u32 *)out)[0] = (u32)first;
    ((u32 *)out)[1] = (u32)second;
    return 0;
}

static i64 two_files(u32 first, u32 second, u64 flags, struct file **a, struct file **b)
{
    i64 error = file_new(first, (u32)flags & O_NONBLOCK_, a);
    if (error)
        return error;
    error = file_new(second, (u32)flags & O_NONBLOCK_, b);
    if (error) {
        (*a)->type = FILE_NONE;
        (*a)->references = 0;
    }
    return error;
}

i64 sys_pipe2(u64 out, u64 flags)
{
    struct file *a, *b;
    if (!user_range(out, 8))
        return -EFAULT_;
    i64 error = two_files(FILE_PIPE_READ, FILE_PIPE_WRITE, flags, &a, &b);
    if (error)
        return error;
    struct buffer *q = buffer_new();
    if (!q) {
        a->references = b->references = 0;
        return -ENOMEM_;
    }
    b->flags |= 1;
    a->pipe.in = b->pipe.out = q;
    q->reader = a;
    q->writer = b;
    return install_two(a, b, out, flags);
}

i64 sys_socketpair(u64 family, u64 type, u64 out)
{
    struct file *a, *b;
    if (family != AF_UNIX_ || (type & 0xf) != SOCK_STREAM_)
        return family == AF_UNIX_ ? -EOPNOTSUPP_ : -EAFNOSUPPORT_;
    if (!user_range(out, 8))
        return -EFAULT_;
    i64 error = two_files(FILE_PAIR, FILE_PAIR, type, &a, &b);
    if (error)
        return error;
    struct buffer *there = buffer_new(), *back = there ? buffer_new() : 0;
    if (!back) {
        if (there)
            pages_free((u64)there, 4);
        a->references = b->references = 0;
        return -ENOMEM_;
    }
    a->flags |= 2;
    b->flags |= 2;
    a->pipe.out = b->pipe.in = there;
    b->pipe.out = a->pipe.in = back;
    there->writer = back->reader = a;
    there->reader = back->writer = b;
    return install_two(a, b, out, type);
}

i64 sys_eventfd(u64 count, u64 flags)
{
    struct file *f;
    i64 error = file_new(FILE_EVENT, ((u32)flags & O_NONBLOCK_) | 2, &f);
    if (error)
        return error;
    f->event.count = (u32)count;
    f->event.semaphore = flags & EFD_SEMAPHORE_;
    return fd_install(f, (flags & O_CLOEXEC_) != 0, 0);
}

i64 event_read(struct thread *t, struct file *f, u64 address, u64 length)
{
    if (length < 8)
        return -EINVAL_;
    if (!f->event.count)
        return f->flags & O_NONBLOCK_ || !park(t, NEVER) ? -EAGAIN_ : BLOCKED;
    u64 n = f->event.semaphore ? 1 : f->event.count;
    f->event.count -= n;
    *(u64 *)address = n;
    file_changed(f);
    return 8;
}

i64 event_write(struct thread *t, struct file *f, u64 address, u64 length)
{
    if (length < 8)
        return -EINVAL_;
    u64 n = *(const u64 *)address;
    if (n == ~0UL)
        return -EINVAL_;
    if (n > ~0UL - 1 - f->event.count)
        return f->flags & O_NONBLOCK_ || !park(t, NEVER) ? -EAGAIN_ : BLOCKED;
    f->event.count += n;
    file_changed(f);
    return 8;
}
