/* SPDX-License-Identifier: MIT */
/*
 * floor.cu - what any allreduce costs at least: an empty kernel, one hop, and the bandwidth of the links; and kernels
 * such as a program has between its allreduces
 *
 * For `onehop perf` only; no allreduce uses them. Kernels of the floor are launched as those of onehop are,
 * programmatic stream serialization included; kernels of the program as most programs launch theirs, without.
 *
 * oh_floor_exchange: one block in which every thread tells one peer its epoch and waits for that peer's; no data, no
 * order but that of the one word. A rank may be one epoch ahead of a peer, never two, so that an epoch is compared as
 * not before. oh_floor_write: all ranks write to all others at once, and no rank reads it.
 */
#include "kernels/floor.h"
#include "kernels/primitives.cuh"

/* Polls of a peer's word before a kernel gives up, about a minute: no GPU is left spinning. */
#define OH_FLOOR_MAX_SPINS (1u << 26)

OH_DEVICE void floor_empty(const oh_kernel_args &)
{
    oh_pdl_wait();
    oh_pdl_trigger();
}

OH_DEVICE bool floor_await(const char *at, uint32_t epoch)
{
    for (uint32_t spins = 0; spins < OH_FLOOR_MAX_SPINS; spins++) {
        oh_word16 word;
        oh_lamport_load(at, &word);
        if ((int32_t)(word.w[0] - epoch) >= 0) {
            return true;
        }
        oh_spin_pause();
    }
    return false;
}

OH_DEVICE void floor_exchange(const oh_kernel_args &args)
{
    oh_pdl_wait();
    oh_pdl_trigger(); /* at once, as kernels with an early trigger do: the next kernel is as small as this one */
    const uint32_t epoch = oh_word_load(args.staging[0]) + 1;
    for (uint32_t j = 1 + oh_thread(); j < args.nranks; j += oh_threads()) {
        oh_lamport_store(args.staging[j] + OH_FLOOR_FLAGS + args.rank * OH_FLOOR_FLAG_BYTES,
                         {{epoch, epoch, epoch, epoch}});
    }
    for (uint32_t j = 1 + oh_thread(); j < args.nranks; j += oh_threads()) {
        const uint32_t source = (args.rank + j) % args.nranks;
        if (!floor_await(args.staging[0] + OH_FLOOR_FLAGS + source * OH_FLOOR_FLAG_BYTES, epoch)) {
            oh_word_store(args.staging[0] + OH_FLOOR_GAVE_UP, 1);
        }
    }
    oh_block_sync();
    if (oh_thread() == 0) {
        oh_word_store(args.staging[0], epoch);
    }
}

OH_DEVICE void floor_write(const oh_kernel_args &args)
{
    oh_pdl_wait();
    const uint64_t words = args.count / OH_WORD_BYTES;
    const uint64_t step = (uint64_t)oh_blocks() * oh_threads();
    for (uint64_t i = (uint64_t)oh_block() * oh_threads() + oh_thread(); i < words; i += step) {
        for (uint32_t j = 1; j < args.nranks; j++) {
            oh_user_store(args.staging[j] + OH_FLOOR_DATA + args.rank * args.count + i * OH_WORD_BYTES,
                          {{(uint32_t)i, args.rank, 0, 0}});
        }
    }
    oh_pdl_trigger();
}

/* Elementwise, vectorised as those of frameworks are: 16 bytes an access, several loads under way. */
OH_DEVICE void program_copy(const oh_kernel_args &args)
{
    const uint64_t underway = 4, words = args.count / OH_WORD_BYTES;
    const uint64_t step = (uint64_t)oh_blocks() * oh_threads();
    const uint32_t key = (uint32_t)args.operand & 0xff;
    const char *const from = static_cast<const char *>(args.sendbuff);
    char *const to = static_cast<char *>(args.recvbuff);
    for (uint64_t i = (uint64_t)oh_block() * oh_threads() + oh_thread(); i < words; i += underway * step) {
        oh_word16 word[underway] = {};
        OH_UNROLL
        for (uint64_t k = 0; k < underway; k++) {
            if (i + k * step < words) {
                oh_user_load(from + (i + k * step) * OH_WORD_BYTES, &word[k], false);
            }
        }
        OH_UNROLL
        for (uint64_t k = 0; k < underway; k++) {
            OH_UNROLL
            for (int w = 0; w < 4; w++) {
                word[k].w[w] ^= key * 0x01010101u;
            }
            if (i + k * step < words) {
                oh_user_store(to + (i + k * step) * OH_WORD_BYTES, word[k]);
            }
        }
    }
    if (oh_block() == 0 && oh_thread() == 0) {
        for (uint64_t i = words * OH_WORD_BYTES; i < args.count; i++) {
            to[i] = (char)(from[i] ^ key);
        }
    }
}

OH_KERNEL(oh_floor_empty, OH_FLOOR_THREADS, oh_kernel_args, floor_empty)
OH_KERNEL(oh_floor_exchange, OH_FLOOR_THREADS, oh_kernel_args, floor_exchange)
OH_KERNEL(oh_floor_write, OH_FLOOR_THREADS, oh_kernel_args, floor_write)
OH_KERNEL(oh_program_copy, OH_FLOOR_THREADS, oh_kernel_args, program_copy)
