/* Sockets as streams on the ring, and names as datagrams to the seam.
 *
 * connect() sends OPEN with the address that the program named, and succeeds at once: the host knows which name it
 * stands for, and refuses with RESET, or in the protocol that follows. A datagram socket speaks to port 53 only: its
 * messages travel as NAME_QUERY frames. bind, listen and other families are refused. The ring itself is in ring.c.
 */
#include "net.h"

static u32 last_id;

/* Has the host name a call that is refused. */
static i64 unsupported(u64 number, i64 error)
{
    host(HOST_UNSUPPORTED, number, 0, 0, 0, 0, 0);
    return error;
}

i64 sys_socket(u64 family, u64 type, u64 protocol)
{
    (void)protocol;
    u64 kind = type & 0xf;
    struct file *f;
    if (family != AF_INET_ && family != AF_INET6_ && family != AF_UNIX_)
        return -EAFNOSUPPORT_;
    if (kind != SOCK_STREAM_ && kind != SOCK_DGRAM_)
        return unsupported(41, -EOPNOTSUPP_);
    int is_stream = kind == SOCK_STREAM_;
    i64 error = file_new(is_stream ? FILE_STREAM : FILE_DATAGRAM, ((u32)type & O_NONBLOCK_) | 2, &f);
    if (error)
        return error;
    if (is_stream) {
        for (u32 i = 0; i < RING_STREAMS && !f->stream; i++)
            if (!streams[i].file)
                f->stream = &streams[i];
        if (f->stream) {
            clear(f->stream, sizeof *f->stream);
            f->stream->file = f;
            f->stream->family = (u32)family;
        }
    } else {
        for (u32 i = 0; i < DATAGRAM_SOCKETS && !f->datagram; i++)
            if (!datagrams[i].file)
                f->datagram = &datagrams[i];
        if (f->datagram) {
            clear(f->datagram, sizeof *f->datagram);
            f->datagram->file = f;
            f->datagram->family = (u32)family;
            f->datagram->id = ++last_id;
        }
    }
    if (!f->stream) {
        f->references = 0;
        return -EMFILE_;
    }
    return fd_install(f, (type & O_CLOEXEC_) != 0, 0);
}

static u16 swap16(u16 v) { return (u16)(v << 8 | v >> 8); }

/* Returns 0 and the address, or a negative errno. */
static i64 address_from(u64 address, u64 length, struct address *out)
{
    if (length < 2 || !user_range(address, length))
        return length < 2 ? -EINVAL_ : -EFAULT_;
    const u8 *a = (const u8 *)address;
    clear(out, sizeof *out);
    out->family = *(const u16 *)a;
    if (out->family == AF_UNIX_)
        return -ENOENT_;
    if ((out->family != AF_INET_ || length < 16) && (out->family != AF_INET6_ || length < 28))
        return out->family == AF_INET_ || out->family == AF_INET6_ ? -EINVAL_ : -EAFNOSUPPORT_;
    out->port = swap16(*(const u16 *)(a + 2));
    copy(out->bytes, a + (out->family == AF_INET_ ? 4 : 8), out->family == AF_INET_ ? 4 : 16);
    return 0;
}

static i64 address_to(const struct address *a, u32 family, u64 address, u64 length)
{
    if (!address)
        return 0;
    if (!user_range(length, 4))
        return -EFAULT_;
    u8 raw[28] = {0};
    u32 n = family == AF_INET6_ ? 28 : family == AF_INET_ ? 16 : 2, room = *(u32 *)length;
    *(u16 *)raw = (u16)family;
    *(u16 *)(raw + 2) = swap16(a->port);
    if (family != AF_UNIX_)
        copy(raw + (family == AF_INET6_ ? 8 : 4), a->bytes, family == AF_INET6_ ? 16 : 4);
    *(u32 *)length = n;
    if (room > n)
        room = n;
    if (!user_range(address, room))
        return -EFAULT_;
    copy((void *)address, raw, room);
    return 0;
}

