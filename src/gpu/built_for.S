/* SPDX-License-Identifier: MIT */
/*
 * built_for.S - the targets of nvcc, as text at oh_architectures
 */
    .section .rodata.oh_architectures, "a", %progbits
    .globl oh_architectures
    .hidden oh_architectures
oh_architectures:
    .incbin "kernels/architectures"
    .byte 0

#include "util/notes.S"
