/* See machine.h: what this host does with `syscall`. */
#define _GNU_SOURCE
#include "machine_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

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
