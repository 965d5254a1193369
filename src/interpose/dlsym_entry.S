/* SPDX-License-Identifier: MIT */
/*
 * dlsym_entry.S - dlsym and dlvsym as the application sees them
 *
 * Both let onehop look at newly loaded objects (oh_dlsym_before, dlsym.c) and then jump to the next definition with
 * the stack and the arguments as they came. The jump is why this is assembly: libc tells RTLD_NEXT and RTLD_DEFAULT
 * apart by the return address, which must be the caller's.
 */
#if defined(__x86_64__)

#if defined(__CET__)
#include <cet.h>
#else
#define _CET_ENDBR
#endif

    .macro entry name, next
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    _CET_ENDBR
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    movq %rsi, %rdi
    call oh_dlsym_before
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    movq \next(%rip), %rax
    jmp *%rax
    .cfi_endproc
    .size \name, . - \name
    .endm

#elif defined(__aarch64__)

    .macro entry name, next
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    hint #34 /* bti c */
    stp x29, x30, [sp, #-48]!
    .cfi_adjust_cfa_offset 48
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    mov x0, x1
    bl oh_dlsym_before
    ldr x2, [sp, #32]
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #48
    .cfi_restore x29
    .cfi_restore x30
    .cfi_adjust_cfa_offset -48
    adrp x16, \next
    ldr x16, [x16, #:lo12:\next]
    br x16
    .cfi_endproc
    .size \name, . - \name
    .endm

#else
#error "onehop runs on x86-64 and on 64-bit Arm"
#endif

    .text
    .hidden oh_dlsym_before
    .hidden oh_next_dlsym
    .hidden oh_next_dlvsym
    .balign 16
    entry oh_dlsym_entry, oh_next_dlsym
    .balign 16
    entry oh_dlvsym_entry, oh_next_dlvsym

/*
 * Exported under the versions of libc's. A preloaded object with a dlsym of its own, in front of onehop, can find the next
 * one by dlvsym alone, and a version passes definitions without version by.
 */
    .macro export name
    .globl oh_\name\()_old
    .set oh_\name\()_old, oh_\name\()_entry
    .symver oh_\name\()_entry, \name@@GLIBC_2.34
#if defined(__x86_64__)
    .symver oh_\name\()_old, \name@GLIBC_2.2.5
#else
    .symver oh_\name\()_old, \name@GLIBC_2.17
#endif
    .endm
    export dlsym
    export dlvsym
#include "util/notes.S"
