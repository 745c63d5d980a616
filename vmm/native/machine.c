/* See machine.h. Source for every ioctl: Documentation/virt/kvm/api.rst; for descriptors: Intel SDM 3A, 3.4 and 6.14. */
#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define HUGE (2UL << 20)
#define CR0_VALUE 0x80050033UL /* paging, write protect, native FPU errors, alignment mask, protected mode */
#define CR4_VALUE ((1UL << 5) | (1UL << 9) | (1UL << 10) | (1UL << 16) | (1UL << 18)) /* PAE FXSR XMM FSGSBASE XSAVE */
#define EFER_VALUE 0xd01UL     /* SYSCALL, long mode enabled and active, no-execute */
#define XCR0_VALUE 7UL         /* x87, SSE, AVX */
#define MSR_STAR 0xc0000081U
#define MSR_LSTAR 0xc0000082U
#define MSR_SFMASK 0xc0000084U
#define SFMASK_VALUE 0x44500UL /* trap, direction, nested task, alignment check */
#define IOPL 0x3000UL          /* SVM checks IOPL, PVM only the TSS bitmap: both are set */
#define KICK_SIGNAL (SIGRTMIN + 3)
#define POPULATE_WRITE 23 /* MADV_POPULATE_WRITE, since Linux 5.14 */
#define MIN_TICK_NS 1000000UL

/* Entries carry "accessed" and "dirty" from the start, so that no processor writes to the tables and unshares them. */
enum { PRESENT = 1, WRITE = 2, USER = 4, ACCESSED = 0x20, DIRTY = 0x40, LARGE = 0x80 };
#define NO_EXECUTE (1UL << 63)
#define TABLE (PRESENT | WRITE | USER | ACCESSED)
#define KERNEL_PAGE (PRESENT | WRITE | ACCESSED | DIRTY)
#define USER_CODE (PRESENT | USER | ACCESSED | DIRTY)
#define USER_DATA (PRESENT | WRITE | USER | ACCESSED | DIRTY)

static __thread struct kvm_run *volatile kicked; /* what this thread's timer interrupts */
static __thread timer_t kick_timer;
static __thread pid_t timer_owner; /* a forked process inherits this variable, but no timer */

/* ---- the pages that only the host writes */

static void map_range(u64 *table, u64 from, u64 to, u64 flags)
{
    for (u64 page = from / PAGE; page < to / PAGE; page++)
        table[page] = page * PAGE | flags;
}

static void write_tables(u8 *memory)
{
    u64 *pml4 = (u64 *)(memory + GA_PML4), *pdpt = (u64 *)(memory + GA_PDPT), *low = (u64 *)(memory + GA_PD_LOW);
    u64 *ring = (u64 *)(memory + GA_PD_RING), *first = (u64 *)(memory + GA_PT_FIRST);
    pml4[0] = GA_PDPT | TABLE;
    pdpt[0] = GA_PD_LOW | TABLE;
    pdpt[1] = GA_PD_RING | TABLE;
    low[0] = GA_PT_FIRST | TABLE;
    for (u64 i = 1; i < GA_END / HUGE; i++)
        low[i] = i * HUGE | USER_DATA | LARGE;
    ring[0] = GA_RING | USER_DATA | LARGE | NO_EXECUTE;
    map_range(first, GA_GDT, GA_TRAPS, KERNEL_PAGE | NO_EXECUTE);
    map_range(first, GA_TRAPS, GA_TRAP_STACK, KERNEL_PAGE);
    map_range(first, GA_TRAP_STACK, GA_LANDING, KERNEL_PAGE | NO_EXECUTE);
    map_range(first, GA_LANDING, GA_LANDING + PAGE, KERNEL_PAGE);
    map_range(first, GA_SHIM, GA_SHIM_TEXT_END, USER_CODE);
    map_range(first, GA_SHIM_DATA, GA_SHIM_DATA_END, USER_DATA | NO_EXECUTE);
    map_range(first, GA_PARAMS, GA_PARAMS + PAGE, USER_CODE | NO_EXECUTE);
    map_range(first, GA_CONTROL, GA_CONTROL + PAGE, USER_DATA | NO_EXECUTE);
    map_range(first, GA_VDSO, GA_VDSO_END, USER_CODE);
}

static void write_descriptors(u8 *memory)
{
    u64 *gdt = (u64 *)(memory + GA_GDT);
    gdt[SEL_KERNEL_CODE / 8] = 0x00af9b000000ffffUL;
    gdt[SEL_KERNEL_DATA / 8] = 0x00cf93000000ffffUL;
    gdt[SEL_USER_DATA / 8] = 0x00cff3000000ffffUL;
    gdt[SEL_USER_CODE / 8] = 0x00affb000000ffffUL;
    gdt[SEL_TSS / 8] = 0x00008b0000000000UL | 0xff | (u64)GA_TSS << 16;
    u8 *tss = memory + GA_TSS; /* the I/O bitmap from 0x68 on is zero: every port up to 0x4b8 is open to ring 3 */
    u64 stack = GA_TRAP_STACK + PAGE;
    memcpy(tss + 4, &stack, sizeof stack);
    tss[0x66] = 0x68;
}

