/* The guest's end of the ring: frames out and in, and what is received of each stream.
 *
 * What comes is copied from the ring at once into the stream's buffer, whose size is the credit that the host has, so
 * that a slow reader never blocks another stream. Sending takes credit from the host and room in the ring.
 */
#include "net.h"

struct stream streams[RING_STREAMS];
struct datagram datagrams[DATAGRAM_SOCKETS];
u32 wants_room;

static u32 load(const volatile u32 *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void store(volatile u32 *p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

/* ---- sending */

static u32 padded(u32 n) { return (n + 15) & ~15u; }

static void ring_doorbell(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (load(&RING->host_sleeping)) {
        store(&RING->host_sleeping, 0);
        __asm__ volatile("outb %%al, %0" : : "i"(PORT_DOORBELL) : "memory");
    }
}

/* Returns the payload bytes that a frame can carry now, at most RING_MAX_PAYLOAD; 0: none. */
u32 ring_room(void)
{
    u32 head = RING->tx_head, used = head - load(&RING->tx_tail), free = RING_TX_SIZE - used;
    u32 to_end = RING_TX_SIZE - (head & (RING_TX_SIZE - 1));
    if (to_end == 16) /* only a PAD frame fits there */
        free = free > to_end ? free - to_end : 0, to_end = RING_TX_SIZE;
    u32 room = (u32)least(free & ~15u, to_end);
    return room > 16 ? (u32)least(room - 16, RING_MAX_PAYLOAD) : 0;
}

/* Returns 1 if the frame was put on the ring. The payload must not exceed ring_room(), except that 0 bytes fit if
 * there is room for the head. */
int ring_send(u32 type, u32 stream, u32 aux, u64 payload, u32 length)
{
    u32 head = RING->tx_head, need = padded(16 + length);
    u32 free = RING_TX_SIZE - (head - load(&RING->tx_tail)), to_end = RING_TX_SIZE - (head & (RING_TX_SIZE - 1));
    volatile u8 *base = (volatile u8 *)RING + RING_TX_OFFSET;
    if (free < need + (to_end < need ? to_end : 0))
        return 0;
    if (to_end < need) {
        volatile struct wire_frame *pad = (volatile struct wire_frame *)(base + (head & (RING_TX_SIZE - 1)));
        pad->length = to_end - 16;
        pad->type = FRAME_PAD;
        pad->flags = 0;
        pad->stream = pad->aux = 0;
        head += to_end;
    }
    volatile struct wire_frame *frame = (volatile struct wire_frame *)(base + (head & (RING_TX_SIZE - 1)));
    frame->length = length;
    frame->type = (u16)type;
    frame->flags = 0;
    frame->stream = stream;
    frame->aux = aux;
    copy((void *)(frame + 1), (const void *)payload, length);
    store(&RING->tx_head, head + need);
    ring_doorbell();
    return 1;
}

/* ---- receiving */

static struct stream *stream_of(u32 id)
{
    for (u32 i = 0; i < RING_STREAMS; i++)
        if (streams[i].file && streams[i].id == id)
            return &streams[i];
    return 0;
}

void stream_copy(struct stream *s, u64 position, u8 *other, u64 length, int in)
{
    u64 at = position % RING_RX_WINDOW, first = least(length, RING_RX_WINDOW - at);
    if (in) {
        copy(s->data + at, other, first);
        copy(s->data, other + first, length - first);
    } else {
        copy(other, s->data + at, first);
        copy(other + first, s->data, length - first);
    }
}

static void stream_die(struct stream *s, u32 error)
{
    s->state = STREAM_DEAD;
    s->error = error;
    s->fin_received = 1;
}

static void receive_name(const struct wire_frame *f, u8 *payload)
{
    for (u32 i = 0; i < DATAGRAM_SOCKETS; i++) {
        struct datagram *d = &datagrams[i];
        if (!d->file || d->id != f->stream || !d->queue || d->head - d->tail == DATAGRAMS ||
            f->length > DATAGRAM_BYTES)
            continue;
        d->queue[d->head % DATAGRAMS].length = f->length;
        copy(d->queue[d->head % DATAGRAMS].data, payload, f->length);
        d->head++;
        file_changed(d->file);
    }
}

static void receive(const struct wire_frame *f, u8 *payload)
{
    if (f->type == FRAME_NAME_ANSWER) {
        receive_name(f, payload);
        return;
    }
    struct stream *s = stream_of(f->stream);
    if (!s)
        return; /* closed here while the frame was under way */
    switch (f->type) {
    case FRAME_DATA:
        if (s->data && f->length <= RING_RX_WINDOW - (s->head - s->tail)) {
            stream_copy(s, s->head, payload, f->length, 1);
            s->head += f->length;
        }
        break;
    case FRAME_FIN:
        s->fin_received = 1;
        break;
    case FRAME_RESET:
        stream_die(s, f->aux ? f->aux : ECONNRESET_);
        break;
    case FRAME_CREDIT:
        s->credit_out += f->aux;
        break;
    }
    file_changed(s->file);
}

void send_owed(struct stream *s)
{
    if (s->state == STREAM_OPEN && s->credit_owed >= RING_RX_WINDOW / 2 &&
        ring_send(FRAME_CREDIT, s->id, (u32)s->credit_owed, 0, 0))
        s->credit_owed = 0;
    if (s->fin_wanted && !s->fin_sent && s->state == STREAM_OPEN)
        s->fin_sent = ring_send(FRAME_FIN, s->id, 0, 0, 0);
}

/* Takes everything that the host has sent, and sends the small things that found no room before. */
void ring_poll(void)
{
    if (!has_ring())
        return;
    u32 tail = RING->rx_tail, head = load(&RING->rx_head);
    while (head - tail >= 16 && head - tail <= RING_RX_SIZE) {
        u8 *at = (u8 *)GA_RING + RING_RX_OFFSET + (tail & (RING_RX_SIZE - 1));
        struct wire_frame f = *(const struct wire_frame *)at;
        if (f.length > RING_RX_SIZE || padded(16 + f.length) > head - tail)
            break;
        if (f.type != FRAME_PAD)
            receive(&f, at + 16);
        tail += padded(16 + f.length);
        store(&RING->rx_tail, tail);
        head = load(&RING->rx_head);
    }
    if (wants_room && ring_room()) {
        wants_room = 0;
        io_events++;
    }
    if (load(&RING->host_blocked)) {
        store(&RING->host_blocked, 0);
        __asm__ volatile("outb %%al, %0" : : "i"(PORT_DOORBELL) : "memory");
    }
    for (u32 i = 0; i < RING_STREAMS; i++)
        if (streams[i].file)
            send_owed(&streams[i]);
}

/* Returns 1 if something from the host may end a wait. */
int ring_may_wake(void)
{
    if (!has_ring())
        return 0;
    for (u32 i = 0; i < RING_STREAMS; i++)
        if (streams[i].file && streams[i].state != STREAM_DEAD && streams[i].state != STREAM_NEW)
            return 1;
    for (u32 i = 0; i < DATAGRAM_SOCKETS; i++)
        if (datagrams[i].file)
            return 1;
    return 0;
}

/* Returns 1 if the guest may sleep: the host knows that it must ring, and nothing came in the meantime. */
int ring_sleep(void)
{
    if (!has_ring())
        return 1;
    store(&RING->guest_sleeping, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (wants_room && ring_room()) /* the host took frames before it could see that we sleep */
        return 0;
    return load(&RING->rx_head) == RING->rx_tail;
}

void ring_awake(void)
{
    if (has_ring())
        store(&RING->guest_sleeping, 0);
}

/* Ends what is open: the ring that it is on will not be there any more. */
void ring_end_streams(void)
{
    ring_poll();
    for (u32 i = 0; i < RING_STREAMS; i++)
        if (streams[i].file && streams[i].state == STREAM_OPEN) {
            stream_die(&streams[i], ECONNRESET_);
            file_changed(streams[i].file);
        }
    wants_room = 0;
}

/* Sleeps for a moment in which the host may take frames. */
void ring_wait_for_room(void)
{
    store(&RING->guest_sleeping, 1);
    host(HOST_IDLE, now_ns() + 1000000, 1, 0, 0, 0, 0);
    ring_awake();
}
