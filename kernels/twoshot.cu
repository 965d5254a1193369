/* SPDX-License-Identifier: MIT */
/*
 * twoshot.cu - two hops: rank p sums chunk p, then sends the sum to every other
 *
 * A word is there when it no longer holds the marker (protocol.cuh, "Marker words").
 * A message that is larger than a slot goes in rounds of equal length, with an epoch each, padded with zeros, so that
 * in every round each place has its word from and for every rank. Slot layout: scatter area [source rank][place],
 * gather area [owner rank] [place], both with a fixed row length; in all rounds of one call a place belongs to one
 * thread.
 *
 * Rounds overlap: a thread sends its words of round k+1 after summing round k and before gathering it. In the scatter
 * area it then writes where a peer's thread has cleared after summing round k-1, which came before the fence in front
 * of that thread's words of round k, and those are here. In the gather area it writes, when summing round k+1, where
 * that thread has cleared in gathering round k-1, before the fence in front of its words of round k+1, which are here.
 */
#include "kernels/protocol.cuh"

/* One round of a call. */
struct twoshot_round {
    uint64_t base; /* first word of the message */
    uint32_t slot; /* offset in staging */
};

template <class Reduction> struct twoshot_call {
    typedef typename Reduction::type type;
    typedef oh_message<type, oh_word16> message_t;

    const oh_kernel_args &args;
    const Reduction reduction;
    const message_t message;
    const uint32_t nranks;
    const int spare; /* a peer (oh_poll) */
    const uint32_t row_bytes;
    const uint32_t chunk; /* places: words to each owner in a round */
    const uint32_t first, step;
    oh_patience patience;

    /* Sends each owner its words: at each place all loads before the first store, which the compiler cannot move them
     * across. */
    OH_DEVICE_METHOD void scatter(const twoshot_round &round) const
    {
        for (uint32_t i = first; i < chunk; i += step) {
            oh_word16 theirs[Reduction::ranks];
            oh_each<1, Reduction::ranks>(nranks, [&](int j) {
                theirs[j] = reduction.prepare(message.load(round.base + oh_peer_rank(args, nranks, j) * chunk + i));
            });
            oh_each<1, Reduction::ranks>(nranks, [&](int j) {
                oh_marked<type>(oh_unmarked<type>(theirs[j]))
                    .store(args.staging[j], round.slot + args.rank * row_bytes + i * OH_WORD_BYTES);
            });
        }
    }

    /* Combines my words and sends the results to all. False: aborted. */
    OH_DEVICE_METHOD bool reduce(const twoshot_round &round)
    {
        for (uint32_t i = first; i < chunk; i += step) {
            const uint64_t place = round.base + args.rank * chunk + i;
            const oh_word16 mine = oh_unmarked<type>(reduction.prepare(message.load(place)));
            const uint32_t at = round.slot + i * OH_WORD_BYTES;
            oh_word16 addend[Reduction::ranks];
            bool here = oh_poll<0, Reduction::ranks>(args, nranks, spare, &patience, [&](int r, int source) {
                oh_word16 word = mine; /* stored to addend in one place: else its index would be dynamic */
                const bool there =
                    source == (int)args.rank || oh_marker_take<type>(args.staging[0], at + source * row_bytes, &word);
                addend[r] = word;
                return there;
            });
            oh_each<0, Reduction::ranks>(nranks, [&](int r) {
                if (r != (int)args.rank) {
                    here = here && oh_marker_decode<type>(args, at + r * row_bytes, &patience, &addend[r]);
                }
            });
            if (!here) {
                return false;
            }
            const oh_word16 sum = oh_unmarked<type>(reduction.combine(addend));
            const uint32_t there = round.slot + OH_MARKER_SCATTER_BYTES + args.rank * row_bytes + i * OH_WORD_BYTES;
            const oh_marked<type> sent(sum);
            oh_each<1, Reduction::ranks>(nranks, [&](int j) { sent.store(args.staging[j], there); });
            message.store(place, sum);
            oh_each<0, Reduction::ranks>(nranks, [&](int r) {
                if (r != (int)args.rank) {
                    oh_marker_empty<type>(args.staging[0], at + r * row_bytes, addend[r]);
                }
            });
        }
        return true;
    }

    /* Takes the other owners' results. False: aborted. */
    OH_DEVICE_METHOD bool gather(const twoshot_round &round)
    {
        for (uint32_t i = first; i < chunk; i += step) {
            const uint32_t at = round.slot + OH_MARKER_SCATTER_BYTES + i * OH_WORD_BYTES;
            oh_word16 sum[Reduction::ranks];
            bool here = oh_poll<1, Reduction::ranks>(args, nranks, 1, &patience, [&](int j, int source) {
                return oh_marker_take<type>(args.staging[0], at + oh_peer_rank(args, nranks, source) * row_bytes,
                                            &sum[j]);
            });
            oh_each<1, Reduction::ranks>(nranks, [&](int j) {
                here = here &&
                       oh_marker_decode<type>(args, at + oh_peer_rank(args, nranks, j) * row_bytes, &patience, &sum[j]);
            });
            if (!here) {
                return false;
            }
            oh_each<1, Reduction::ranks>(nranks, [&](int j) {
                const uint32_t owner = oh_peer_rank(args, nranks, j);
                message.store(round.base + owner * chunk + i, sum[j]);
                oh_marker_empty<type>(args.staging[0], at + owner * row_bytes, sum[j]);
            });
        }
        return true;
    }
};

template <class Reduction, class Args> OH_DEVICE void twoshot(const Args &args)
{
    typedef twoshot_call<Reduction> call_t;
    const uint32_t nranks = Reduction::nranks(args);
    const uint32_t row_words = OH_MARKER_SCATTER_BYTES / OH_WORD_BYTES / nranks;
    const typename call_t::message_t message(args);
    const uint32_t words = message.words();
    const uint32_t rounds = (words + nranks * row_words - 1) / (nranks * row_words);
    const uint32_t chunk = (words + nranks * rounds - 1) / (nranks * rounds);

    oh_grid_wait();
    call_t call = {args,
                   Reduction(args),
                   message,
                   nranks,
                   (int)oh_peer_rank(args, nranks, 1),
                   row_words * OH_WORD_BYTES,
                   chunk,
                   oh_block() * oh_threads() + oh_thread(),
                   oh_blocks() * oh_threads(),
                   {0}};
    oh_each<0, Reduction::ranks>(nranks, [&](int r) { /* under way before the epoch has come */
                                                      message.prefetch(r * chunk + call.first);
    });
    uint32_t epoch = oh_epoch_last(args) + 1;
    twoshot_round round = {0, oh_marker_slot(epoch)};
    call.scatter(round);
    while (call.reduce(round)) {
        const uint64_t next_base = round.base + nranks * chunk;
        if (next_base >= words) {
            if (call.gather(round)) {
                oh_epoch_finish(args, epoch);
            }
            return;
        }
        epoch++;
        const twoshot_round next = {next_base, oh_marker_slot(epoch)};
        oh_fence_system(); /* what this thread has cleared comes before its words of the next round */
        call.scatter(next);
        if (!call.gather(round)) {
            return;
        }
        round = next;
    }
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, twoshot)
OH_EACH_TYPE(OH_ANY_KERNELS, twoshot)
