/* SPDX-License-Identifier: MIT */
/*
 * twoshot.cu - two hops: rank p combines chunk p, then sends the result to every other
 *
 * A word is there when it no longer holds the marker (protocol.cuh, "Marker words"). A message that is larger than a slot
 * goes in rounds of equal length, with an epoch each, padded with zeros, so that in every round each place has its word
 * from and for every rank. Slot layout: scatter area [row of a source][place], gather area [row of an owner][place], both
 * with a fixed row length; in all rounds of one call a place belongs to one thread.
 *
 * Rounds overlap: a thread sends its words of round k+1 after combining round k and before gathering it. In the scatter
 * area it then writes where a peer's thread has cleared after combining round k-1, which came before the fence in front
 * of that thread's words of round k, and those are here. In the gather area it writes, when combining round k+1, where
 * that thread has cleared in gathering round k-1, before the fence in front of its words of round k+1, which are here.
 */
#include "kernels/protocol.cuh"

/* One round of a call. */
struct twoshot_round {
    uint32_t base;            /* first word of the message */
    uint32_t scatter, gather; /* offsets in staging */

    OH_DEVICE_METHOD twoshot_round(uint32_t first_word, uint32_t epoch)
        : base(first_word), scatter(OH_TWOSHOT_OFFSET + (epoch & 1) * 2 * OH_TWOSHOT_BYTES),
          gather(scatter + OH_TWOSHOT_BYTES)
    {
    }
};

/* batch: places that a thread looks at together. */
template <int batch, class Reduction, class Message> struct twoshot_call {
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;

    const oh_kernel_args &args;
    const Message &message;
    const int nranks;
    const uint32_t chunk; /* places: words to each owner in a round */
    const uint32_t first, step;
    const oh_inbox<type, ranks, 0> scattered;
    const oh_inbox<type, ranks, 1> gathered;
    const oh_outbox<type, ranks> outbox;
    const Reduction reduction;
    oh_patience patience;

    /* Batch b of the places from i on is there. The first is, where the loops go round. */
    OH_DEVICE_METHOD bool has(uint32_t i, int b) const
    {
        return b == 0 || i + b * step < chunk;
    }
    OH_DEVICE_METHOD uint32_t place(uint32_t i, int b) const
    {
        return (i + b * step) * OH_WORD_BYTES;
    }

    /* What each owner gets from here at the places from i on, in the round whose first word is `base`. */
    OH_DEVICE_METHOD void load(uint32_t base, uint32_t i, oh_word16 (&theirs)[batch][ranks]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (has(i, b)) {
                oh_each<1, ranks>(nranks, [&](int j) {
                    theirs[b][j] = message.load(base + oh_peer_rank(args, nranks, j) * chunk + i + b * step);
                });
            }
        }
    }
    OH_DEVICE_METHOD void send(const twoshot_round &round, uint32_t i, oh_word16 (&theirs)[batch][ranks]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (has(i, b)) {
                oh_each<1, ranks>(nranks, [&](int j) { theirs[b][j] = reduction.prepare(theirs[b][j]); });
                outbox.send_each(round.scatter + place(i, b), theirs[b]);
            }
        }
    }
    /* Sends each owner its words, from `start` on: all loads of a batch before its first store, which the compiler cannot
     * move them across. */
    OH_DEVICE_METHOD void scatter(const twoshot_round &round, uint32_t start) const
    {
        for (uint32_t i = start; i < chunk; i += batch * step) {
            oh_word16 theirs[batch][ranks];
            load(round.base, i, theirs);
            send(round, i, theirs);
        }
    }

    /* Waits for the words at the places from i on of an area. False: aborted. */
    template <class Inbox>
    OH_DEVICE_METHOD bool await(const Inbox &inbox, uint32_t area, uint32_t i, const oh_word16 (&mine)[batch],
                                oh_word16 (&word)[batch][ranks])
    {
        bool good = oh_poll(args, &patience, [&]() {
            bool all = true;
            OH_UNROLL
            for (int b = 0; b < batch; b++) { /* where there is no place b, at the first again */
                inbox.look(area + place(i, has(i, b) ? b : 0), mine[b], word[b]);
            }
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                all &= inbox.has_all(word[b]);
            }
            return all;
        });
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (has(i, b)) {
                good = good && inbox.decode(area + place(i, b), &patience, word[b]);
            }
        }
        return good;
    }

    /* Combines my words and sends the results to all. False: aborted. */
    OH_DEVICE_METHOD bool reduce(const twoshot_round &round)
    {
        for (uint32_t i = first; i < chunk; i += batch * step) {
            const uint32_t here = round.base + args.rank * chunk + i;
            oh_word16 mine[batch], addend[batch][ranks];
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                if (has(i, b)) {
                    mine[b] = oh_unmarked<type>(reduction.prepare(message.load(here + b * step)));
                }
            }
            if (!await(scattered, round.scatter, i, mine, addend)) {
                return false;
            }
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                if (has(i, b)) {
                    const oh_word16 result = oh_unmarked<type>(reduction.combine(addend[b]));
                    outbox.send(round.gather + place(i, b), result);
                    message.store(here + b * step, result);
                    scattered.empty(round.scatter + place(i, b), addend[b]);
                }
            }
        }
        return true;
    }

    /* Takes the other owners' results. False: aborted. */
    OH_DEVICE_METHOD bool gather(const twoshot_round &round)
    {
        for (uint32_t i = first; i < chunk; i += batch * step) {
            oh_word16 none[batch] = {}, result[batch][ranks];
            if (!await(gathered, round.gather, i, none, result)) {
                return false;
            }
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                if (has(i, b)) {
                    oh_each<1, ranks>(nranks, [&](int j) {
                        message.store(round.base + oh_peer_rank(args, nranks, j) * chunk + i + b * step, result[b][j]);
                    });
                    gathered.empty(round.gather + place(i, b), result[b]);
                }
            }
        }
        return true;
    }
};

