/* See machine.h: the place of a ring in a guest, and its doorbell. */
#define _GNU_SOURCE
#include "machine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Returns 0 with memory of nobody where the ring was. The slot stays: to delete one makes KVM forget every page of the
 * machine (Documentation/virt/kvm/api.rst, KVM_X86_QUIRK_SLOT_ZAP_ALL). */
int machine_detach_ring(struct machine *m)
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

/* Returns 0 with the place of a ring made, empty: work that a warm machine has behind it when its guest comes. */
int machine_reserve_ring(struct machine *m)
{
    if (m->ring)
        return 0;
    void *at = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return -1;
    m->ring = at;
    return machine_set_slot(m, 1, GA_RING, RING_BYTES, m->ring);
}

int machine_wire_doorbell(const struct machine *m)
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
    return m->doorbell < 0 || machine_wire_doorbell(m) ? -1 : 0;
}
