/* What the parts of a machine (machine.c, memory.c, pages.c, attach.c, run.c) use of each other. Nobody else includes it. */
#ifndef SEAMGATE_MACHINE_INTERNAL_H
#define SEAMGATE_MACHINE_INTERNAL_H
#include "machine.h"

#define PAGE 4096UL
#define HUGE (2UL << 20)
#define IOPL 0x3000UL /* SVM checks IOPL, PVM only the TSS bitmap: both are set */

int machine_set_slot(const struct machine *m, u32 slot, u64 address, u64 bytes, const void *host);
int machine_map_image(struct machine *m);
int machine_map_memory(struct machine *m);
void machine_fold(struct machine *m, struct machine_folded *out);
void machine_unfold(struct machine *m, struct machine_folded *folded);
int machine_settle(struct machine *m);
int machine_set_xcr0(const struct machine *m);
int machine_set_msrs(const struct machine *m);
int machine_detach_ring(struct machine *m);
int machine_wire_doorbell(const struct machine *m);
#endif
