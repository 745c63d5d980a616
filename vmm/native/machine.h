/* One guest as KVM sees it: memory, one processor, exits. No Python here, so that it can be run under sanitizers.
 *
 * Runs on: the thread that opened it; KVM binds a machine to the process that made it. Nothing the guest writes is
 * used as a pointer, a length or an index before it is checked against this struct.
 */
#ifndef SEAMGATE_MACHINE_H
#define SEAMGATE_MACHINE_H
#include <linux/kvm.h>
#include <stdbool.h>
#include <stddef.h>

#include "../../shim/wire.h"

/* How `syscall` lands on this host; found by machine_probe(). */
enum landing {
    LANDING_USER = 3,   /* stays in ring 3 (kvm_pvm): LSTAR points into the shim */
    LANDING_KERNEL = 0, /* goes to ring 0 (VT-x, SVM): LSTAR points to a supervisor stub that goes back by sysretq */
};

enum run_exit {
    RUN_REQUEST = 1, /* the guest asks: machine_request(), then machine_reply() */
    RUN_SLICE,       /* its time is over; it can go on */
    RUN_TRAP,        /* an exception: machine_trap() */
    RUN_MEMORY,      /* it touched an address that it has no memory for */
    RUN_BROKEN,      /* KVM cannot go on: exit_reason, detail */
    RUN_ERROR,       /* KVM_RUN failed: errno in detail */
};

struct machine_trap {
    u64 vector, error, rip, cs, rflags, rsp, address;
};

struct machine_state { /* what a snapshot needs beside memory: the shim keeps FPU state and FS base in memory */
    struct kvm_regs regs;
};

struct machine_word {
    u64 address, value;
};

struct machine_folded { /* what a parked guest's memory differs by from the template's, where that is little */
    struct machine_word *words;
    u32 count;
};

struct machine_parked { /* all that a processor knows that is not rebuilt from code */
    struct machine_state state;
    u64 fs_base;
    struct kvm_xsave fpu;
    struct machine_folded folded;
};

struct machine {
    int vm, vcpu;             /* -1 when closed */
    struct kvm_run *run;
    size_t run_bytes;
    u8 *memory;               /* limit_bytes of address space; only [0, end) is the guest's */
    u64 limit_bytes, end;
    u64 template_bytes;       /* [0, template_bytes) is a private view of a sealed template; 0: none */
    int image;                /* that template's descriptor, or the shared memory of a template under construction */
    bool building;            /* memory is shared with `image`: a template is being made */
    u8 *ring;                 /* where rings are mapped, RING_BYTES; null before the first one */
    bool has_ring;            /* one is mapped there now */
    int doorbell;             /* eventfd, or -1 */
    u8 *hot;                  /* a bit per page of the template: kept over a reset, with its bytes put back */
    u8 *seen;                 /* likewise: one that a tenant has written, for what becomes hot */
    u32 learnt;               /* how many became hot so */
    u32 slots;
    enum landing landing;
    struct wire_shim shim;    /* from the shim's file */
    u64 yield_seq;
    u32 signals[HOST_SIGNALS]; /* how often each was sent */
    u32 input_seq;            /* how often standard input was announced */
    bool interrupting;        /* make the guest look, even if it has one thread only */
    bool clean;               /* nothing was written or run since machine_reset() */
    struct machine_parked *parked; /* while it is: vm and vcpu are -1, the memory is there */
    int kvm;                  /* borrowed: the /dev/kvm that made it */
    u64 cpu_ns;               /* CPU time of the guest so far */
    u64 runs;
    u32 exit_reason;
    u64 detail;
};

struct machine_config {
    int kvm;                  /* an open /dev/kvm */
    int image;                /* template memory: a sealed memfd of image_bytes, or -1 */
    u64 image_bytes;
    bool building;            /* image is writable and of first_bytes: map it shared */
    u64 first_bytes;          /* memory at start, a multiple of 2 MiB */
    u64 limit_bytes;          /* memory at most */
    enum landing landing;
    struct wire_shim shim;
};

const char *machine_open(struct machine *m, const struct machine_config *config);
void machine_close(struct machine *m);
int machine_reset(struct machine *m);
u8 *machine_at(const struct machine *m, u64 address, u64 length);
u8 *machine_user_at(const struct machine *m, u64 address, u64 length);
int machine_start(struct machine *m);
enum run_exit machine_run(struct machine *m, u64 slice_ns, u64 tick_ns);
void machine_request(const struct machine *m, struct wire_request *out);
void machine_reply(struct machine *m, i64 result, u64 extra);
void machine_signal(struct machine *m, enum host_signal which);
void machine_announce_input(struct machine *m);
void machine_ask_rest(struct machine *m, enum rest_kind kind);
int machine_park(struct machine *m);
const char *machine_unpark(struct machine *m);
void machine_trap(struct machine *m, struct machine_trap *out);
int machine_save(struct machine *m, struct machine_state *out);
int machine_load(struct machine *m, const struct machine_state *state);
int machine_set_hot(struct machine *m, u64 address, u64 length);
i64 machine_grow(struct machine *m, u64 bytes);
int machine_release(struct machine *m, u64 address, u64 length);
int machine_reserve_ring(struct machine *m);
int machine_attach_ring(struct machine *m, int fd, int doorbell);
void machine_write_fixed(u8 *memory, enum landing landing, const struct wire_shim *shim);
int machine_probe(int kvm, u64 *xcr0, u64 *flags);
int machine_open_pagemap(void);
void machine_close_pagemap(void);
int machine_private_pages(const struct machine *m, int (*each)(void *, u64 address, u64 length), void *context);
int machine_own_pages(const struct machine *m, int (*each)(void *, u64 address, u64 length), void *context);
i64 machine_trim(struct machine *m);
u64 thread_cpu_ns(void);
#endif
