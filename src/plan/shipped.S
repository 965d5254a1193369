/* SPDX-License-Identifier: MIT */
/*
 * shipped.S - the tables that onehop brings along, as text at oh_shipped_tables; oh_shipped_size bytes
 */
    .section .rodata.oh_shipped, "a", %progbits
    .globl oh_shipped_tables
    .hidden oh_shipped_tables
    .globl oh_shipped_size
    .hidden oh_shipped_size
oh_shipped_tables:
    .incbin "src/plan/shipped.tuning"
shipped_end:
    .byte 0
    .balign 8
oh_shipped_size:
    .quad shipped_end - oh_shipped_tables

    .section .note.GNU-stack, "", %progbits
