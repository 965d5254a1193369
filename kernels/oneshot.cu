/* SPDX-License-Identifier: MIT */
/*
 * oneshot.cu - one hop: every rank sends its words to every other, and combines what it has got
 *
 * A word is there when it no longer holds the marker (protocol.cuh, "Marker words"). Slot layout: [source rank][word],
 * in the scatter area: what two-shot leaves behind in the gather area may still be on its way to being cleared.
 */
#include "kernels/protocol.cuh"

template <class Reduction, class Args> OH_DEVICE void oneshot(const Args &all_args)
{
    typedef typename Reduction::type type;
    const oh_kernel_args &args = oh_base(all_args);
    const int nranks = (int)Reduction::nranks(args);

    oh_grid_wait();
    const Reduction reduction(args);
    const typename oh_message_of<Args, type, oh_word16>::message message(all_args);
    const uint32_t words = message.words();
    const uint32_t first = oh_block() * oh_threads() + oh_thread();
    const uint32_t step = oh_blocks() * oh_threads();
    const auto load = [&](uint32_t i) { return oh_unmarked<type>(reduction.prepare(message.load(i))); };
    /* This thread's first word, often its only one: under way before the epoch has come. */
    const oh_word16 head = load(first);
    const uint32_t epoch = oh_epoch_last(args) + 1;
    const uint32_t slot = oh_marker_slot(epoch);
    const uint32_t source_bytes = words * OH_WORD_BYTES;
    const int spare = (int)oh_peer_rank(args, nranks, 1);
    oh_patience patience = {0};

    for (uint32_t i = first; i < words; i += step) {
        const oh_word16 mine = i == first ? head : load(i);
        const oh_marked<type> sent(mine);
        oh_each<1, Reduction::ranks>(
            nranks, [&](int j) { sent.store(args.staging[j], slot + args.rank * source_bytes + i * OH_WORD_BYTES); });
    }
    for (uint32_t i = first; i < words; i += step) {
        const oh_word16 mine = i == first ? head : load(i);
        const uint32_t at = slot + i * OH_WORD_BYTES;
        oh_word16 addend[Reduction::ranks];
        bool here = oh_poll<0, Reduction::ranks>(args, nranks, spare, &patience, [&](int r, int source) {
            oh_word16 word = mine; /* stored to addend in one place: else its index would be dynamic */
            const bool there =
                source == (int)args.rank || oh_marker_take<type>(args.staging[0], at + source * source_bytes, &word);
            addend[r] = word;
            return there;
        });
        oh_each<0, Reduction::ranks>(nranks, [&](int r) {
            if (r != (int)args.rank) {
                here = here && oh_marker_decode<type>(args, at + r * source_bytes, &patience, &addend[r]);
            }
        });
        if (!here) {
            return;
        }
        message.store(i, reduction.combine(addend));
        oh_each<0, Reduction::ranks>(nranks, [&](int r) {
            if (r != (int)args.rank) {
                oh_marker_empty<type>(args.staging[0], at + r * source_bytes, addend[r]);
            }
        });
    }
    oh_epoch_finish(args, epoch);
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, oneshot)
OH_EACH_TYPE(OH_LIST_KERNELS, oneshot)