static i64 start_connect(struct stream *s, u64 address, u64 length)
{
    i64 error = address_from(address, length, &s->peer);
    if (error)
        return error;
    if (s->peer.family != s->family)
        return -EAFNOSUPPORT_;
    if (!has_ring())
        return -ENETUNREACH_;
    if (!s->data)
        s->data = (u8 *)pages_allocate(RING_RX_WINDOW / PAGE);
    if (!s->data)
        return -ENOBUFS_;
    struct wire_open open = {.family = s->peer.family, .port = s->peer.port};
    copy(open.address, s->peer.bytes, 16);
    s->id = ++last_id;
    if (!ring_send(FRAME_OPEN, s->id, 0, (u64)&open, sizeof open))
        return -EAGAIN_;
    s->credit_out = RING_TX_WINDOW;
    s->state = STREAM_OPEN;
    return 0;
}

i64 sys_connect(struct thread *t, u64 fd, u64 address, u64 length)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    if (f->type == FILE_DATAGRAM) {
        if (user_range(address, 2) && *(const u16 *)address == 0) { /* AF_UNSPEC dissolves */
            f->datagram->connected = 0;
            return 0;
        }
        i64 error = address_from(address, length, &f->datagram->peer);
        f->datagram->connected = !error;
        return error;
    }
    if (f->type != FILE_STREAM)
        return -ENOTSOCK_;
    struct stream *s = f->stream;
    ring_poll();
    if (s->state == STREAM_NEW) {
        i64 error = start_connect(s, address, length);
        return error != -EAGAIN_ || f->flags & O_NONBLOCK_ || !park(t, NEVER) ? error : BLOCKED;
    }
    if (s->state == STREAM_OPEN)
        return -EISCONN_;
    u32 error = s->error ? s->error : ECONNRESET_;
    s->error = 0;
    return -(i64)error;
}

/* Returns the bytes that were taken, at least one; -EAGAIN without credit or room. */
static i64 stream_push(struct stream *s, u64 address, u64 length)
{
    u64 done = 0;
    while (done < length) {
        u32 room = ring_room();
        wants_room = !room;
        u64 n = least(least(length - done, room), s->credit_out);
        if (!n || !ring_send(FRAME_DATA, s->id, 0, address + done, (u32)n))
            break;
        s->credit_out -= n;
        done += n;
    }
    return done ? (i64)done : -EAGAIN_;
}

i64 stream_write(struct thread *t, struct file *f, u64 address, u64 length, u64 flags)
{
    struct stream *s = f->stream;
    ring_poll();
    if (s->error) {
        u32 error = s->error;
        s->error = 0;
        return -(i64)error;
    }
    if (s->state == STREAM_NEW)
        return -ENOTCONN_;
    if (s->state == STREAM_DEAD || s->fin_wanted)
        return -EPIPE_;
    if (!length)
        return 0;
    i64 n = stream_push(s, address, length);
    if (n != -EAGAIN_ || f->flags & O_NONBLOCK_ || flags & MSG_DONTWAIT_)
        return n;
    return park(t, NEVER) ? BLOCKED : -EAGAIN_;
}

i64 stream_read(struct thread *t, struct file *f, u64 address, u64 length, u64 flags)
{
    struct stream *s = f->stream;
    ring_poll();
    u64 n = least(length, s->head - s->tail);
    if (n) {
        stream_copy(s, s->tail, (u8 *)address, n, 0);
        if (flags & MSG_PEEK_)
            return (i64)n;
        s->tail += n;
        s->credit_owed += n;
        send_owed(s);
        return (i64)n;
    }
    if (s->error) {
        u32 error = s->error;
        s->error = 0;
        return -(i64)error;
    }
    if (s->state == STREAM_NEW)
        return -ENOTCONN_;
    if (s->fin_received || !length)
        return 0;
    if (f->flags & O_NONBLOCK_ || flags & MSG_DONTWAIT_)
        return -EAGAIN_;
    return park(t, NEVER) ? BLOCKED : -EAGAIN_;
}

