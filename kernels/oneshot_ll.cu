/* SPDX-License-Identifier: MIT */
/*
 * oneshot_ll.cu - one hop: every rank sends its whole message to every other, and sums what it received
 *
 * The fastest for small messages: (n-1) S bytes of payload a rank, twice that on the wire (LL words), no barrier.
 * Slot layout: [source rank][word].
 */
#include "kernels/protocol.cuh"

template <class Type, int ranks> OH_DEVICE void oneshot_ll(const oh_kernel_args &args)
{
    typedef oh_message<Type, oh_word8> message_t;

    oh_grid_wait();
    const message_t message = {args.count};
    const uint32_t words = (uint32_t)message.words();
    const uint32_t first = oh_block() * oh_threads() + oh_thread();
    const uint32_t step = oh_blocks() * oh_threads();
    /* This thread's first word, often its only one: under way before the epoch has come. */
    const oh_word8 head = message.load(args.sendbuff, first);
    const uint32_t epoch = oh_epoch_after(oh_epoch_last(args));
    const uint32_t flag = epoch | OH_FLAG_BIT;
    const uint32_t slot = OH_LL_OFFSET + (epoch & 1) * OH_LL_SLOT_BYTES;
    const uint32_t source_bytes = words * OH_WORD_BYTES;
    oh_patience patience = {0};

    oh_sweep(args, epoch, oh_active_blocks(words), 0);
    for (uint32_t i = first; i < words; i += step) {
        const oh_word8 mine = i == first ? head : message.load(args.sendbuff, i);
        OH_UNROLL
        for (int j = 1; j < ranks; j++) {
            oh_ll_store(args.staging[j] + slot + args.rank * source_bytes + i * OH_WORD_BYTES, mine, flag);
        }
    }
    for (uint32_t i = first; i < words; i += step) {
        const oh_word8 mine = i == first ? head : message.load(args.sendbuff, i);
        const char *at = args.staging[0] + slot + i * OH_WORD_BYTES;
        oh_word8 addend[ranks];
        const bool here = oh_poll<0, ranks>(args, &patience, [&](int r) {
            oh_word8 word = mine; /* stored to addend in one place: else its index would be dynamic */
            const bool there = r == (int)args.rank || oh_ll_load(at + r * source_bytes, &word, flag);
            addend[r] = word;
            return there;
        });
        if (!here) {
            return;
        }
        message.store(args.recvbuff, i, oh_sum<Type, ranks>(addend));
    }
    oh_epoch_finish(args, epoch);
}

OH_INSTANCES(oneshot_ll)
