/* The host's side of a guest's ring. Everything in the shared memory is hostile and may change while it is read. */
#ifndef SEAMGATE_RING_H
#define SEAMGATE_RING_H
#include <stdbool.h>
#include <stddef.h>

#include "../../shim/wire.h"

enum ring_result {
    RING_NOTHING = 0,
    RING_FRAME = 1,
    RING_BAD_INDEX = -1,  /* the guest's index claims more than a ring holds, or half a frame */
    RING_BAD_LENGTH = -2, /* a frame longer than what was published, or than any frame may be */
    RING_BAD_TYPE = -3,   /* a frame that a guest does not send */
};

struct ring {
    u8 *base;     /* RING_BYTES, shared */
    u32 tx_tail;  /* ours; the shared word only tells the guest */
    u32 rx_head;
};

void ring_init(struct ring *r, u8 *base);
enum ring_result ring_take(struct ring *r, struct wire_frame *out, u8 *payload);
enum ring_result ring_put(struct ring *r, u16 type, u32 stream, u32 aux, const void *payload, u32 length);
u32 ring_room(const struct ring *r);
bool ring_guest_wants_wake(struct ring *r);
bool ring_may_sleep(struct ring *r);
void ring_blocked(struct ring *r);
#endif