i64 datagram_write(struct file *f, u64 address, u64 length)
{
    struct datagram *d = f->datagram;
    if (!d->connected)
        return -EDESTADDRREQ_;
    if (d->peer.port != 53)
        return unsupported(44, -ENETUNREACH_); /* names only */
    if (length > DATAGRAM_BYTES)
        return -EMSGSIZE_;
    if (!has_ring())
        return -ENETUNREACH_;
    if (!d->queue)
        d->queue = (void *)pages_allocate((sizeof *d->queue * DATAGRAMS + PAGE - 1) / PAGE);
    if (!d->queue)
        return -ENOBUFS_;
    return ring_send(FRAME_NAME_QUERY, d->id, 0, address, (u32)length) ? (i64)length : -EAGAIN_;
}

i64 datagram_read(struct thread *t, struct file *f, u64 address, u64 length, u64 flags)
{
    struct datagram *d = f->datagram;
    ring_poll();
    if (d->head == d->tail) {
        if (f->flags & O_NONBLOCK_ || flags & MSG_DONTWAIT_)
            return -EAGAIN_;
        return park(t, NEVER) ? BLOCKED : -EAGAIN_;
    }
    u64 n = least(length, d->queue[d->tail % DATAGRAMS].length);
    copy((void *)address, d->queue[d->tail % DATAGRAMS].data, n);
    if (!(flags & MSG_PEEK_))
        d->tail++;
    return (i64)n;
}

u32 stream_ready(const struct file *f)
{
    const struct stream *s = f->stream;
    u32 ready = 0;
    if (s->head != s->tail || s->fin_received)
        ready |= IN;
    if (s->fin_received)
        ready |= RDHUP;
    if (s->state == STREAM_OPEN && !s->fin_wanted && s->credit_out && ring_room())
        ready |= OUT;
    if (s->state == STREAM_NEW)
        ready |= OUT | HUP;
    if (s->state == STREAM_DEAD)
        ready |= IN | OUT | HUP | (s->error ? ERR : 0);
    return ready;
}

u32 datagram_ready(const struct file *f)
{
    return OUT | (f->datagram->head != f->datagram->tail ? IN : 0);
}

u64 socket_pending(const struct file *f)
{
    if (f->type == FILE_STREAM)
        return f->stream->head - f->stream->tail;
    const struct datagram *d = f->datagram;
    return d->head == d->tail ? 0 : d->queue[d->tail % DATAGRAMS].length;
}

/* Ends a stream in order if it can: FIN if all was read, else RESET, as a TCP socket that is closed with unread data. */
void socket_close(struct file *f)
{
    if (f->type == FILE_DATAGRAM) {
        if (f->datagram->queue)
            pages_free((u64)f->datagram->queue, (sizeof *f->datagram->queue * DATAGRAMS + PAGE - 1) / PAGE);
        f->datagram->file = 0;
        return;
    }
    struct stream *s = f->stream;
    if (s->state == STREAM_OPEN) {
        /* CLOSE is RESET with errno 0: everything sent before it arrives, nothing more is wanted back. A ring without
         * room for 16 bytes is polled by the host before it sleeps, so this loop is short. */
        for (u32 tries = 0; !ring_send(FRAME_RESET, s->id, s->head != s->tail ? ECONNRESET_ : 0, 0, 0) && tries < 1000;
             tries++)
            ring_wait_for_room();
    }
    if (s->data)
        pages_free((u64)s->data, RING_RX_WINDOW / PAGE);
    s->file = 0;
}

i64 sys_shutdown(u64 fd, u64 how)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    if (how > 2)
        return -EINVAL_;
    if (f->type == FILE_PAIR) {
        if (how != 0 && f->pipe.out) {
            struct buffer *b = f->pipe.out;
            f->pipe.out = 0;
            b->writer = 0;
            if (b->reader)
                file_changed(b->reader);
            else
                pages_free((u64)b, 4);
        }
        return 0;
    }
    if (f->type != FILE_STREAM)
        return f->type == FILE_DATAGRAM ? 0 : -ENOTSOCK_;
    if (f->stream->state != STREAM_OPEN)
        return f->stream->state == STREAM_DEAD ? 0 : -ENOTCONN_;
    if (how != 0)
        f->stream->fin_wanted = 1;
    if (how != 1)
        f->stream->fin_received = 1;
    send_owed(f->stream);
    file_changed(f);
    return 0;
}

