/* SPDX-License-Identifier: MIT */
/*
 * oneshot_marker.cu - one hop without flag bytes: a word is there when it no longer holds the marker
 *
 * As oneshot_ll, but all 16 bytes of a word are payload: half the bytes on the wire. For float types only, whose values
 * leave one bit pattern free (protocol.cuh, "Marker words"). Slot layout: [source rank][word],
 * in the scatter area: what two-shot leaves behind in the gather area may still be on its way to being cleared.
 */
#include "kernels/protocol.cuh"

template <class Type, int ranks> OH_DEVICE void oneshot_marker(const oh_kernel_args &args)
{
    typedef oh_message<Type, oh_word16> message_t;

    oh_grid_wait();
    const message_t message = {args.count};
    const uint32_t words = (uint32_t)message.words();
    const uint32_t first = oh_block() * oh_threads() + oh_thread();
    const uint32_t step = oh_blocks() * oh_threads();
    /* This thread's first word, often its only one: under way before the epoch has come. */
    const oh_word16 head = oh_unmarked(message.load(args.sendbuff, first));
    const uint32_t epoch = oh_epoch_after(oh_epoch_last(args));
    const uint32_t slot = oh_marker_slot(epoch);
    const uint32_t source_bytes = words * OH_WORD_BYTES;
    oh_patience patience = {0};

    oh_sweep(args, epoch, oh_active_blocks(words), 0);
    for (uint32_t i = first; i < words; i += step) {
        const oh_word16 mine = i == first ? head : oh_unmarked(message.load(args.sendbuff, i));
        OH_UNROLL
        for (int j = 1; j < ranks; j++) {
            oh_marker_store(args.staging[j] + slot + args.rank * source_bytes + i * OH_WORD_BYTES, mine);
        }
    }
    for (uint32_t i = first; i < words; i += step) {
        const oh_word16 mine = i == first ? head : oh_unmarked(message.load(args.sendbuff, i));
        char *at = args.staging[0] + slot + i * OH_WORD_BYTES;
        oh_word16 addend[ranks];
        const bool here = oh_poll<0, ranks>(args, &patience, [&](int r) {
            oh_word16 word = mine; /* stored to addend in one place: else its index would be dynamic */
            const bool there = r == (int)args.rank || oh_marker_load(at + r * source_bytes, &word);
            addend[r] = word;
            return there;
        });
        if (!here) {
            return;
        }
        message.store(args.recvbuff, i, oh_sum<Type, ranks>(addend));
        OH_UNROLL
        for (int r = 0; r < ranks; r++) {
            if (r != (int)args.rank) {
                oh_marker_clear(at + r * source_bytes);
            }
        }
    }
    oh_epoch_finish(args, epoch);
}

OH_INSTANCES(oneshot_marker)
