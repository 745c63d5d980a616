/* See machine.h: memory and its slots. Source for every ioctl: Documentation/virt/kvm/api.rst. */
#define _GNU_SOURCE
#include "machine_internal.h"

#include <errno.h>
#include <linux/falloc.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

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

int machine_set_slot(const struct machine *m, u32 slot, u64 address, u64 bytes, const void *host)
{
    struct kvm_userspace_memory_region region = {
        .slot = slot, .guest_phys_addr = address, .memory_size = bytes, .userspace_addr = (u64)host};
    return ioctl(m->vm, KVM_SET_USER_MEMORY_REGION, &region);
}

/* Returns 0; maps the private view of the template over its part of the address space, dropping what was there. */
int machine_map_image(struct machine *m)
{
    int flags = m->building ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE;
    if (!m->template_bytes)
        return 0;
    void *at = mmap(m->memory, m->template_bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, m->image, 0);
    return at == MAP_FAILED ? -1 : 0;
}

int machine_map_memory(struct machine *m)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    m->memory = mmap(NULL, m->limit_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (m->memory == MAP_FAILED) {
        m->memory = NULL;
        return -1;
    }
    madvise(m->memory, m->limit_bytes, MADV_DONTDUMP);
    madvise(m->memory, m->limit_bytes, MADV_NOHUGEPAGE); /* a 4 KiB write must not cost 2 MiB */
    return machine_map_image(m);
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
    if (machine_set_slot(m, m->slots, m->end, wanted, m->memory + m->end))
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