template <int batch, class Reduction, class Message>
OH_DEVICE void twoshot_rounds(const oh_kernel_args &args, const Message &message)
{
    typedef twoshot_call<batch, Reduction, Message> call_t;
    typedef typename Reduction::type type;
    const uint32_t nranks = Reduction::nranks(args);
    const uint32_t row_words = OH_TWOSHOT_BYTES / OH_WORD_BYTES / (nranks - 1);
    const uint32_t words = message.words();
    const uint32_t rounds = (words + nranks * row_words - 1) / (nranks * row_words);
    const uint32_t chunk = (words + nranks * rounds - 1) / (nranks * rounds);
    const uint32_t row_bytes = row_words * OH_WORD_BYTES;
    const oh_inbox<type, Reduction::ranks, 0> scattered(args, (int)nranks, row_bytes);
    const oh_inbox<type, Reduction::ranks, 1> gathered(args, (int)nranks, row_bytes);
    const oh_outbox<type, Reduction::ranks> outbox(args, (int)nranks, row_bytes);

    oh_grid_wait();
    call_t call = {args,
                   message,
                   (int)nranks,
                   chunk,
                   oh_block() * oh_threads() + oh_thread(),
                   oh_blocks() * oh_threads(),
                   scattered,
                   gathered,
                   outbox,
                   Reduction(args),
                   {0}};
    oh_word16 head[batch][Reduction::ranks]; /* under way before the epoch has come */
    if (call.first < chunk) {
        call.load(0, call.first, head);
    }
    uint32_t epoch = oh_epoch_last(args) + 1;
    twoshot_round round(0, epoch);
    if (call.first < chunk) {
        call.send(round, call.first, head);
    }
    call.scatter(round, call.first + batch * call.step);
    while (call.reduce(round)) {
        const uint32_t next_base = round.base + nranks * chunk;
        if (next_base >= words) {
            if (call.gather(round)) {
                oh_epoch_finish(args, epoch);
            }
            return;
        }
        epoch++;
        const twoshot_round next(next_base, epoch);
        oh_fence_system(); /* what this thread has cleared comes before its words of the next round */
        call.scatter(next, call.first);
        if (!call.gather(round)) {
            return;
        }
        round = next;
    }
}

template <class Reduction, class Args> OH_DEVICE void twoshot(const Args &args)
{
    typedef typename Reduction::type type;
    if constexpr (Reduction::is_sum) {
        if (__builtin_expect(oh_whole_message<type>::fits(args), 1)) {
            twoshot_rounds<Reduction::batch, Reduction>(args, oh_whole_message<type>(args));
            return;
        }
    }
    twoshot_rounds<1, Reduction>(args, oh_message<type>(args));
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, twoshot)
OH_EACH_TYPE(OH_ANY_KERNELS, twoshot)
