/* SPDX-License-Identifier: MIT */
/*
 * floor.h - what host and device must agree on for the kernels of kernels/floor.cu
 *
 * They take struct oh_kernel_args. For the floor, count is the bytes to each peer, a multiple of OH_WORD_BYTES. staging
 * is memory of one rank, written by its peers: the owner's epoch word, a word that says that it has given up, a flag
 * word for each source rank, and behind OH_FLOOR_DATA an area for each source rank.
 *
 * oh_program_copy: copies count bytes from sendbuff to recvbuff, each byte xored with the lowest byte of operand.
 */
#ifndef OH_KERNELS_FLOOR_H_
#define OH_KERNELS_FLOOR_H_

#include "kernels/abi.h"

/* The largest grid. */
#define OH_FLOOR_BLOCKS 128u
#define OH_FLOOR_THREADS 512u

#define OH_FLOOR_GAVE_UP 64u
#define OH_FLOOR_FLAGS 128u
#define OH_FLOOR_FLAG_BYTES 128u
#define OH_FLOOR_DATA 4096u

#endif
