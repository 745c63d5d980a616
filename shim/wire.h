/* The whole contract between the host and a guest: addresses, ports, requests, ring frames.
 *
 * Included by the shim (guest), by the extension `_kvm` (host), which hands every number on to Python, and by the
 * assembly. Nothing here is trusted by the host: a guest may write anything into what it can write. Every struct that
 * crosses has its size asserted at the end, because a snapshot that was taken with another layout must be refused; any
 * change here raises WIRE_ABI.
 */
#ifndef SEAMGATE_WIRE_H
#define SEAMGATE_WIRE_H

#define WIRE_ABI 3

/* Guest addresses. Virtual and physical are the same; the first 2 MiB have 4 KiB entries, all others 2 MiB entries. */
#define GA_PML4 0x1000          /* 0x0000 is unmapped: a null pointer faults */
#define GA_PDPT 0x2000
#define GA_PD_LOW 0x3000        /* 0 .. 1 GiB */
#define GA_PD_RING 0x4000       /* 1 GiB .. 2 GiB: only the ring */
#define GA_PT_FIRST 0x5000
#define GA_GDT 0x6000           /* supervisor */
#define GA_TSS 0x7000           /* supervisor; its I/O bitmap lets ring 3 ring the doorbells */
#define GA_IDT 0x8000           /* supervisor */
#define GA_TRAPS 0x9000         /* supervisor code: one 16-byte stub per exception */
#define GA_TRAP_STACK 0xa000    /* supervisor; one page */
#define GA_LANDING 0xb000       /* where LSTAR points when `syscall` raises the privilege: supervisor code, 16 bytes */
#define GA_SHIM 0x10000         /* shim code and constants, ring 3, read and execute */
#define GA_SHIM_TEXT_END 0x19000 /* 36 KiB and no more */
#define GA_SHIM_DATA 0x20000    /* shim data, ring 3, read and write */
#define GA_SHIM_DATA_END 0xb0000
#define GA_PARAMS 0xb0000       /* host to guest, read-only in ring 3; rewritten at every start and restore */
#define GA_CONTROL 0xc0000      /* guest to host: the request, and the registers of a preempted thread */
#define GA_VDSO 0xd0000         /* the clocks as an ELF image, read and execute */
#define GA_VDSO_END 0xd4000
#define GA_STACK 0x200000       /* the first thread's stack; the page below it is unmapped */
#define GA_STACK_END 0x400000
#define GA_PROGRAM 0x400000     /* position-independent programs are loaded here */
#define GA_END 0x40000000       /* guest memory ends here at the latest */
#define GA_RING 0x40000000

/* Ports. The host looks at the number only; what is asked lies in memory. */
#define PORT_REQUEST 0x80
#define PORT_TRAP 0x81
#define PORT_DOORBELL 0x88      /* an ioeventfd: reaches the gateway without leaving the kernel */

/* Segment selectors, as Linux has them, so that ring-3 `iretq` works natively everywhere. */
#define SEL_KERNEL_CODE 0x10
#define SEL_KERNEL_DATA 0x18
#define SEL_USER_DATA 0x2b
#define SEL_USER_CODE 0x33
#define SEL_TSS 0x40

/* Offsets into struct wire_regs, for the assembly. */
#define R_RAX 0
#define R_RBX 8
#define R_RCX 16
#define R_RDX 24
#define R_RSI 32
#define R_RDI 40
#define R_RBP 48
#define R_R8 56
#define R_R9 64
#define R_R10 72
#define R_R11 80
#define R_R12 88
#define R_R13 96
#define R_R14 104
#define R_R15 112
#define R_RIP 120
#define R_CS 128
#define R_RFLAGS 136
#define R_RSP 144
#define R_SS 152

#ifndef __ASSEMBLER__
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef long i64;

/* General registers; from rip on it is exactly the frame that `iretq` pops. */
struct wire_regs {
    u64 rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15;
    u64 rip, cs, rflags, rsp, ss;
};