i64 sys_sendto(struct thread *t, u64 fd, u64 data, u64 length, u64 flags, u64 address, u64 address_length)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    if (length && !user_range(data, length))
        return -EFAULT_;
    if (f->type == FILE_STREAM)
        return stream_write(t, f, data, length, flags);
    if (f->type == FILE_PAIR) {
        i64 n = buffer_write(f->pipe.out, data, length);
        return n != -EAGAIN_ || f->flags & O_NONBLOCK_ || flags & MSG_DONTWAIT_ ? n : park(t, NEVER) ? BLOCKED : n;
    }
    if (f->type != FILE_DATAGRAM)
        return -ENOTSOCK_;
    if (address) {
        i64 error = address_from(address, address_length, &f->datagram->peer);
        if (error)
            return error;
        f->datagram->connected = 1;
    }
    return datagram_write(f, data, length);
}

i64 sys_recvfrom(struct thread *t, u64 fd, u64 data, u64 length, u64 flags, u64 address, u64 address_length)
{
    struct file *f = file_of(fd);
    if (!f)
        return -EBADF_;
    if (length && !user_range(data, length))
        return -EFAULT_;
    i64 n;
    if (f->type == FILE_STREAM)
        n = stream_read(t, f, data, length, flags);
    else if (f->type == FILE_DATAGRAM)
        n = datagram_read(t, f, data, length, flags);
    else if (f->type == FILE_PAIR) {
        n = buffer_read(f->pipe.in, data, length, (flags & MSG_PEEK_) != 0);
        if (n == -EAGAIN_ && !(f->flags & O_NONBLOCK_) && !(flags & MSG_DONTWAIT_))
            return park(t, NEVER) ? BLOCKED : n;
        return n;
    } else
        return -ENOTSOCK_;
    if (n >= 0 && address) {
        const struct address *peer = f->type == FILE_STREAM ? &f->stream->peer : &f->datagram->peer;
        i64 error = address_to(peer, peer->family, address, address_length);
        if (error)
            return error;
    }
    return n;
}

struct message { u64 name; u32 name_length, pad; u64 vector, count, control, control_length; u32 flags, pad2; };
_Static_assert(sizeof(struct message) == 56, "struct msghdr");

static i64 message_call(struct thread *t, u64 fd, struct message *m, u64 flags, int send)
{
    if (m->count > 1024 || !user_range(m->vector, m->count * 16))
        return m->count > 1024 ? -EMSGSIZE_ : -EFAULT_;
    const u64 *v = (const u64 *)m->vector;
    i64 total = 0;
    if (!send)
        m->control_length = 0, m->flags = 0;
    for (u64 i = 0; i < m->count; i++) {
        if (!v[2 * i + 1])
            continue;
        i64 n = send ? sys_sendto(t, fd, v[2 * i], v[2 * i + 1], flags, m->name, m->name_length)
                     : sys_recvfrom(t, fd, v[2 * i], v[2 * i + 1], flags, m->name, m->name ? (u64)&m->name_length : 0);
        if (n == BLOCKED && total) {
            t->waiting = 0;
            t->state = THREAD_READY;
            return total;
        }
        if (n < 0)
            return total ? total : n;
        total += n;
        if ((u64)n < v[2 * i + 1])
            break;
    }
    return total;
}

i64 sys_sendmsg(struct thread *t, u64 fd, u64 message, u64 flags)
{
    return user_range(message, sizeof(struct message)) ? message_call(t, fd, (struct message *)message, flags, 1)
                                                       : -EFAULT_;
}

i64 sys_recvmsg(struct thread *t, u64 fd, u64 message, u64 flags)
{
    return user_range(message, sizeof(struct message)) ? message_call(t, fd, (struct message *)message, flags, 0)
                                                       : -EFAULT_;
}