static void write_traps(u8 *memory)
{
    const u32 with_error = 1u << 8 | 1u << 10 | 1u << 11 | 1u << 12 | 1u << 13 | 1u << 14 | 1u << 17 | 1u << 21;
    for (u32 vector = 0; vector < 32; vector++) {
        u8 *code = memory + GA_TRAPS + vector * 16;
        u64 address = GA_TRAPS + vector * 16, *gate = (u64 *)(memory + GA_IDT + vector * 16);
        u32 n = 0;
        if (!(with_error >> vector & 1))
            code[n++] = 0x6a, code[n++] = 0; /* push $0 */
        code[n++] = 0x6a, code[n++] = (u8)vector; /* push $vector */
        code[n++] = 0xe6, code[n++] = PORT_TRAP; /* out %al, $PORT_TRAP */
        code[n++] = 0xf4; /* hlt */
        u64 dpl = vector == 3 ? 3 : 0; /* int3 is a breakpoint, every other `int n` a protection fault */
        gate[0] = (address & 0xffff) | (u64)SEL_KERNEL_CODE << 16 | (0x8eUL | dpl << 5) << 40 | (address >> 16) << 48;
        gate[1] = 0;
    }
}

/* mov %rcx, saved_rcx; mov $landing_kernel, %ecx; sysretq: all that ever runs in ring 0 for a system call. */
static void write_landing(u8 *memory, const struct wire_shim *shim)
{
    u8 code[16] = {0x48, 0x89, 0x0c, 0x25, 0, 0, 0, 0, 0xb9, 0, 0, 0, 0, 0x48, 0x0f, 0x07};
    u32 saved = (u32)shim->saved_rcx, entry = (u32)shim->landing_kernel;
    memcpy(code + 4, &saved, 4);
    memcpy(code + 9, &entry, 4);
    memcpy(memory + GA_LANDING, code, sizeof code);
}

/* Writes everything below GA_SHIM from code: tables, descriptors, traps, landing. `memory` holds at least that much. */
void machine_write_fixed(u8 *memory, enum landing landing, const struct wire_shim *shim)
{
    memset(memory, 0, GA_SHIM);
    write_tables(memory);
    write_descriptors(memory);
    write_traps(memory);
    if (landing == LANDING_KERNEL)
        write_landing(memory, shim);
}

/* ---- memory */

/* Returns the host's pointer to [address, address + length) of guest memory, or null if it is not all there. */
u8 *machine_at(const struct machine *m, u64 address, u64 length)
{
    if (address > m->end || length > m->end - address)
        return NULL;
    return m->memory + address;
}

/* The same for an address that the guest named: only what ring 3 can write may be named. */
u8 *machine_user_at(const struct machine *m, u64 address, u64 length)
{
    bool program = address >= GA_STACK;
    bool shim = address >= GA_SHIM_DATA && address < GA_SHIM_DATA_END && length <= GA_SHIM_DATA_END - address;
    return program || shim ? machine_at(m, address, length) : NULL;
}

static int set_slot(const struct machine *m, u32 slot, u64 address, u64 bytes, const void *host)
{
    struct kvm_userspace_memory_region region = {
        .slot = slot, .guest_phys_addr = address, .memory_size = bytes, .userspace_addr = (u64)host};
    return ioctl(m->vm, KVM_SET_USER_MEMORY_REGION, &region);
}

/* Returns 0; maps the private view of the template over its part of the address space, dropping what was there. */
static int map_image(struct machine *m)
{
    int flags = m->building ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE;
    if (!m->template_bytes)
        return 0;
    void *at = mmap(m->memory, m->template_bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, m->image, 0);
    return at == MAP_FAILED ? -1 : 0;
}

static int map_memory(struct machine *m)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    m->memory = mmap(NULL, m->limit_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (m->memory == MAP_FAILED) {
        m->memory = NULL;
        return -1;
    }
    madvise(m->memory, m->limit_bytes, MADV_DONTDUMP);
    madvise(m->memory, m->limit_bytes, MADV_NOHUGEPAGE); /* a 4 KiB write must not cost 2 MiB */
    return map_image(m);
}

/* Returns the new end of memory after adding at least `bytes`, or -ENOMEM at the limit. */
i64 machine_grow(struct machine *m, u64 bytes)
{
    const u64 step = 32UL << 20; /* big enough that slots stay few, small enough that shadow tables stay small */
    if (bytes > m->limit_bytes - m->end)
        return -ENOMEM;
    u64 wanted = (bytes + step - 1) / step * step, left = m->limit_bytes - m->end;
    if (wanted > left)
        wanted = left;
    if (set_slot(m, m->slots, m->end, wanted, m->memory + m->end))
        return -ENOMEM;
    m->slots++;
    m->end += wanted;
    return (i64)m->end;
}

