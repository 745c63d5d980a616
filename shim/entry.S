# How a guest gets into the shim and out of it. All of it runs in ring 3.
#
# `syscall` loads rcx with the return address and r11 with the flags, and does not touch rsp; so the first thing is to
# find a place for rsp. There is one processor, and the host never re-enters the shim while it runs, so that fixed
# addresses serve. The way out is one path for system calls, new threads and preempted threads: `iretq` from the frame
# inside the thread's context, which restores every register and writes nothing to the thread's stack.
#include "wire.h"

.section .header, "a"
    .quad 0x6d69687365746773        # struct wire_shim
    .quad WIRE_ABI
    .quad landing_user
    .quad landing_kernel
    .quad saved_rcx
    .quad start
    .quad preempt

.text
landing_kernel:                     # from the supervisor stub, by sysretq: rcx was spilled
    mov     saved_rcx, %rcx
landing_user:
    mov     %rsp, saved_rsp
    mov     current, %rsp
    mov     %rax, R_RAX(%rsp)
    mov     %rbx, R_RBX(%rsp)
    mov     %rcx, R_RCX(%rsp)
    mov     %rcx, R_RIP(%rsp)
    mov     %rdx, R_RDX(%rsp)
    mov     %rsi, R_RSI(%rsp)
    mov     %rdi, R_RDI(%rsp)
    mov     %rbp, R_RBP(%rsp)
    mov     %r8, R_R8(%rsp)
    mov     %r9, R_R9(%rsp)
    mov     %r10, R_R10(%rsp)
    mov     %r11, R_R11(%rsp)
    mov     %r11, R_RFLAGS(%rsp)
    mov     %r12, R_R12(%rsp)
    mov     %r13, R_R13(%rsp)
    mov     %r14, R_R14(%rsp)
    mov     %r15, R_R15(%rsp)
    mov     saved_rsp, %rax
    mov     %rax, R_RSP(%rsp)
    mov     $stack_top, %esp
    push    $0x2                    # clear direction, trap, nested-task and alignment flags, whatever the caller had
    popfq
    call    shim_syscall
resume:
    mov     current, %rsp
    mov     R_RAX(%rsp), %rax
    mov     R_RBX(%rsp), %rbx
    mov     R_RCX(%rsp), %rcx
    mov     R_RDX(%rsp), %rdx
    mov     R_RSI(%rsp), %rsi
    mov     R_RDI(%rsp), %rdi
    mov     R_RBP(%rsp), %rbp
    mov     R_R8(%rsp), %r8
    mov     R_R9(%rsp), %r9
    mov     R_R10(%rsp), %r10
    mov     R_R11(%rsp), %r11
    mov     R_R12(%rsp), %r12
    mov     R_R13(%rsp), %r13
    mov     R_R14(%rsp), %r14
    mov     R_R15(%rsp), %r15
    lea     R_RIP(%rsp), %rsp
    iretq

preempt:                            # the host has stored the thread's registers in GA_CONTROL
    mov     $stack_top, %esp
    cld
    call    shim_preempt
    jmp     resume

    .globl start
start:
    mov     $stack_top, %esp
    call    shim_start
    jmp     resume

.data
saved_rcx:
    .quad 0
saved_rsp:
    .quad 0

.bss
.balign 64
    .skip 8192
stack_top:
.section .note.GNU-stack, "", @progbits
