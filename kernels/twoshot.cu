/* SPDX-License-Identifier: MIT */
/*
 * twoshot.cu - two hops: rank p combines chunk p, then sends the result to every other
 *
 * A word is there when it no longer holds the marker (protocol.cuh, "Marker words"). Layout of a slot: a row of a fixed
 * length for each peer, as source in the scatter and as owner in the gather; word i of a row is place i of the chunk. A
 * message that is larger than a slot goes in parts, a kernel each (src/comm/launch.c). A kernel of two-shot never sends
 * early (doc/design.md, "Epochs").
 */
#include "kernels/protocol.cuh"

/* Offsets in staging of the slots of a kernel. */
struct twoshot_slots {
    uint32_t scatter, gather;

    OH_DEVICE_METHOD twoshot_slots(uint32_t nranks, uint32_t epoch)
        : scatter(OH_TWOSHOT_OFFSET(nranks) + epoch % 2 * OH_TWOSHOT_BYTES(nranks)),
          gather(OH_TWOSHOT_OFFSET(nranks) + 2 * OH_TWOSHOT_BYTES(nranks))
    {
    }
};

/*
 * batch: places that a thread looks at together, so that it waits for several at a time. once: no thread has more than
 * one batch; code without loops is faster.
 */
template <int batch, bool once, class Reduction, class Message> struct twoshot_call {
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;

    const oh_kernel_args &args;
    const Message &message;
    const int nranks;
    const uint32_t chunk; /* places: words to each owner */
    const uint32_t first, step;
    const oh_inbox<type, ranks, 0> scattered;
    const oh_inbox<type, ranks, 1> gathered;
    const oh_outbox<type, ranks> outbox;
    const Reduction reduction;
    oh_patience patience;
    uint32_t held; /* as in struct oh_epoch */

    /* Place b of the batch that begins at i. The first is there, where the loops go round. */
    OH_DEVICE_METHOD uint32_t place(uint32_t i, int b) const
    {
        return i + b * step;
    }
    OH_DEVICE_METHOD bool has(uint32_t i, int b) const
    {
        return b == 0 || place(i, b) < chunk;
    }

    /* What each owner gets from here at the places of a batch; where there is none nothing may be read, since another
     * thread may be writing its results there. */
    OH_DEVICE_METHOD void load(uint32_t i, oh_word16 (&theirs)[batch][ranks]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            const bool is_place = place(i, b) < chunk;
            oh_each<1, ranks>(nranks, [&](int j) {
                theirs[b][j] =
                    is_place ? message.load(oh_peer_rank(args, nranks, j) * chunk + place(i, b)) : oh_word16();
            });
        }
    }
    /* hold: as `held`, for a thread's first batch; without that no peer gets to the others */
    OH_DEVICE_METHOD void send(const twoshot_slots &slots, uint32_t i, oh_word16 (&theirs)[batch][ranks],
                               uint32_t hold) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (has(i, b)) {
                oh_each<1, ranks>(nranks, [&](int j) { theirs[b][j] = reduction.prepare(theirs[b][j]); });
                outbox.send_each(slots.scatter + place(i, b) * OH_WORD_BYTES, theirs[b], hold);
            }
        }
    }

    /* Waits for the words of a batch in the rows of an area. False: aborted. */
    template <class Inbox>
    OH_DEVICE_METHOD bool await(const Inbox &inbox, uint32_t area, uint32_t i, oh_word16 (&word)[batch][ranks])
    {
        const auto at = [&](int b) { return area + place(i, has(i, b) ? b : 0) * OH_WORD_BYTES; };
        bool here = oh_poll(args, &patience, [&]() {
            bool all = held == 0;
            OH_UNROLL
            for (int b = 0; b < batch; b++) { /* where there is no place b, at the first again */
                inbox.look(at(b), word[b]);
            }
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                all &= inbox.has_all(word[b]);
            }
            return all;
        });
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            here = here && (!has(i, b) || inbox.decode(at(b), &patience, word[b]));
        }
        return here;
    }

    /* Combines my words and sends the results to all. False: aborted. */
    OH_DEVICE_METHOD bool reduce(const twoshot_slots &slots)
    {
        for (uint32_t i = first; i < chunk; i += batch * step) {
            oh_word16 mine[batch], addend[batch][ranks];
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                const uint32_t own = args.rank * chunk + place(i, has(i, b) ? b : 0);
                mine[b] = message.load(own); /* comes while the peers' words are waited for */
            }
            if (!await(scattered, slots.scatter, i, addend)) {
                return false;
            }
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                if (has(i, b)) {
                    const uint32_t at = place(i, b) * OH_WORD_BYTES;
                    scattered.put_own(oh_unmarked<type>(reduction.prepare(mine[b])), addend[b]);
                    const oh_word16 result = oh_unmarked<type>(reduction.combine(addend[b]));
                    outbox.send(slots.gather + at, result, 0);
                    message.store(args.rank * chunk + place(i, b), result);
                    scattered.empty(slots.scatter + at, addend[b]);
                }
            }
            if (once) {
                break;
            }
        }
        return true;
    }

    /* Takes the other owners' results. False: aborted. */
    OH_DEVICE_METHOD bool gather(const twoshot_slots &slots)
    {
        for (uint32_t i = first; i < chunk; i += batch * step) {
            oh_word16 result[batch][ranks];
            if (!await(gathered, slots.gather, i, result)) {
                return false;
            }
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                if (has(i, b)) {
                    oh_each<1, ranks>(nranks, [&](int j) {
                        message.store(oh_peer_rank(args, nranks, j) * chunk + place(i, b), result[b][j]);
                    });
                    gathered.empty(slots.gather + place(i, b) * OH_WORD_BYTES, result[b]);
                }
            }
            if (once) {
                break;
            }
        }
        return true;
    }
};

