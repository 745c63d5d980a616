/* What ring.c (frames and their buffers) and net.c (the calls on sockets) share. */
#ifndef SEAMGATE_NET_H
#define SEAMGATE_NET_H
#include "shim.h"

enum { AF_UNIX_ = 1, AF_INET_ = 2, AF_INET6_ = 10, SOCK_STREAM_ = 1, SOCK_DGRAM_ = 2, MSG_PEEK_ = 2,
       MSG_DONTWAIT_ = 0x40, IN = 1, OUT = 4, ERR = 8, HUP = 0x10, RDHUP = 0x2000 };
enum stream_state { STREAM_NEW, STREAM_OPEN, STREAM_DEAD };
#define DATAGRAM_BYTES 1400UL
#define DATAGRAMS 8
#define DATAGRAM_SOCKETS 8u

struct address { u16 family, port; u8 bytes[16]; };

struct stream {
    struct file *file; /* null: slot free */
    u32 id, state, error, timeout_unused;
    u32 family;
    int fin_received, fin_sent, fin_wanted, reset_wanted;
    u64 head, tail;     /* received and read bytes, free-running, in `data` */
    u64 credit_out;     /* bytes that we may still send */
    u64 credit_owed;    /* bytes read that the host was not told of */
    u8 *data;           /* RING_RX_WINDOW bytes */
    struct address peer;
};

struct datagram {
    struct file *file;
    u32 id, connected, family;
    struct address peer;
    u64 head, tail;     /* messages */
    struct { u32 length; u8 data[DATAGRAM_BYTES]; } *queue;
};

extern struct stream streams[RING_STREAMS];
extern struct datagram datagrams[DATAGRAM_SOCKETS];
extern u32 wants_room; /* the last push found the ring full */

static inline int has_ring(void) { return (PARAMS->flags & PARAMS_RING) != 0; }

u32 ring_room(void);
int ring_send(u32 type, u32 stream, u32 aux, u64 payload, u32 length);
void ring_wait_for_room(void);
void stream_copy(struct stream *s, u64 position, u8 *other, u64 length, int in);
void send_owed(struct stream *s);
#endif
