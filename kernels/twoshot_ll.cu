/* SPDX-License-Identifier: MIT */
/*
 * twoshot_ll.cu - two hops in LL words: rank p sums chunk p, then sends the sum to every other
 *
 * For messages where the (n-1) S bytes of one shot cost more than a second hop: 2 (n-1)/n S bytes of payload a rank.
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
    const uint32_t chunk_bytes = chunk * OH_LL_WORD_BYTES;
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
            if (oh_peer_rank<ranks>(args, j) * chunk + i < words) {
                oh_ll_store(args.staging[j] + scatter + args.rank * chunk_bytes + i * OH_LL_WORD_BYTES, theirs[j],
                            flag);
            }
        }
    }

    /* Sum my chunk and send the sum to all. */
    for (uint32_t i = first; i < chunk; i += step) {
        const uint32_t word = args.rank * chunk + i;
        if (word >= words) {
            break;
        }
        const oh_word8 mine = message.load(args.sendbuff, word);
        const char *at = args.staging[0] + scatter + i * OH_LL_WORD_BYTES;
        oh_word8 addend[ranks];
        bool ready;
        do {
            ready = true;
            OH_UNROLL
            for (int r = 0; r < ranks; r++) {
                if (r == (int)args.rank) {
                    addend[r] = mine;
                } else {
                    ready &= oh_ll_load(at + r * chunk_bytes, &addend[r], flag);
                }
            }
            if (!ready && patience.lost(args)) {
                return;
            }
        } while (!ready);
        const oh_word8 sum = oh_sum<Type, ranks>(addend);
        OH_UNROLL
        for (int j = 1; j < ranks; j++) {
            oh_ll_store(args.staging[j] + gather + args.rank * chunk_bytes + i * OH_LL_WORD_BYTES, sum, flag);
        }
        message.store(args.recvbuff, word, sum);
    }

    /* Take the other owners' sums. */
    for (uint32_t i = first; i < chunk; i += step) {
        const char *at = args.staging[0] + gather + i * OH_LL_WORD_BYTES;
        oh_word8 sum[ranks];
        bool ready;
        do {
            ready = true;
            OH_UNROLL
            for (int r = 0; r < ranks; r++) {
                if (r != (int)args.rank && r * chunk + i < words) {
                    ready &= oh_ll_load(at + r * chunk_bytes, &sum[r], flag);
                }
            }
            if (!ready && patience.lost(args)) {
                return;
            }
        } while (!ready);
        OH_UNROLL
        for (int r = 0; r < ranks; r++) {
            if (r != (int)args.rank && r * chunk + i < words) {
                message.store(args.recvbuff, r * chunk + i, sum[r]);
            }
        }
    }
    oh_epoch_finish(args, epoch);
}

OH_INSTANCES(twoshot_ll)