template <int batch, bool once, class Reduction, class Message>
OH_DEVICE bool twoshot_words(const oh_kernel_args &args, const Message &message)
{
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;
    const uint32_t nranks = Reduction::nranks(args);
    const uint32_t chunk = (message.words() + nranks - 1) / nranks;
    const uint32_t row_bytes = OH_ROW_WORDS(OH_TWOSHOT_BYTES, nranks) * OH_WORD_BYTES;
    const oh_inbox<type, ranks, 0> scattered(args, (int)nranks, row_bytes);
    const oh_inbox<type, ranks, 1> gathered(args, (int)nranks, row_bytes);
    const oh_outbox<type, ranks> outbox(args, (int)nranks, row_bytes);

    oh_kernel_begin(args);
    twoshot_call<batch, once, Reduction, Message> call = {args,
                                                          message,
                                                          (int)nranks,
                                                          chunk,
                                                          oh_block() * oh_threads() + oh_thread(),
                                                          oh_blocks() * oh_threads(),
                                                          scattered,
                                                          gathered,
                                                          outbox,
                                                          Reduction(args),
                                                          {0},
                                                          0};
    oh_word16 theirs[batch][ranks]; /* under way before the epoch has come */
    call.load(call.first, theirs);
    const uint32_t epoch = oh_epoch_of(args, &call.held);
    const twoshot_slots slots(nranks, epoch);
    for (uint32_t i = call.first; i < chunk; i += batch * call.step) {
        if (i != call.first) {
            call.load(i, theirs); /* all loads before the first store, which the compiler cannot move them across */
        }
        call.send(slots, i, theirs, i == call.first ? call.held : 0);
        if (once) {
            break;
        }
    }
    if (!call.reduce(slots) || !call.gather(slots)) {
        return false;
    }
    oh_epoch_finish(args, epoch);
    return true;
}

/* Messages of whole, aligned words. Two places at a time, where there are registers for them. */
template <class Reduction, class Message>
OH_DEVICE bool twoshot_whole(const oh_kernel_args &args, const Message &message)
{
    if (message.words() <= Reduction::nranks(args) * oh_blocks() * oh_threads()) {
        return twoshot_words<1, true, Reduction>(args, message);
    }
    return twoshot_words<(Reduction::ranks > 4 ? 1 : 2), false, Reduction>(args, message);
}

/* False: aborted. */
template <class Reduction, class Args> OH_DEVICE bool twoshot(const Args &args)
{
    typedef typename Reduction::type type;
    if constexpr (Reduction::is_sum) {
        typedef oh_whole_message<type> whole_t;
        if (__builtin_expect(whole_t::fits(args), 1)) {
            return twoshot_whole<Reduction>(args, whole_t(args));
        }
    }
    return twoshot_words<1, false, Reduction>(oh_base(args),
                                              typename oh_message_of<Args, type>::message(args, oh_base(args)));
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, twoshot)
OH_EACH_TYPE(OH_ANY_KERNELS, twoshot)
