/* SPDX-License-Identifier: MIT */
/*
 * image.S - the kernels of kernels/floor.cu, as data at oh_image_floor
 *
 * Apart from src/gpu/images.S: the plugin does not carry them. Empty when the build has no kernels (--disable-kernels).
 */
    .section .rodata.oh_images, "a", %progbits
    .balign 64
    .globl oh_image_floor
    .hidden oh_image_floor
oh_image_floor:
    .incbin "kernels/floor.fatbin"
    .byte 0

#include "util/notes.S"
