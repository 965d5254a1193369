/* SPDX-License-Identifier: MIT */
/*
 * twoshot_ll.cu - two hops in LL words: rank p sums chunk p, then sends the sum to every other
 *
 * For messages where the (n-1) S bytes of one shot cost more than a second hop: 2 (n-1)/n S bytes of payload a rank.
 * The message is padded with zeros to n chunks of equal length, so every place has its word in both hops.
 * Slot layout: scatter area [source rank][word of my chunk], then gather area [owner rank][word of its chunk].
 */
#include "kernels/protocol.cuh"

template <class Reduction, class Args> OH_DEVICE void twoshot_ll(const Args &args)
{
    const uint32_t nranks = Reduction::nranks(args);

    oh_grid_wait();
    const Reduction reduction(args);
    const oh_message<typename Reduction::type, oh_word8> message(args);
    const uint32_t words = message.words();
    const uint32_t chunk = (words + nranks - 1) / nranks;
    const uint32_t chunk_bytes = chunk * OH_WORD_BYTES;
    const uint32_t epoch = oh_epoch_after(oh_epoch_last(args));
    const uint32_t flag = epoch | OH_FLAG_BIT;
    const uint32_t scatter = OH_LL_OFFSET + (epoch & 1) * OH_LL_SLOT_BYTES;
    const uint32_t gather = scatter + nranks * chunk_bytes;
    const uint32_t first = oh_block() * oh_threads() + oh_thread();
    const uint32_t step = oh_blocks() * oh_threads();
    const int spare = (int)oh_peer_rank(args, nranks, 1);
    oh_patience patience = {0};

    oh_sweep(args, epoch, oh_active_blocks(chunk), 0);

    /* Send each owner its chunk. */
    for (uint32_t i = first; i < chunk; i += step) {
        /* All loads before the first store, which the compiler cannot move them across. */
        oh_word8 theirs[Reduction::ranks];
        oh_each<1, Reduction::ranks>(nranks, [&](int j) {
            theirs[j] = reduction.prepare(message.load(oh_peer_rank(args, nranks, j) * chunk + i));
        });
        oh_each<1, Reduction::ranks>(nranks, [&](int j) {
            oh_ll_store(args.staging[j] + scatter + args.rank * chunk_bytes + i * OH_WORD_BYTES, theirs[j], flag);
        });
    }

    /* Sum my chunk and send the sum to all. */
    for (uint32_t i = first; i < chunk; i += step) {
        const oh_word8 mine = reduction.prepare(message.load(args.rank * chunk + i));
        const char *at = args.staging[0] + scatter + i * OH_WORD_BYTES;
        oh_word8 addend[Reduction::ranks];
        const bool here = oh_poll<0, Reduction::ranks>(args, nranks, spare, &patience, [&](int r, int source) {
            oh_word8 word = mine; /* stored to addend in one place: else its index would be dynamic */
            const bool there = source == (int)args.rank || oh_ll_load(at + source * chunk_bytes, &word, flag);
            addend[r] = word;
            return there;
        });
        if (!here) {
            return;
        }
        const oh_word8 sum = reduction.combine(addend);
        oh_each<1, Reduction::ranks>(nranks, [&](int j) {
            oh_ll_store(args.staging[j] + gather + args.rank * chunk_bytes + i * OH_WORD_BYTES, sum, flag);
        });
        message.store(args.rank * chunk + i, sum);
    }

    /* Take the other owners' sums. */
    for (uint32_t i = first; i < chunk; i += step) {
        const char *at = args.staging[0] + gather + i * OH_WORD_BYTES;
        oh_word8 sum[Reduction::ranks];
        const bool here = oh_poll<1, Reduction::ranks>(args, nranks, 1, &patience, [&](int j, int source) {
            return oh_ll_load(at + oh_peer_rank(args, nranks, source) * chunk_bytes, &sum[j], flag);
        });
        if (!here) {
            return;
        }
        oh_each<1, Reduction::ranks>(nranks,
                                     [&](int j) { message.store(oh_peer_rank(args, nranks, j) * chunk + i, sum[j]); });
    }
    oh_epoch_finish(args, epoch);
}

OH_EACH_INTEGER_TYPE(OH_ANY_KERNELS, twoshot_ll)