/* Returns 1 if the range reads as zero afterwards, 0 if it was left alone. Whole pages outside the template only. */
int machine_release(struct machine *m, u64 address, u64 length)
{
    u8 *at = machine_user_at(m, address, length);
    if (!at || address % PAGE || length % PAGE || !length || address < GA_STACK)
        return 0;
    /* SAFE: machine_user_at() said that the range lies in guest memory. */
    if (m->building && address + length <= m->template_bytes)
        return fallocate(m->image, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)address, (off_t)length) == 0;
    if (address < m->template_bytes)
        return 0; /* dropping a private page would bring the template's bytes back */
    return madvise(at, length, MADV_DONTNEED) == 0;
}

/* ---- processor */

static bool hidden_leaf(u32 function) { return function >= 0x40000000 && function < 0x40010000; }

/* Takes out what must not be seen or relied on: nested virtualisation, x2APIC, AVX-512, AMX, CET. */
static void mask_cpuid(struct kvm_cpuid_entry2 *e)
{
    if (e->function == 1)
        e->ecx &= ~(1u << 5 | 1u << 21 | 1u << 3);
    if (e->function == 7 && e->index == 0) {
        e->ebx &= ~(1u << 16 | 1u << 17 | 1u << 21 | 0xfu << 26 | 1u << 30 | 1u << 31);
        e->ecx &= ~(1u << 1 | 1u << 6 | 1u << 7 | 1u << 11 | 1u << 12 | 1u << 14);
        e->edx &= ~(3u << 2 | 1u << 8 | 1u << 20 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
    }
    if (e->function == 7 && e->index != 0)
        e->eax = e->ebx = e->ecx = e->edx = 0;
    if (e->function == 0xd && e->index == 0)
        e->eax &= XCR0_VALUE;
    if (e->function == 0x80000001)
        e->ecx &= ~(1u << 2);
}

static struct { struct kvm_cpuid2 head; struct kvm_cpuid_entry2 entries[256]; } cpuid;
static pthread_once_t cpuid_once = PTHREAD_ONCE_INIT;
static int cpuid_kvm = -1, cpuid_error;

static void load_cpuid(void)
{
    cpuid.head.nent = 256;
    cpuid_error = ioctl(cpuid_kvm, KVM_GET_SUPPORTED_CPUID, &cpuid) ? errno : 0;
    u32 kept = 0;
    for (u32 i = 0; !cpuid_error && i < cpuid.head.nent; i++)
        if (!hidden_leaf(cpuid.entries[i].function)) {
            mask_cpuid(&cpuid.entries[i]);
            cpuid.entries[kept++] = cpuid.entries[i];
        }
    cpuid.head.nent = kept;
}

static int set_sregs(const struct machine *m, u64 fs_base)
{
    struct kvm_sregs s;
    if (ioctl(m->vcpu, KVM_GET_SREGS, &s))
        return -1;
    struct kvm_segment code = {.limit = 0xffffffff, .selector = SEL_USER_CODE, .present = 1, .type = 11, .dpl = 3,
                               .s = 1, .l = 1, .g = 1};
    struct kvm_segment data = code, task = {.base = GA_TSS, .limit = 0xff, .selector = SEL_TSS, .present = 1,
                                            .type = 11};
    data.type = 3;
    data.selector = SEL_USER_DATA;
    data.l = 0;
    data.db = 1;
    s.cs = code;
    s.ds = s.es = s.gs = s.ss = s.fs = data;
    s.fs.base = fs_base;
    s.tr = task;
    s.gdt.base = GA_GDT;
    s.gdt.limit = 16 * 8 - 1;
    s.idt.base = GA_IDT;
    s.idt.limit = 32 * 16 - 1;
    s.cr0 = CR0_VALUE;
    s.cr2 = 0;
    s.cr3 = GA_PML4;
    s.cr4 = CR4_VALUE;
    s.efer = EFER_VALUE;
    return ioctl(m->vcpu, KVM_SET_SREGS, &s);
}

static int set_msrs(const struct machine *m)
{
    struct { struct kvm_msrs head; struct kvm_msr_entry entries[3]; } msrs = {.head.nmsrs = 3};
    msrs.entries[0].index = MSR_STAR;
    msrs.entries[0].data = 0x23UL << 48 | (u64)SEL_KERNEL_CODE << 32;
    msrs.entries[1].index = MSR_LSTAR;
    msrs.entries[1].data = m->landing == LANDING_KERNEL ? GA_LANDING : m->shim.landing_user;
    msrs.entries[2].index = MSR_SFMASK;
    msrs.entries[2].data = SFMASK_VALUE;
    return ioctl(m->vcpu, KVM_SET_MSRS, &msrs) == 3 ? 0 : -1; /* a short count is a failure */
}

static int set_xcr0(const struct machine *m)
{
    struct kvm_xcrs x = {.nr_xcrs = 1};
    x.xcrs[0].value = XCR0_VALUE;
    return ioctl(m->vcpu, KVM_SET_XCRS, &x);
}

/* The guest's time stamp counter is the host's. Where offsets cannot be set, it is anyway. */
static void set_tsc_offset(const struct machine *m)
{
    u64 zero = 0;
    struct kvm_device_attr attr = {.group = KVM_VCPU_TSC_CTRL, .attr = KVM_VCPU_TSC_OFFSET, .addr = (u64)&zero};
    (void)ioctl(m->vcpu, KVM_SET_DEVICE_ATTR, &attr);
}

static const char *make_vcpu(struct machine *m, int kvm)
{
    m->vcpu = ioctl(m->vm, KVM_CREATE_VCPU, 0UL);
    if (m->vcpu < 0)
        return "KVM_CREATE_VCPU";
    int bytes = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0UL);
    if (bytes <= 0)
        return "KVM_GET_VCPU_MMAP_SIZE";
    m->run_bytes = (size_t)bytes;
    void *run = mmap(NULL, m->run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->vcpu, 0);
    if (run == MAP_FAILED)
        return "mmap of the vcpu";
    m->run = run;
    if (ioctl(m->vcpu, KVM_SET_CPUID2, &cpuid)) /* before SREGS: KVM checks CR4 against it */
        return "KVM_SET_CPUID2";
    if (set_sregs(m, 0))
        return "KVM_SET_SREGS";
    if (set_xcr0(m))
        return "KVM_SET_XCRS";
    if (set_msrs(m))
        return "KVM_SET_MSRS";
    set_tsc_offset(m);
    return NULL;
}

