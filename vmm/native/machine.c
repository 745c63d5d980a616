/* See machine.h: the processor, and the life of a machine. Source for every ioctl: Documentation/virt/kvm/api.rst. */
#define _GNU_SOURCE
#include "machine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define CR0_VALUE 0x80050033UL /* paging, write protect, native FPU errors, alignment mask, protected mode */
#define CR4_VALUE ((1UL << 5) | (1UL << 9) | (1UL << 10) | (1UL << 16) | (1UL << 18)) /* PAE FXSR XMM FSGSBASE XSAVE */
#define EFER_VALUE 0xd01UL     /* SYSCALL, long mode enabled and active, no-execute */
#define XCR0_VALUE 7UL         /* x87, SSE, AVX */
#define MSR_STAR 0xc0000081U
#define MSR_LSTAR 0xc0000082U
#define MSR_SFMASK 0xc0000084U
#define SFMASK_VALUE 0x44500UL /* trap, direction, nested task, alignment check */

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

int machine_set_msrs(const struct machine *m)
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

int machine_set_xcr0(const struct machine *m)
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
    if (machine_set_xcr0(m))
        return "KVM_SET_XCRS";
    if (machine_set_msrs(m))
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
    if (machine_map_memory(m)) {
        step = "mmap of guest memory";
        goto out;
    }
    m->vm = ioctl(c->kvm, KVM_CREATE_VM, 0UL);
    if (m->vm < 0) {
        step = "KVM_CREATE_VM";
        goto out;
    }
    if (machine_set_slot(m, 0, 0, c->first_bytes, m->memory)) {
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
    free(m->seen);
    if (m->parked)
        free(m->parked->folded.words);
    free(m->parked);
    m->hot = m->seen = NULL;
    m->parked = NULL;
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
int machine_settle(struct machine *m)
{
    m->run->immediate_exit = 1;
    int result = ioctl(m->vcpu, KVM_RUN, 0UL);
    m->run->immediate_exit = 0;
    return result < 0 && errno == EINTR ? 0 : -1;
}

/* Returns 0 with the first instruction set to the shim's start. */
int machine_start(struct machine *m)
{
    struct kvm_regs regs = {.rip = m->shim.start, .rflags = 2 | IOPL};
    return ioctl(m->vcpu, KVM_SET_REGS, &regs);
}

/* Returns 0 with the registers as they are after the request under way is complete. */
int machine_save(struct machine *m, struct machine_state *out)
{
    memset(out, 0, sizeof *out);
    return machine_settle(m) || ioctl(m->vcpu, KVM_GET_REGS, &out->regs) ? -1 : 0;
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

static void give_back(struct machine *m)
{
    if (m->run)
        munmap(m->run, m->run_bytes);
    if (m->vcpu >= 0)
        close(m->vcpu);
    if (m->vm >= 0)
        close(m->vm);
    m->run = NULL;
    m->vm = m->vcpu = -1;
}

/* Returns 0 with what KVM holds of the machine given back; its memory and its ring stay, its registers are kept. */
int machine_park(struct machine *m)
{
    struct kvm_sregs s;
    struct machine_parked *kept = m->vm >= 0 ? calloc(1, sizeof *kept) : NULL;
    if (!kept)
        return -1;
    if (machine_save(m, &kept->state) || ioctl(m->vcpu, KVM_GET_SREGS, &s) || ioctl(m->vcpu, KVM_GET_XSAVE, &kept->fpu)) {
        free(kept);
        return -1;
    }
    kept->fs_base = s.fs.base;
    m->parked = kept;
    give_back(m);
    machine_fold(m, &kept->folded);
    return 0;
}

static const char *remake(struct machine *m)
{
    machine_unfold(m, &m->parked->folded);
    m->vm = ioctl(m->kvm, KVM_CREATE_VM, 0UL);
    if (m->vm < 0)
        return "KVM_CREATE_VM";
    if (machine_set_slot(m, 0, 0, m->end, m->memory) || (m->ring && machine_set_slot(m, 1, GA_RING, RING_BYTES, m->ring)))
        return "KVM_SET_USER_MEMORY_REGION";
    m->slots = 2; /* all memory is one slot now */
    const char *step = make_vcpu(m, m->kvm);
    if (step)
        return step;
    if (m->has_ring && machine_wire_doorbell(m))
        return "KVM_IOEVENTFD";
    if (machine_load(m, &m->parked->state) || set_sregs(m, m->parked->fs_base) ||
        ioctl(m->vcpu, KVM_SET_XSAVE, &m->parked->fpu))
        return "setting the registers";
    return NULL;
}

/* Returns null with the machine as it was before machine_park(), or the name of the step that failed, with errno; then
 * it is parked as before. */
const char *machine_unpark(struct machine *m)
{
    if (m->vm >= 0)
        return NULL;
    const char *step = remake(m);
    if (step) {
        int saved = errno;
        give_back(m);
        errno = saved;
        return step;
    }
    free(m->parked);
    m->parked = NULL;
    return NULL;
}
