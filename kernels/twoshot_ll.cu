/* SPDX-License-Identifier: MIT */
/*
 * twoshot_ll.cu - two hops in LL words: rank p sums chunk p, then sends the sum to every other
 *
 * For messages where the (n-1) S bytes of one shot cost more than a second hop: 2 (n-1)/n S bytes of payload a rank.
 * The message is padded with zeros to n chunks of equal length, so every place has its word in both hops.
 * Slot layout: scatter area [source rank][word of my chunk], then gather area [owner rank][word of its chunk].
 */
#include "kernels/protocol.cuh"

template <class Type, int ranks> OH_DEVICE void twoshot_ll(const oh_kernel_args &args)
{
    typedef oh_message<Type, oh_word8> message_t;

    oh_grid_wait();
    const message_t message = {args.count};
    const uint32_t words = (uint32_t)message.words();
    const uint32_t chunk = (words + ranks - 1) / ranks;
    const uint32_t chunk_bytes = chunk * OH_WORD_BYTES;
    const uint32_t epoch = oh_epoch_after(oh_epoch_last(args));
    const uint32_t flag = epoch | OH_FLAG_BIT;
    const uint32_t scatter = OH_LL_OFFSET + (epoch & 1) * OH_LL_SLOT_BYTES;
    const uint32_t gather = scatter + ranks * chunk_bytes;
    const uint32_t first = oh_block() * oh_threads() + oh_thread();
    const uint32_t step = oh_blocks() * oh_threads();
    oh_patience patience = {0};

    oh_sweep(args, epoch, oh_active_blocks(chunk), 0);

    /* Send each owner its chunk. */
    for (uint32_t i = first; i < chunk; i += step) {
        oh_word8 theirs[ranks]; /* all loads before the first store, which the compiler cannot move them across */
        OH_UNROLL
        for (int j = 1; j < ranks; j++) {
            theirs[j] = message.load(args.sendbuff, oh_peer_rank<ranks>(args, j) * chunk + i);
        }
        OH_UNROLL
        for (int j = 1; j < ranks; j++) {
            oh_ll_store(args.staging[j] + scatter + args.rank * chunk_bytes + i * OH_WORD_BYTES, theirs[j], flag);
        }
    }

    /* Sum my chunk and send the sum to all. */
    for (uint32_t i = first; i < chunk; i += step) {
        const oh_word8 mine = message.load(args.sendbuff, args.rank * chunk + i);
        const char *at = args.staging[0] + scatter + i * OH_WORD_BYTES;
        oh_word8 addend[ranks];
        const bool here = oh_poll<0, ranks>(args, &patience, [&](int r) {
            oh_word8 word = mine; /* stored to addend in one place: else its index would be dynamic */
            const bool there = r == (int)args.rank || oh_ll_load(at + r * chunk_bytes, &word, flag);
            addend[r] = word;
            return there;
        });
        if (!here) {
            return;
        }
        const oh_word8 sum = oh_sum<Type, ranks>(addend);
        OH_UNROLL
        for (int j = 1; j < ranks; j++) {
            oh_ll_store(args.staging[j] + gather + args.rank * chunk_bytes + i * OH_WORD_BYTES, sum, flag);
        }
        message.store(args.recvbuff, args.rank * chunk + i, sum);
    }

    /* Take the other owners' sums. */
    for (uint32_t i = first; i < chunk; i += step) {
        const char *at = args.staging[0] + gather + i * OH_WORD_BYTES;
        oh_word8 sum[ranks];
        const bool here = oh_poll<1, ranks>(args, &patience, [&](int j) {
            return oh_ll_load(at + oh_peer_rank<ranks>(args, j) * chunk_bytes, &sum[j], flag);
        });
        if (!here) {
            return;
        }
        OH_UNROLL
        for (int j = 1; j < ranks; j++) {
            message.store(args.recvbuff, oh_peer_rank<ranks>(args, j) * chunk + i, sum[j]);
        }
    }
    oh_epoch_finish(args, epoch);
}

OH_INSTANCES(twoshot_ll)
