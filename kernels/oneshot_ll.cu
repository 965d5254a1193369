/* SPDX-License-Identifier: MIT */
/*
 * oneshot_ll.cu - one hop: every rank sends its whole message to every other, and sums what it received
 *
 * The fastest for small messages: (n-1) S bytes of payload a rank, twice that on the wire (LL words), no barrier.
 * Slot layout: [source rank][word].
 */
#include "kernels/protocol.cuh"

template <class Reduction, class Args> OH_DEVICE void oneshot_ll(const Args &all_args)
{
    typedef typename Reduction::type type;
    const oh_kernel_args &args = oh_base(all_args);
    const int nranks = (int)Reduction::nranks(args);

    oh_grid_wait();
    const Reduction reduction(args);
    const typename oh_message_of<Args, type, oh_word8>::message message(all_args);
    const uint32_t words = message.words();
    const uint32_t first = oh_block() * oh_threads() + oh_thread();
    const uint32_t step = oh_blocks() * oh_threads();
    const auto load = [&](uint32_t i) { return reduction.prepare(message.load(i)); };
    /* This thread's first word, often its only one: under way before the epoch has come. */
    const oh_word8 head = load(first);
    const uint32_t epoch = oh_epoch_after(oh_epoch_last(args));
    const uint32_t flag = epoch | OH_FLAG_BIT;
    const uint32_t slot = OH_LL_OFFSET + (epoch & 1) * OH_LL_SLOT_BYTES;
    const uint32_t source_bytes = words * OH_WORD_BYTES;
    const int spare = (int)oh_peer_rank(args, nranks, 1);
    oh_patience patience = {0};

    oh_sweep(args, epoch, oh_active_blocks(words), 0);
    for (uint32_t i = first; i < words; i += step) {
        const oh_word8 mine = i == first ? head : load(i);
        oh_each<1, Reduction::ranks>(nranks, [&](int j) {
            oh_ll_store(args.staging[j] + slot + args.rank * source_bytes + i * OH_WORD_BYTES, mine, flag);
        });
    }
    for (uint32_t i = first; i < words; i += step) {
        const oh_word8 mine = i == first ? head : load(i);
        const char *at = args.staging[0] + slot + i * OH_WORD_BYTES;
        oh_word8 addend[Reduction::ranks];
        const bool here = oh_poll<0, Reduction::ranks>(args, nranks, spare, &patience, [&](int r, int source) {
            oh_word8 word = mine; /* stored to addend in one place: else its index would be dynamic */
            const bool there = source == (int)args.rank || oh_ll_load(at + source * source_bytes, &word, flag);
            addend[r] = word;
            return there;
        });
        if (!here) {
            return;
        }
        message.store(i, reduction.combine(addend));
    }
    oh_epoch_finish(args, epoch);
}

OH_EACH_INTEGER_TYPE(OH_LIST_KERNELS, oneshot_ll)
