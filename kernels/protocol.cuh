/* SPDX-License-Identifier: MIT */
/*
 * protocol.cuh - what the algorithms share: a message seen as words, epochs, waiting, and the sweep
 */
#ifndef OH_KERNELS_PROTOCOL_CUH_
#define OH_KERNELS_PROTOCOL_CUH_

#include "kernels/reduce.cuh"

/*
 * A local buffer as a row of words. The pointer may have any alignment of its element, and the last word may be
 * partly outside the message; both are this rank's own affair and leave no trace in what the peers see.
 */
template <class Type, class Word> struct oh_message {
    typedef typename Type::element element;
    static const uint32_t per_word = sizeof(Word) / sizeof(element);
    static const uint32_t per_32 = sizeof(uint32_t) / sizeof(element);

    uint64_t count;

    /* Where element k stands within its 32-bit part. Shifts keep a word in registers; copying through an array of
     * elements put it into local memory (nvcc 13.0). */
    static OH_INLINE uint32_t shift(uint32_t k)
    {
        return k % per_32 * 8 * sizeof(element);
    }

    OH_DEVICE_METHOD uint64_t words() const
    {
        return (count + per_word - 1) / per_word;
    }

    OH_DEVICE_METHOD bool whole(const void *base, uint64_t i) const
    {
        return reinterpret_cast<uintptr_t>(base) % sizeof(Word) == 0 && (i + 1) * per_word <= count;
    }

    OH_DEVICE_METHOD Word load(const void *base, uint64_t i) const
    {
        Word word;
        if (__builtin_expect(whole(base, i), 1)) {
            oh_user_load(static_cast<const char *>(base) + i * sizeof(Word), &word);
            return word;
        }
        word = Word();
        OH_UNROLL
        for (uint32_t k = 0; k < per_word; k++) {
            uint64_t at = i * per_word + k;
            if (at < count) {
                word.w[k / per_32] |= (uint32_t) static_cast<const element *>(base)[at] << shift(k);
            }
        }
        return word;
    }

    /* Brings word i near, if there is one. */
    OH_DEVICE_METHOD void prefetch(const void *base, uint64_t i) const
    {
        if (i < words()) {
            oh_user_prefetch(static_cast<const char *>(base) + i * sizeof(Word));
        }
    }

    OH_DEVICE_METHOD void store(void *base, uint64_t i, const Word &word) const
    {
        if (__builtin_expect(whole(base, i), 1)) {
            oh_user_store(static_cast<char *>(base) + i * sizeof(Word), word);
            return;
        }
        OH_UNROLL
        for (uint32_t k = 0; k < per_word; k++) {
            uint64_t at = i * per_word + k;
            if (at < count) {
                static_cast<element *>(base)[at] = (element)(word.w[k / per_32] >> shift(k));
            }
        }
    }
};

/*
 * Marker words. An empty word holds OH_MARKER in each 32-bit part, a full one in none; the reader puts the marker back
 * once it has taken the word. So no bytes go to flags, and what was not written for long cannot look new. The marker is
 * a NaN (two NaNs for 16-bit types): a part of a message that holds it is sent as another NaN instead. Sums of NaNs are
 * the GPU's one canonical NaN whatever their bits were, so no result changes. Zeros keep their sign.
 */
OH_DEVICE uint32_t oh_marker_slot(uint32_t epoch)
{
    return OH_MARKER_OFFSET + (epoch & 1) * 2 * OH_MARKER_SCATTER_BYTES;
}

OH_DEVICE oh_word16 oh_unmarked(oh_word16 word)
{
    OH_UNROLL
    for (int k = 0; k < 4; k++) {
        word.w[k] += word.w[k] == OH_MARKER;
    }
    return word;
}

/* Rank of the peer whose staging stands at args.staging[j]. */
template <int ranks> OH_DEVICE uint32_t oh_peer_rank(const oh_kernel_args &args, int j)
{
    uint32_t rank = args.rank + j;
    return rank >= ranks ? rank - ranks : rank;
}

/* Looks at the abort word once in a while: reading host memory costs about a microsecond. */
struct oh_patience {
    uint32_t looks;

    OH_DEVICE_METHOD bool lost(const oh_kernel_args &args)
    {
        oh_spin_pause();
        return (++looks & 0x3ff) == 0 && oh_word_load(args.abort_word) != 0;
    }
};

/*
 * Looks at the words `from` to `to`-1 together until all have come: look(k) takes word k and tells whether it is there.
 * False: aborted.
 */
template <int from, int to, class Look>
OH_DEVICE bool oh_poll(const oh_kernel_args &args, oh_patience *patience, Look look)
{
    for (;;) {
        bool ready = true;
        OH_UNROLL
        for (int k = from; k < to; k++) {
            ready &= look(k);
        }
        if (ready) {
            return true;
        }
        if (patience->lost(args)) {
            return false;
        }
    }
}