/* Returns null, or the name of the step that failed, with errno set and nothing left open. */
const char *machine_open(struct machine *m, const struct machine_config *c)
{
    const char *step = NULL;
    memset(m, 0, sizeof *m);
    m->vm = m->vcpu = m->doorbell = -1;
    m->image = c->image;
    m->building = c->building;
    m->template_bytes = c->image >= 0 ? c->image_bytes : 0;
    m->limit_bytes = c->limit_bytes;
    m->landing = c->landing;
    m->shim = c->shim;
    if (c->first_bytes % HUGE || c->limit_bytes % HUGE || c->limit_bytes > GA_END || c->first_bytes > c->limit_bytes ||
        c->first_bytes < 2 * HUGE || m->template_bytes > c->first_bytes || m->template_bytes % PAGE) {
        errno = EINVAL;
        return "checking the sizes of memory";
    }
    cpuid_kvm = m->kvm = c->kvm;
    pthread_once(&cpuid_once, load_cpuid);
    if (cpuid_error) {
        errno = cpuid_error;
        return "KVM_GET_SUPPORTED_CPUID";
    }
    if (map_memory(m)) {
        step = "mmap of guest memory";
        goto out;
    }
    m->vm = ioctl(c->kvm, KVM_CREATE_VM, 0UL);
    if (m->vm < 0) {
        step = "KVM_CREATE_VM";
        goto out;
    }
    if (set_slot(m, 0, 0, c->first_bytes, m->memory)) {
        step = "KVM_SET_USER_MEMORY_REGION";
        goto out;
    }
    m->slots = 2; /* 1 is the ring's */
    m->end = c->first_bytes;
    step = make_vcpu(m, c->kvm);
out:
    if (step) {
        int saved = errno;
        machine_close(m);
        errno = saved;
    }
    return step;
}

/* Frees everything; may be called twice. */
void machine_close(struct machine *m)
{
    if (m->run)
        munmap(m->run, m->run_bytes);
    if (m->vcpu >= 0)
        close(m->vcpu);
    if (m->vm >= 0)
        close(m->vm);
    if (m->memory)
        munmap(m->memory, m->limit_bytes);
    free(m->hot);
    m->hot = NULL;
    if (m->ring)
        munmap(m->ring, RING_BYTES);
    if (m->doorbell >= 0)
        close(m->doorbell);
    m->run = NULL;
    m->memory = m->ring = NULL;
    m->has_ring = false;
    m->vm = m->vcpu = m->doorbell = -1;
    m->end = 0;
}

/* Completes an exit that is under way, so that registers may be read or replaced. Returns 0, or -1. */
static int settle(struct machine *m)
{
    m->run->immediate_exit = 1;
    int result = ioctl(m->vcpu, KVM_RUN, 0UL);
    m->run->immediate_exit = 0;
    return result < 0 && errno == EINTR ? 0 : -1;
}

/* ---- which pages a guest has made its own: read from the kernel, never from the guest */

static int pagemap = -1;

/* Returns 0 once this process can tell private pages apart; call it before paths are given up. */
int machine_open_pagemap(void)
{
    if (pagemap < 0)
        pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    return pagemap < 0 ? -1 : 0;
}

/* A process that was forked has other pages than its parent. */
void machine_close_pagemap(void)
{
    if (pagemap >= 0)
        close(pagemap);
    pagemap = -1;
}

static bool is_hot(const struct machine *m, u64 page) { return m->hot && m->hot[page / 8] >> page % 8 & 1; }