i64 sys_sendmmsg(struct thread *t, u64 fd, u64 vector, u64 count, u64 flags)
{
    count = least(count, 16);
    if (!user_range(vector, count * 64))
        return -EFAULT_;
    for (u64 i = 0; i < count; i++) {
        i64 n = message_call(t, fd, (struct message *)(vector + i * 64), flags, 1);
        if (n < 0)
            return i ? (i64)i : n;
        *(u32 *)(vector + i * 64 + 56) = (u32)n;
    }
    return (i64)count;
}

static int is_socket(const struct file *f)
{
    return f->type == FILE_STREAM || f->type == FILE_DATAGRAM || f->type == FILE_PAIR;
}

i64 sys_getsockopt(u64 fd, u64 level, u64 name, u64 value, u64 length)
{
    struct file *f = file_of(fd);
    if (!f || !is_socket(f))
        return f ? -ENOTSOCK_ : -EBADF_;
    if (!user_range(length, 4) || !user_range(value, 4) || *(u32 *)length < 4)
        return -EFAULT_;
    u32 v = 0;
    ring_poll();
    if (level == 1)
        switch (name) {
        case 3: /* SO_TYPE */
            v = f->type == FILE_DATAGRAM ? SOCK_DGRAM_ : SOCK_STREAM_;
            break;
        case 4: /* SO_ERROR: read and cleared */
            if (f->type == FILE_STREAM) {
                v = f->stream->error;
                f->stream->error = 0;
            }
            break;
        case 7: case 8: /* SO_SNDBUF, SO_RCVBUF */
            v = RING_RX_WINDOW;
            break;
        case 38: /* SO_PROTOCOL */
            v = f->type == FILE_DATAGRAM ? 17 : f->type == FILE_STREAM ? 6 : 0;
            break;
        case 39: /* SO_DOMAIN */
            v = f->type == FILE_STREAM ? f->stream->family : f->type == FILE_DATAGRAM ? f->datagram->family : AF_UNIX_;
            break;
        }
    else if (level == 6 && name == 2) /* TCP_MAXSEG */
        v = 1460;
    else if (level == 6 && name == 1) /* TCP_NODELAY: frames are never held back */
        v = 1;
    *(u32 *)value = v;
    *(u32 *)length = 4;
    return 0;
}

/* Accepts what tunes a connection and has no meaning on a ring; refuses the rest. */
i64 sys_setsockopt(u64 fd, u64 level, u64 name)
{
    struct file *f = file_of(fd);
    if (!f || !is_socket(f))
        return f ? -ENOTSOCK_ : -EBADF_;
    if (level == 1 && (name == 2 || (name >= 5 && name <= 10) || name == 13 || name == 15 || name == 20 || name == 21))
        return 0; /* REUSEADDR, DONTROUTE..OOBINLINE, LINGER, REUSEPORT, RCVTIMEO, SNDTIMEO */
    if (level == 6 || level == 0 || level == 41) /* TCP, IP, IPV6 */
        return 0;
    return -ENOPROTOOPT_;
}

i64 sys_getname(u64 fd, u64 address, u64 length, int peer)
{
    struct file *f = file_of(fd);
    if (!f || !is_socket(f))
        return f ? -ENOTSOCK_ : -EBADF_;
    static const struct address here = {.family = AF_INET_, .port = 40000, .bytes = {10, 0, 2, 15}};
    static const struct address nobody;
    if (f->type == FILE_PAIR)
        return address_to(&nobody, AF_UNIX_, address, length);
    int connected = f->type == FILE_STREAM ? f->stream->state != STREAM_NEW : (int)f->datagram->connected;
    u32 family = f->type == FILE_STREAM ? f->stream->family : f->datagram->family;
    if (peer && !connected)
        return -ENOTCONN_;
    if (peer)
        return address_to(f->type == FILE_STREAM ? &f->stream->peer : &f->datagram->peer, family, address, length);
    return address_to(connected && family == AF_INET_ ? &here : &nobody, family, address, length);
}