/* Epoch of the last round that this communicator finished on this rank. Every block has its own copy of the word. */
OH_DEVICE uint32_t oh_epoch_last(const oh_kernel_args &args)
{
    return oh_word_load(args.staging[0] + OH_EPOCH_OFFSET + oh_block() * sizeof(uint32_t));
}

OH_DEVICE uint32_t oh_epoch_after(uint32_t epoch)
{
    return (epoch + 1) & OH_EPOCH_MASK;
}

/*
 * Ends the kernel: writes the epoch into the words b, b + blocks, b + 2 blocks, ... So after any kernel all
 * OH_MAX_BLOCKS words are equal whatever its grid was, without a word being written by two blocks or read by one and
 * written by another in the same kernel.
 */
OH_DEVICE void oh_epoch_finish(const oh_kernel_args &args, uint32_t epoch)
{
    oh_block_sync();   /* every thread has read this block's word, and has all that it needs from the peers */
    oh_grid_release(); /* after the barrier, since the first thread to call it speaks for its block */
    for (uint32_t b = oh_block() + oh_thread() * oh_blocks(); b < OH_MAX_BLOCKS; b += oh_threads() * oh_blocks()) {
        oh_word_store(args.staging[0] + OH_EPOCH_OFFSET + b * sizeof(uint32_t), epoch);
    }
}

OH_DEVICE char *oh_flag_at(char *staging, int phase, uint32_t block, uint32_t rank)
{
    return staging + OH_FLAG_OFFSET + ((phase * OH_MAX_BLOCKS + block) * OH_MAX_RANKS + rank) * sizeof(uint32_t);
}

/*
 * Flags are 31-bit epochs, so a flag left standing for exactly 2^31 rounds would look new. Twice in that span every
 * rank clears what it could still hold: the LL slot that this round does not use, and the push flags of blocks that
 * this round does not use (`flag_blocks` and up). Two rounds running, so that both slots get their turn.
 *
 * Why nothing new is cleared: a peer writes there only in its next round, for which it needs data of this round from
 * each of the `active` blocks here, and a block sends only after its own part of the sweep (the barrier below).
 * Blocks that send nothing in this round must not sweep. The argument is spelt out in doc/design.md, "Epochs".
 */
OH_DEVICE void oh_sweep(const oh_kernel_args &args, uint32_t epoch, uint32_t active, uint32_t flag_blocks)
{
    if ((epoch & (OH_SWEEP_PERIOD - 1)) > 1 || oh_block() >= active) {
        return;
    }
    char *slot = args.staging[0] + OH_LL_OFFSET + ((epoch + 1) & 1) * OH_LL_SLOT_BYTES;
    uint32_t first = oh_block() * oh_threads() + oh_thread();
    uint32_t step = active * oh_threads();
    for (uint32_t i = first; i < OH_LL_SLOT_BYTES / OH_WORD_BYTES; i += step) {
        oh_ll_store(slot + i * OH_WORD_BYTES, oh_word8(), 0);
    }
    uint32_t per_phase = (OH_MAX_BLOCKS - flag_blocks) * OH_MAX_RANKS;
    for (uint32_t i = first; i < OH_FLAG_PHASES * per_phase; i += step) {
        oh_word_store(oh_flag_at(args.staging[0], i / per_phase, flag_blocks, 0) + (i % per_phase) * sizeof(uint32_t),
                      0);
    }
    oh_fence_system();
    oh_block_sync();
}

/* Of a loop over `words` words spread over the grid: the number of blocks that get at least one. */
OH_DEVICE uint32_t oh_active_blocks(uint32_t words)
{
    uint32_t blocks = (words + oh_threads() - 1) / oh_threads();
    return blocks < oh_blocks() ? blocks : oh_blocks();
}

/* The instances of one algorithm for one type, n = 2..8. */
#define OH_INSTANCES_OF_TYPE(algorithm_, type_)                                                                        \
    OH_KERNEL(oh_##algorithm_##_sum_##type_##_n2, algorithm_<oh_##type_, 2>)                                           \
    OH_KERNEL(oh_##algorithm_##_sum_##type_##_n3, algorithm_<oh_##type_, 3>)                                           \
    OH_KERNEL(oh_##algorithm_##_sum_##type_##_n4, algorithm_<oh_##type_, 4>)                                           \
    OH_KERNEL(oh_##algorithm_##_sum_##type_##_n5, algorithm_<oh_##type_, 5>)                                           \
    OH_KERNEL(oh_##algorithm_##_sum_##type_##_n6, algorithm_<oh_##type_, 6>)                                           \
    OH_KERNEL(oh_##algorithm_##_sum_##type_##_n7, algorithm_<oh_##type_, 7>)                                           \
    OH_KERNEL(oh_##algorithm_##_sum_##type_##_n8, algorithm_<oh_##type_, 8>)

#define OH_INSTANCES(algorithm_)                                                                                       \
    OH_INSTANCES_OF_TYPE(algorithm_, f32)                                                                              \
    OH_INSTANCES_OF_TYPE(algorithm_, f16)                                                                              \
    OH_INSTANCES_OF_TYPE(algorithm_, bf16)

#endif
