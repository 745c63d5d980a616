/* Rules, each of which has a sibling in the list of what others got wrong:
 *  - sizes and masks are constants of this file, never read from shared memory;
 *  - each shared word is loaded once, and what is checked is what is used;
 *  - a frame's head is copied, checked, and only the copy is looked at; the payload is copied before anyone parses it;
 *  - what the guest publishes of its reading may only say that there is room, never move our own index.
 */
#include "ring.h"

#include <string.h>

#define TX_MASK (RING_TX_SIZE - 1)
#define RX_MASK (RING_RX_SIZE - 1)
#define HEAD ((u32)sizeof(struct wire_frame))

static volatile struct wire_ring *shared(const struct ring *r) { return (volatile struct wire_ring *)r->base; }

static u32 padded(u32 n) { return (n + 15) & ~15u; }

/* Starts on memory that is all zero. */
void ring_init(struct ring *r, u8 *base)
{
    r->base = base;
    r->tx_tail = 0;
    r->rx_head = 0;
}

static bool from_guest(u16 type)
{
    return type == FRAME_OPEN || type == FRAME_DATA || type == FRAME_FIN || type == FRAME_RESET ||
           type == FRAME_CREDIT || type == FRAME_NAME_QUERY;
}

static void advance(struct ring *r, u32 bytes)
{
    r->tx_tail += bytes;
    __atomic_store_n(&shared(r)->tx_tail, r->tx_tail, __ATOMIC_RELEASE);
}

/* Returns RING_FRAME with the head in `out` and its payload in `payload` (RING_MAX_PAYLOAD bytes of room), RING_NOTHING,
 * or what is wrong with what the guest published; after that the ring is of no use. */
enum ring_result ring_take(struct ring *r, struct wire_frame *out, u8 *payload)
{
    for (u32 pads = 0; pads < 2; pads++) { /* a pad is followed by a frame, or by nothing yet */
        u32 published = __atomic_load_n(&shared(r)->tx_head, __ATOMIC_ACQUIRE) - r->tx_tail;
        if (published == 0)
            return RING_NOTHING;
        if (published > RING_TX_SIZE || published % 16)
            return RING_BAD_INDEX;
        u32 at = r->tx_tail & TX_MASK, to_end = RING_TX_SIZE - at;
        volatile u64 *words = (volatile u64 *)(r->base + RING_TX_OFFSET + at);
        u64 head[2] = {words[0], words[1]};
        memcpy(out, head, sizeof *out);
        if (out->length > RING_TX_SIZE || padded(HEAD + out->length) > published ||
            padded(HEAD + out->length) > to_end)
            return RING_BAD_LENGTH;
        if (out->type == FRAME_PAD) {
            if (padded(HEAD + out->length) != to_end)
                return RING_BAD_LENGTH;
            advance(r, to_end);
            continue;
        }
        if (!from_guest(out->type))
            return RING_BAD_TYPE;
        if (out->length > RING_MAX_PAYLOAD)
            return RING_BAD_LENGTH;
        /* SAFE: at + HEAD + length <= RING_TX_SIZE by the check against to_end; payload holds RING_MAX_PAYLOAD. */
        memcpy(payload, r->base + RING_TX_OFFSET + at + HEAD, out->length);
        advance(r, padded(HEAD + out->length));
        return RING_FRAME;
    }
    return RING_BAD_LENGTH; /* pad after pad */
}

/* Returns the bytes that are free, or 0 if the guest claims to have read what was never sent. */
static u32 free_bytes(const struct ring *r)
{
    u32 used = r->rx_head - __atomic_load_n(&shared(r)->rx_tail, __ATOMIC_ACQUIRE);
    return used > RING_RX_SIZE ? 0 : RING_RX_SIZE - used;
}

/* Returns the payload that certainly fits into one frame now, at most RING_MAX_PAYLOAD. */
u32 ring_room(const struct ring *r)
{
    u32 free = free_bytes(r) & ~15u, to_end = RING_RX_SIZE - (r->rx_head & RX_MASK);
    u32 room = free < to_end ? free : to_end;
    if (to_end == HEAD) /* only a pad fits there */
        room = free > to_end ? free - to_end : 0;
    room = room > HEAD ? room - HEAD : 0;
    return room < RING_MAX_PAYLOAD ? room : RING_MAX_PAYLOAD;
}

static void write_head(struct ring *r, u32 at, u32 length, u16 type, u32 stream, u32 aux)
{
    struct wire_frame frame = {.length = length, .type = type, .stream = stream, .aux = aux};
    memcpy(r->base + RING_RX_OFFSET + at, &frame, sizeof frame);
}

/* Returns RING_FRAME if the frame was sent, RING_NOTHING without room. */
enum ring_result ring_put(struct ring *r, u16 type, u32 stream, u32 aux, const void *payload, u32 length)
{
    if (length > RING_MAX_PAYLOAD)
        return RING_BAD_LENGTH;
    u32 need = padded(HEAD + length), at = r->rx_head & RX_MASK, to_end = RING_RX_SIZE - at;
    u32 pad = need > to_end ? to_end : 0;
    if (free_bytes(r) < need + pad)
        return RING_NOTHING;
    /* SAFE: at is masked, at + to_end is the ring's end, and need <= to_end or the frame starts at 0 after the pad. */
    if (pad) {
        write_head(r, at, pad - HEAD, FRAME_PAD, 0, 0);
        at = 0;
    }
    write_head(r, at, length, type, stream, aux);
    if (length)
        memcpy(r->base + RING_RX_OFFSET + at + HEAD, payload, length);
    r->rx_head += need + pad;
    __atomic_store_n(&shared(r)->rx_head, r->rx_head, __ATOMIC_RELEASE);
    return RING_FRAME;
}

/* Returns true once after the guest went to sleep: its worker must be woken. */
bool ring_guest_wants_wake(struct ring *r)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&shared(r)->guest_sleeping, __ATOMIC_ACQUIRE))
        return false;
    __atomic_store_n(&shared(r)->guest_sleeping, 0, __ATOMIC_RELEASE);
    return true;
}

/* Returns true if the host may wait for the doorbell: the guest knows, and nothing was published in the meantime. */
bool ring_may_sleep(struct ring *r)
{
    __atomic_store_n(&shared(r)->host_sleeping, 1, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&shared(r)->tx_head, __ATOMIC_ACQUIRE) == r->tx_tail)
        return true;
    __atomic_store_n(&shared(r)->host_sleeping, 0, __ATOMIC_RELEASE);
    return false;
}

/* Asks the guest to ring the doorbell once it has read something: the host has more than there is room for. */
void ring_blocked(struct ring *r)
{
    __atomic_store_n(&shared(r)->host_blocked, 1, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
