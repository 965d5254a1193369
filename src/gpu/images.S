/* SPDX-License-Identifier: MIT */
/*
 * images.S - the compiled kernels, as data at oh_image_<name>
 *
 * The assembler runs in the top of the build tree, where kernels/<name>.fatbin lie. An image is empty when the build
 * has no kernels (--disable-kernels).
 */
    .macro oh_image name
    .balign 64
    .globl oh_image_\name
    .hidden oh_image_\name
oh_image_\name:
    .incbin "kernels/\name\().fatbin"
    .byte 0
    .endm

    .section .rodata.oh_images, "a", %progbits
    oh_image oneshot
    oh_image twoshot
    oh_image allgather
    oh_image reducescatter
    oh_image broadcast
    oh_image verify

#include "util/notes.S"
