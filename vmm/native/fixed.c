/* See machine.h: the pages that only the host writes. Source: Intel SDM 3A, 3.4 (descriptors), 4.5 (paging), 6.14 (gates). */
#define _GNU_SOURCE
#include "machine_internal.h"

#include <string.h>

/* Entries carry "accessed" and "dirty" from the start, so that no processor writes to the tables and unshares them. */
enum { PRESENT = 1, WRITE = 2, USER = 4, ACCESSED = 0x20, DIRTY = 0x40, LARGE = 0x80 };
#define NO_EXECUTE (1UL << 63)
#define TABLE (PRESENT | WRITE | USER | ACCESSED)
#define KERNEL_PAGE (PRESENT | WRITE | ACCESSED | DIRTY)
#define USER_CODE (PRESENT | USER | ACCESSED | DIRTY)
#define USER_DATA (PRESENT | WRITE | USER | ACCESSED | DIRTY)

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