#define SHIM_MAGIC 0x6d69687365746773UL
/* At GA_SHIM. Written by the linker; the host reads it from the shim's file, never from a guest. */
struct wire_shim {
    u64 magic, abi;
    u64 landing_user;   /* LSTAR where `syscall` stays in ring 3 */
    u64 landing_kernel; /* where the supervisor stub goes by `sysretq` */
    u64 saved_rcx;      /* where that stub spills rcx */
    u64 start;          /* first instruction of a new guest */
    u64 preempt;        /* where the host sets rip to make a spinning thread yield */
};

#define PARAMS_MAGIC 0x736d617261706773UL
#define PARAMS_RING 1u          /* a ring is attached */
#define PARAMS_TERMINAL 2u      /* standard input is a terminal; the next two bits: output, error */

/* How the owner may ask a guest to stand still: the answer is HOST_REST, with all of its state in memory. */
enum rest_kind {
    REST_NONE,
    REST_PARK,          /* it goes on where it is */
    REST_HIBERNATE,     /* it goes on elsewhere: its streams end first */
};

/* What the owner may send. */
enum host_signal { SIGNAL_INT, SIGNAL_TERM, SIGNAL_HUP, HOST_SIGNALS };
/* At GA_PARAMS. ns = mono_ns + ((tsc - tsc0) * mult >> 32); wall clock = ns + wall_offset_ns. */
struct wire_params {
    u64 magic, abi;
    u64 tsc0, mult, mono_ns, wall_offset_ns; /* the vDSO reads these four: keep them here */
    u64 generation;     /* which restore this is; 0: never */
    u64 yield_seq;      /* the host raises it to ask the shim to schedule at its next return */
    u64 pid;
    u64 memory_end;     /* usable memory at start; PORT_REQUEST HOST_GROW moves it */
    u64 brk_start, brk_limit, mmap_low;
    u64 start_rip, start_rsp;
    u32 flags;
    u32 input_seq;      /* raised when standard input, which had nothing, may have something */
    u32 signals[HOST_SIGNALS]; /* how often the owner sent each */
    u32 rest;           /* enum rest_kind; until it is answered */
};

/* What the shim may ask of the host. Arguments in arg[0..5]; result is a value or a negative errno. */
enum host_op {
    HOST_EXIT = 1,      /* code: the program ended */
    HOST_ABORT,         /* signal: the program ended itself by a signal */
    HOST_IDLE,          /* deadline_ns (0: none), can_wake: every thread waits */
    HOST_WRITE,         /* fd (1, 2), address, length: console; the result may be short */
    HOST_READ,          /* address, length: standard input; 0 at its end, -EAGAIN: input_seq will tell. Length 0: 1 if a
                         * read would not wait */
    HOST_RANDOM,        /* address, length */
    HOST_GROW,          /* bytes: returns the new end of memory */
    HOST_RELEASE,       /* address, length: 1 if the range reads as zero now */
    HOST_UNSUPPORTED,   /* number: a call that no guest has, for the report */
    HOST_CONTROL_READ,  /* address, length: the template's rendezvous; a restored guest gets its job here */
    HOST_CONTROL_WRITE, /* address, length: an acknowledgement or a note to the host */
    HOST_REST,          /* it stands still, as params.rest asked for; answered when it is to go on */
    HOST_OPEN,          /* directory, path, path length, flags, mode: a handle */
    HOST_CLOSE,         /* handle */
    HOST_PREAD,         /* handle, address, length, offset */
    HOST_PWRITE,        /* handle, address, length, offset (-1: append) */
    HOST_STAT,          /* directory, path, path length, address of struct stat, flags */
    HOST_FSTAT,         /* handle, address of struct stat */
    HOST_ACCESS,        /* directory, path, path length, mode */
    HOST_READLINK,      /* directory, path, path length, address, length */
    HOST_GETDENTS,      /* handle, address, length, position: bytes; the new position in arg[5] */
    HOST_GETCWD,        /* address, length */
    HOST_CHDIR,         /* directory, path, path length (0: the directory itself) */
    HOST_MKDIR,         /* directory, path, path length, mode */
    HOST_UNLINK,        /* directory, path, path length, flags */
    HOST_RENAME,        /* directory, path, path length, directory, path, path length */
    HOST_TRUNCATE,      /* handle, length */
    HOST_CHMOD,         /* directory, path, path length, mode */
    HOST_UTIMES,        /* directory, path, path length, atime_ns, mtime_ns (-1: now); path length 0: the handle */
    HOST_OP_END
};
#define HOST_AT_CWD (-100L)