/* Returns 0 with the range unshared now and kept over resets: every guest of the template writes there. */
int machine_set_hot(struct machine *m, u64 address, u64 length)
{
    u64 pages = m->template_bytes / PAGE;
    if (address % PAGE || length % PAGE || address > m->template_bytes || length > m->template_bytes - address) {
        errno = EINVAL;
        return -1;
    }
    if (!m->hot)
        m->hot = calloc(pages / 8 + 1, 1);
    if (!m->hot)
        return -1;
    for (u64 page = address / PAGE; page < (address + length) / PAGE; page++)
        m->hot[page / 8] |= (u8)(1u << page % 8);
    /* SAFE: the range lies in the template's part of memory. A failure costs time only: the pages fault in later. */
    (void)madvise(m->memory + address, length, POPULATE_WRITE);
    return 0;
}

/* Puts the template's bytes back into the hot pages: copying is far cheaper than losing and faulting them again. */
static int refill_hot(const struct machine *m)
{
    u64 pages = m->template_bytes / PAGE, start = 0, run = 0;
    for (u64 page = 0; m->hot && page <= pages; page++) {
        bool hot = page < pages && is_hot(m, page);
        if (hot && !run++)
            start = page;
        if (hot || !run)
            continue;
        /* SAFE: start + run <= pages, the template's part of memory. */
        if (pread(m->image, m->memory + start * PAGE, run * PAGE, (off_t)(start * PAGE)) != (ssize_t)(run * PAGE))
            return -1;
        run = 0;
    }
    return 0;
}

/* Calls `each` with every run of private pages below `end`. Returns 0, or -1 with errno. */
static int private_pages(const struct machine *m, u64 end, bool skip_hot, int (*each)(void *, u64, u64), void *context)
{
    enum { BATCH = 2048 };
    static __thread u64 entries[BATCH];
    u64 pages = end / PAGE, run = 0, start = 0;
    if (machine_open_pagemap())
        return -1;
    for (u64 page = 0; page < pages; page += BATCH) {
        u64 n = pages - page < BATCH ? pages - page : BATCH;
        off_t at = (off_t)(((u64)m->memory / PAGE + page) * sizeof *entries);
        if (pread(pagemap, entries, n * sizeof *entries, at) != (ssize_t)(n * sizeof *entries)) {
            errno = EIO;
            return -1;
        }
        for (u64 i = 0; i < n; i++) {
            /* Source: Documentation/admin-guide/mm/pagemap.rst: 63 present, 62 swapped, 61 page of a file */
            bool own = entries[i] >> 62 && !(entries[i] >> 61 & 1);
            if (skip_hot && is_hot(m, page + i))
                own = false;
            if (own && !run++)
                start = page + i;
            if (!own && run) {
                if (each(context, start * PAGE, run * PAGE))
                    return -1;
                run = 0;
            }
        }
    }
    return run && each(context, start * PAGE, run * PAGE) ? -1 : 0;
}

int machine_private_pages(const struct machine *m, int (*each)(void *, u64 address, u64 length), void *context)
{
    return private_pages(m, m->template_bytes, false, each, context);
}

/* The same for all of its memory, what lies beyond the template included. */
int machine_own_pages(const struct machine *m, int (*each)(void *, u64 address, u64 length), void *context)
{
    return private_pages(m, m->end, false, each, context);
}

static int drop_run(void *context, u64 address, u64 length)
{
    const struct machine *m = context;
    return madvise(m->memory + address, length, MADV_DONTNEED);
}

/* Returns 0 with memory of nobody where the ring was. The slot stays: to delete one makes KVM forget every page of the
 * machine (Documentation/virt/kvm/api.rst, KVM_X86_QUIRK_SLOT_ZAP_ALL). */
