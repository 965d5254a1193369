/* SPDX-License-Identifier: MIT */
/*
 * notes.S - what an assembly file says of itself, as compilers do for C: included at its end
 *
 * Its stack is not executable, and it keeps to what CET (-fcf-protection) and BTI (-mbranch-protection) ask. The linker marks
 * the plugin only if each of its objects says so, and the loader turns CET's shadow stack off for a process with an object
 * that is not marked.
 */
    .section .note.GNU-stack, "", %progbits

#if defined(__CET__)
#include <cet.h>
#elif defined(__ARM_FEATURE_BTI_DEFAULT)
    .section .note.gnu.property, "a"
    .balign 8
    .long 4, 16, 5 /* lengths of the name and of the property, NT_GNU_PROPERTY_TYPE_0 */
    .asciz "GNU"
    .long 0xc0000000, 4, 1, 0 /* GNU_PROPERTY_AARCH64_FEATURE_1_AND: BTI */
#endif