struct wire_request {
    u64 op;
    u64 arg[6];
    i64 result;
};

#define SYSCALL_COUNTERS 512
/* At GA_CONTROL. */
struct wire_control {
    struct wire_request request;
    struct wire_regs preempted;     /* the host writes it before it sets rip to wire_shim.preempt */
    u64 threads;                    /* more than one: the host preempts */
    u64 switches, preemptions;
    u32 calls[SYSCALL_COUNTERS];    /* how often each call was made: for reports and tests, never for policy */
};

/* ---- The ring: one shared memory per guest, two byte rings, one writer and one reader each. Sizes are constants of
 * the host; they are never read from shared memory. Indices run freely and wrap at 2^32. */
#define RING_TX_SIZE 0x10000u   /* guest to host; a power of two */
#define RING_RX_SIZE 0x10000u   /* host to guest */
#define RING_TX_OFFSET 0x1000u
#define RING_RX_OFFSET (RING_TX_OFFSET + RING_TX_SIZE)
#define RING_BYTES (RING_RX_OFFSET + RING_RX_SIZE)
#define RING_MAX_PAYLOAD 0x4000u /* a quarter of a ring: one frame never fills it */
#define RING_STREAMS 64
#define RING_RX_WINDOW 0x10000u /* what the host may send on a stream before the guest gives credit */
#define RING_TX_WINDOW 0x40000u /* what the guest may send before the host gives credit */

enum frame_type {
    FRAME_PAD = 1,      /* fills the end of a ring */
    FRAME_OPEN,         /* guest: struct wire_open; data may follow at once, a refusal is a RESET */
    FRAME_DATA,
    FRAME_FIN,          /* no more data in this direction */
    FRAME_RESET,        /* aux: errno, 0 for a plain close by the guest; the stream is gone */
    FRAME_CREDIT,       /* aux: bytes */
    FRAME_NAME_QUERY,   /* guest: a DNS message as a resolver sends it */
    FRAME_NAME_ANSWER,  /* host: a DNS message */
    FRAME_END
};

struct wire_frame {
    u32 length;         /* of the payload, without padding */
    u16 type;
    u16 flags;
    u32 stream;
    u32 aux;
};

struct wire_open {
    u16 family;         /* AF_INET or AF_INET6 */
    u16 port;           /* host byte order */
    u8 address[16];     /* network byte order; AF_INET uses the first four */
};

/* One cache line per word, so that the two sides do not share lines. */
struct wire_ring {
    u32 tx_head; u32 p0[15];
    u32 tx_tail; u32 p1[15];
    u32 rx_head; u32 p2[15];
    u32 rx_tail; u32 p3[15];
    u32 host_sleeping; u32 p4[15];
    u32 guest_sleeping; u32 p5[15];
    u32 host_blocked; u32 p6[15];  /* the host found no room: ring the doorbell after reading */
};

_Static_assert(sizeof(struct wire_regs) == 160, "wire_regs");
_Static_assert(__builtin_offsetof(struct wire_regs, ss) == R_SS, "iret frame");
_Static_assert(sizeof(struct wire_shim) == 56, "wire_shim");
_Static_assert(sizeof(struct wire_params) == 144, "wire_params");
_Static_assert(sizeof(struct wire_request) == 64, "wire_request");
_Static_assert(sizeof(struct wire_control) == 2296, "wire_control");
_Static_assert(sizeof(struct wire_frame) == 16, "wire_frame");
_Static_assert(sizeof(struct wire_open) == 20, "wire_open");
_Static_assert(sizeof(struct wire_ring) == 448, "wire_ring");
#endif
#endif