static int detach_ring(struct machine *m)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    struct kvm_ioeventfd bell = {.addr = PORT_DOORBELL, .len = 1, .fd = m->doorbell,
                                 .flags = KVM_IOEVENTFD_FLAG_PIO | KVM_IOEVENTFD_FLAG_DEASSIGN};
    if (mmap(m->ring, RING_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        return -1;
    m->has_ring = false;
    (void)ioctl(m->vm, KVM_IOEVENTFD, &bell);
    close(m->doorbell);
    m->doorbell = -1;
    return 0;
}

/* Returns 0 after bringing memory back to the template and detaching the ring: for the next tenant. Only pages that the
 * last tenant wrote are dropped: what it merely read stays mapped, which is what makes a machine warm. The processor is
 * set by machine_load(), which replaces every register. Slots that were added stay, emptied. A machine that was brought
 * back and not used since is left as it is: so the work can be done before a guest waits for it. */
int machine_reset(struct machine *m)
{
    if (m->clean)
        return 0;
    if (settle(m) || !m->template_bytes || m->building)
        return -1;
    if (private_pages(m, m->template_bytes, true, drop_run, m) || refill_hot(m)) {
        if (map_image(m)) /* all of it anew: slower, and just as clean */
            return -1;
    }
    if (m->end > m->template_bytes && madvise(m->memory + m->template_bytes, m->end - m->template_bytes, MADV_DONTNEED))
        return -1;
    m->cpu_ns = 0;
    m->runs = 0;
    m->yield_seq = 0;
    memset(m->signals, 0, sizeof m->signals);
    m->input_seq = 0;
    m->interrupting = false;
    if (m->has_ring && detach_ring(m))
        return -1;
    m->clean = !set_xcr0(m) && !set_msrs(m);
    return m->clean ? 0 : -1;
}

/* Returns 0 with the first instruction set to the shim's start. */
int machine_start(struct machine *m)
{
    struct kvm_regs regs = {.rip = m->shim.start, .rflags = 2 | IOPL};
    return ioctl(m->vcpu, KVM_SET_REGS, &regs);
}

/* Returns 0 with the place of a ring made, empty: work that a warm machine has behind it when its guest comes. */
int machine_reserve_ring(struct machine *m)
{
    if (m->ring)
        return 0;
    void *at = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return -1;
    m->ring = at;
    return set_slot(m, 1, GA_RING, RING_BYTES, m->ring);
}

static int wire_doorbell(const struct machine *m)
{
    struct kvm_ioeventfd bell = {.addr = PORT_DOORBELL, .len = 1, .fd = m->doorbell, .flags = KVM_IOEVENTFD_FLAG_PIO};
    return ioctl(m->vm, KVM_IOEVENTFD, &bell);
}

/* Returns 0 with the ring mapped into the guest, and its doorbell wired to `doorbell` (which is duplicated). */
int machine_attach_ring(struct machine *m, int fd, int doorbell)
{
    m->clean = false;
    if (m->has_ring) {
        errno = EBUSY;
        return -1;
    }
    if (machine_reserve_ring(m))
        return -1;
    if (mmap(m->ring, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        return -1;
    m->has_ring = true;
    m->doorbell = fcntl(doorbell, F_DUPFD_CLOEXEC, 3);
    return m->doorbell < 0 || wire_doorbell(m) ? -1 : 0;
}

/* ---- running */

static void on_kick(int signal)
{
    (void)signal;
    struct kvm_run *run = kicked;
    if (run)
        run->immediate_exit = 1; /* closes the gap between the last check and KVM_RUN */
}

static int make_timer(void)
{
    struct sigaction action = {.sa_handler = on_kick};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = KICK_SIGNAL};
    event._sigev_un._tid = (int)syscall(SYS_gettid);
    if (sigaction(KICK_SIGNAL, &action, NULL) || timer_create(CLOCK_MONOTONIC, &event, &kick_timer))
        return -1;
    timer_owner = getpid();
    return 0;
}

static struct timespec timespec_of(u64 ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

/* Returns 0, or -1: without a timer no guest may run. A period under MIN_TICK_NS would leave no time to do anything but take signals, for ever. */
static int arm(u64 first_ns, u64 period_ns)
{
    const u64 min_ns = MIN_TICK_NS;
    struct itimerspec spec = {.it_value = timespec_of(first_ns && first_ns < min_ns / 8 ? min_ns / 8 : first_ns),
                              .it_interval = timespec_of(period_ns && period_ns < min_ns ? min_ns : period_ns)};
    return timer_settime(kick_timer, 0, &spec, NULL);
}

/* Returns the CPU time of this thread in nanoseconds. */
u64 thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

/* Makes a guest with more than one thread choose the next: at once if it runs program code, else when the shim is done.
 * Returns 0, or -1 if KVM refuses. */
static int preempt(struct machine *m)
{
    /* SAFE: GA_CONTROL and GA_PARAMS lie below the 4 MiB that every machine has at least. */
    volatile struct wire_control *control = (volatile struct wire_control *)(m->memory + GA_CONTROL);
    volatile struct wire_params *params = (volatile struct wire_params *)(m->memory + GA_PARAMS);
    struct kvm_regs r;
    if (control->threads < 2 && !m->interrupting)
        return 0;
    m->interrupting = false;
    if (ioctl(m->vcpu, KVM_GET_REGS, &r))
        return -1;
    params->yield_seq = ++m->yield_seq;
    if (r.rip < GA_STACK)
        return 0;
    struct wire_regs saved = {r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
                              r.r14, r.r15, r.rip, SEL_USER_CODE, r.rflags, r.rsp, SEL_USER_DATA};
    *(struct wire_regs *)&control->preempted = saved;
    r.rip = m->shim.preempt;
    r.rflags = 2 | IOPL;
    return ioctl(m->vcpu, KVM_SET_REGS, &r);
}

static enum run_exit classify(struct machine *m)
{
    const struct kvm_run *run = m->run;
    m->exit_reason = run->exit_reason;
    m->detail = 0;
    switch (run->exit_reason) {
    case KVM_EXIT_IO:
        if (run->io.direction == KVM_EXIT_IO_OUT && run->io.port == PORT_REQUEST)
            return RUN_REQUEST;
        if (run->io.direction == KVM_EXIT_IO_OUT && run->io.port == PORT_TRAP)
            return RUN_TRAP;
        if (run->io.port == PORT_DOORBELL)
            return 0; /* no gateway is listening */
        m->detail = run->io.port;
        return RUN_BROKEN;
    case KVM_EXIT_MMIO:
        m->detail = run->mmio.phys_addr;
        return RUN_MEMORY;
    case KVM_EXIT_INTERNAL_ERROR:
        m->detail = run->internal.suberror;
        return RUN_BROKEN;
    case KVM_EXIT_FAIL_ENTRY:
        m->detail = run->fail_entry.hardware_entry_failure_reason;
        return RUN_BROKEN;
    }
    return RUN_BROKEN;
}

static enum run_exit run_loop(struct machine *m, u64 end_ns)
{
    for (;;) {
        if (ioctl(m->vcpu, KVM_RUN, 0UL) == 0) {
            enum run_exit what = classify(m);
            if (what)
                return what;
            continue;
        }
        m->run->immediate_exit = 0;
        if (errno != EINTR && errno != EAGAIN) {
            m->detail = (u64)errno;
            return RUN_ERROR;
        }
        if (preempt(m)) {
            m->detail = (u64)errno;
            return RUN_ERROR;
        }
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        if ((u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec >= end_ns)
            return RUN_SLICE;
    }
}

/* Runs the guest until it asks for something or `slice_ns` passed; threads are switched every `tick_ns`.
 * Returns why it stopped. Runs on: any thread, one at a time, without the interpreter's lock. */
enum run_exit machine_run(struct machine *m, u64 slice_ns, u64 tick_ns)
{
    struct timespec t;
    if (timer_owner != getpid() && make_timer()) {
        m->detail = (u64)errno;
        return RUN_ERROR;
    }
    clock_gettime(CLOCK_MONOTONIC, &t);
    u64 before = thread_cpu_ns();
    m->clean = false;
    m->runs++;
    kicked = m->run;
    if (arm(tick_ns < slice_ns ? tick_ns : slice_ns, tick_ns)) {
        kicked = NULL;
        m->detail = (u64)errno;
        return RUN_ERROR;
    }
    enum run_exit why = run_loop(m, (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec + slice_ns);
    (void)arm(0, 0);
    kicked = NULL;
    m->run->immediate_exit = 0;
    m->cpu_ns += thread_cpu_ns() - before;
    return why;
}

/* Sends the guest a signal; it takes it at its next step. */
void machine_signal(struct machine *m, enum host_signal which)
{
    /* SAFE: GA_PARAMS lies below the 4 MiB that every machine has at least. */
    volatile struct wire_params *params = (volatile struct wire_params *)(m->memory + GA_PARAMS);
    params->signals[which] = ++m->signals[which];
    m->interrupting = true;
}

/* Tells the guest that standard input, which had nothing, may have something. */
void machine_announce_input(struct machine *m)
{
    /* SAFE: GA_PARAMS lies below the 4 MiB that every machine has at least. */
    volatile struct wire_params *params = (volatile struct wire_params *)(m->memory + GA_PARAMS);
    params->input_seq = ++m->input_seq;
}

/* Asks the guest to stand still at its next step, or takes that back. */
void machine_ask_rest(struct machine *m, enum rest_kind kind)
{
    /* SAFE: GA_PARAMS lies below the 4 MiB that every machine has at least. */
    volatile struct wire_params *params = (volatile struct wire_params *)(m->memory + GA_PARAMS);
    params->rest = kind;
    m->interrupting |= kind != REST_NONE;
}

/* Copies the request once; what is judged and used is the copy. */
void machine_request(const struct machine *m, struct wire_request *out)
{
    /* SAFE: GA_CONTROL lies below the 4 MiB that every machine has at least. */
    const volatile struct wire_control *control = (const volatile struct wire_control *)(m->memory + GA_CONTROL);
    *out = *(const struct wire_request *)&control->request;
}

/* Answers the request; `extra` goes to arg[5], where some requests return a second value. */
void machine_reply(struct machine *m, i64 result, u64 extra)
{
    /* SAFE: as above. */
    volatile struct wire_control *control = (volatile struct wire_control *)(m->memory + GA_CONTROL);
    control->request.result = result;
    control->request.arg[5] = extra;
}

/* Reads the frame that the processor pushed on the trap stack, which no guest code can write. */
void machine_trap(struct machine *m, struct machine_trap *out)
{
    /* SAFE: the trap stack lies below the 4 MiB that every machine has at least. */
    const u64 *frame = (const u64 *)(m->memory + GA_TRAP_STACK + PAGE - 56);
    struct kvm_sregs s;
    *out = (struct machine_trap){.vector = frame[0], .error = frame[1], .rip = frame[2], .cs = frame[3],
                                 .rflags = frame[4], .rsp = frame[5]};
    if (frame[0] == 14 && ioctl(m->vcpu, KVM_GET_SREGS, &s) == 0)
        out->address = s.cr2;
}

/* Returns 0 with the registers as they are after the request under way is complete. */
int machine_save(struct machine *m, struct machine_state *out)
{
    memset(out, 0, sizeof *out);
    return settle(m) || ioctl(m->vcpu, KVM_GET_REGS, &out->regs) ? -1 : 0;
}

static int clean_fpu(const struct machine *m)
{
    struct kvm_xsave x;
    const u32 fcw = 0x37f, mxcsr = 0x1f80; /* Source: Intel SDM 1, 13.5: the state after reset */
    memset(&x, 0, sizeof x);
    x.region[0] = fcw;
    x.region[6] = mxcsr;
    x.region[128] = 3; /* XSTATE_BV: x87 and SSE are given; every other component becomes initial */
    return ioctl(m->vcpu, KVM_SET_XSAVE, &x);
}

/* Returns 0 with every register set: the general ones from `state`, everything else from code. */
int machine_load(struct machine *m, const struct machine_state *state)
{
    struct kvm_regs regs = state->regs;
    regs.rflags = 2 | IOPL;
    if (regs.rip < GA_SHIM || regs.rip >= GA_SHIM_TEXT_END) { /* a template rests in the shim's request */
        errno = EINVAL;
        return -1;
    }
    m->clean = false;
    if (set_sregs(m, 0) || clean_fpu(m))
        return -1;
    return ioctl(m->vcpu, KVM_SET_REGS, &regs);
}

/* Returns 0 with what KVM holds of the machine given back; its memory and its ring stay. For a guest in a HOST_REST: all
 * that its processor knew is in memory, but for the general registers, which are kept. */
int machine_park(struct machine *m)
{
    if (m->vm < 0 || machine_save(m, &m->parked))
        return -1;
    munmap(m->run, m->run_bytes);
    close(m->vcpu);
    close(m->vm);
    m->run = NULL;
    m->vm = m->vcpu = -1;
    return 0;
}

/* Returns null with the machine as it was before machine_park(), or the name of the step that failed, with errno; then
 * it can only be closed. */
const char *machine_unpark(struct machine *m)
{
    if (m->vm >= 0)
        return NULL;
    m->vm = ioctl(m->kvm, KVM_CREATE_VM, 0UL);
    if (m->vm < 0)
        return "KVM_CREATE_VM";
    if (set_slot(m, 0, 0, m->end, m->memory) || (m->ring && set_slot(m, 1, GA_RING, RING_BYTES, m->ring)))
        return "KVM_SET_USER_MEMORY_REGION";
    m->slots = 2; /* all memory is one slot now */
    const char *step = make_vcpu(m, m->kvm);
    if (step)
        return step;
    if (m->has_ring && wire_doorbell(m))
        return "KVM_IOEVENTFD";
    return machine_load(m, &m->parked) ? "setting the registers" : NULL;
}

/* ---- what this host does with `syscall` */

/* Returns the privilege at which `syscall` lands (0 or 3), and what xgetbv and the flags are in ring 3; -1 with errno
 * if the machine cannot even run this. Code and data lie in one user page. */
int machine_probe(int kvm, u64 *xcr0, u64 *flags)
{
    static const u8 code[] = {
        0x31, 0xc9,                                     /* xor %ecx, %ecx */
        0x0f, 0x01, 0xd0,                               /* xgetbv */
        0x89, 0x04, 0x25, 0x00, 0x00, 0x02, 0x00,       /* mov %eax, 0x20000 */
        0xf3, 0x48, 0x0f, 0xae, 0xc0,                   /* rdfsbase %rax */
        0xfd,                                           /* std */
        0x0f, 0x05,                                     /* syscall -> landing */
        /* landing: */
        0x8c, 0xc8,                                     /* mov %cs, %eax */
        0x89, 0x04, 0x25, 0x08, 0x00, 0x02, 0x00,       /* mov %eax, 0x20008 */
        0xa8, 0x03,                                     /* test $3, %al */
        0x75, 0x08,                                     /* jnz +8 */
        0xb9, 0x29, 0x00, 0x01, 0x00,                   /* mov $0x10029, %ecx */
        0x48, 0x0f, 0x07,                               /* sysretq */
        0x9c,                                           /* pushfq (0x10029) */
        0x8f, 0x04, 0x25, 0x10, 0x00, 0x02, 0x00,       /* popq 0x20010 */
        0xe6, PORT_REQUEST,                             /* out %al, $PORT_REQUEST */
    };
    struct machine m;
    struct machine_config config = {.kvm = kvm, .image = -1, .first_bytes = 2 * HUGE, .limit_bytes = 2 * HUGE,
                                    .landing = LANDING_USER, .shim = {.landing_user = GA_SHIM + 20, .start = GA_SHIM}};
    int result = -1;
    if (machine_open(&m, &config))
        return -1;
    machine_write_fixed(m.memory, LANDING_USER, &config.shim);
    /* SAFE: both pages lie in the machine's 4 MiB. */
    memcpy(m.memory + GA_SHIM, code, sizeof code);
    struct kvm_regs regs = {.rip = GA_SHIM, .rsp = GA_SHIM_DATA + PAGE, .rflags = 2 | IOPL};
    if (ioctl(m.vcpu, KVM_SET_REGS, &regs))
        goto out;
    if (machine_run(&m, 1000000000, 1000000000) != RUN_REQUEST) {
        errno = EOPNOTSUPP;
        goto out;
    }
    const u64 *seen = (const u64 *)(m.memory + GA_SHIM_DATA);
    *xcr0 = (u32)seen[0];
    *flags = seen[2];
    result = (int)(seen[1] & 3);
out:
    machine_close(&m);
    return result;
}
