/* SPDX-License-Identifier: MIT */
/*
 * shipped.S - the tables that onehop brings along, as text at oh_shipped_tables
 */
    .section .rodata.oh_shipped, "a", %progbits
    .globl oh_shipped_tables
    .hidden oh_shipped_tables
oh_shipped_tables:
    .incbin "src/plan/shipped.tuning"
    .byte 0

#include "util/notes.S"
