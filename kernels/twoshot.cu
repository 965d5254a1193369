/* SPDX-License-Identifier: MIT */
/*
 * twoshot.cu - two hops: rank p combines chunk p, then sends the result to every other
 *
 * A word is there when it no longer holds the marker (protocol.cuh, "Marker words"). A message that is larger than a
 * slot goes in rounds of equal length, with an epoch each, padded with zeros, so that in every round each place has its
 * word from and for every rank. Two slots for the scatter, in turns, and one for the gather, [row of a source or
 * owner][place], with a fixed row length; in all rounds of one call a place belongs to one thread.
 *
 * A thread begins round k+1 when it has gathered round k. Its words for the owners go where a peer's thread has cleared
 * after combining round k-1, which came before the fence in front of that thread's words of round k, and those are
 * here. (It clears after sending its results of round k: so the scatter needs a second slot.) Its own results go where
 * that thread has cleared in gathering round k, before the fence in front of its words of round k+1, without which
 * there is no result: so the gather needs none. Between calls the end of a kernel is the fence.
 */
#include "kernels/protocol.cuh"

/* One round of a call. */
struct twoshot_round {
    uint32_t base;            /* first word of the message */
    uint32_t scatter, gather; /* offsets in staging */

    OH_DEVICE_METHOD twoshot_round(uint32_t first_word, uint32_t epoch)
        : base(first_word), scatter(OH_TWOSHOT_OFFSET + (epoch & 1) * OH_TWOSHOT_BYTES),
          gather(OH_TWOSHOT_OFFSET + 2 * OH_TWOSHOT_BYTES)
    {
    }
};

/* once: there is one round, in which no thread has more than one place; code without loops is faster. */
template <bool once, class Reduction, class Message> struct twoshot_call {
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

    /* What each owner gets from here at place i of the round whose first word is `base`. */
    OH_DEVICE_METHOD void load(uint32_t base, uint32_t i, oh_word16 (&theirs)[ranks]) const
    {
        oh_each<1, ranks>(nranks,
                          [&](int j) { theirs[j] = message.load(base + oh_peer_rank(args, nranks, j) * chunk + i); });
    }
    OH_DEVICE_METHOD void send(const twoshot_round &round, uint32_t i, oh_word16 (&theirs)[ranks]) const
    {
        oh_each<1, ranks>(nranks, [&](int j) { theirs[j] = reduction.prepare(theirs[j]); });
        outbox.send_each(round.scatter + i * OH_WORD_BYTES, theirs);
    }
    /* Sends each owner its words, from place `start` on: at each place all loads before the first store, which the
     * compiler cannot move them across. */
    OH_DEVICE_METHOD void scatter(const twoshot_round &round, uint32_t start) const
    {
        for (uint32_t i = start; i < chunk; i += step) {
            oh_word16 theirs[ranks];
            load(round.base, i, theirs);
            send(round, i, theirs);
        }
    }

    /* Waits for the words at an offset in the rows of an area. False: aborted. */
    template <class Inbox>
    OH_DEVICE_METHOD bool await(const Inbox &inbox, uint32_t at, const oh_word16 &mine, oh_word16 (&word)[ranks])
    {
        const bool here = oh_poll(args, &patience, [&]() {
            inbox.look(at, mine, word);
            return inbox.has_all(word);
        });
        return here && inbox.decode(at, &patience, word);
    }

    /* Combines my words and sends the results to all. False: aborted. */
    OH_DEVICE_METHOD bool reduce(const twoshot_round &round)
    {
        for (uint32_t i = first; i < chunk; i += step) {
            const uint32_t place = round.base + args.rank * chunk + i;
            const uint32_t at = i * OH_WORD_BYTES;
            const oh_word16 mine = oh_unmarked<type>(reduction.prepare(message.load(place)));
            oh_word16 addend[ranks];
            if (!await(scattered, round.scatter + at, mine, addend)) {
                return false;
            }
            const oh_word16 result = oh_unmarked<type>(reduction.combine(addend));
            outbox.send(round.gather + at, result);
            message.store(place, result);
            scattered.empty(round.scatter + at, addend);
            if (once) {
                break;
            }
        }
        return true;
    }

    /* Takes the other owners' results. False: aborted. */
    OH_DEVICE_METHOD bool gather(const twoshot_round &round)
    {
        for (uint32_t i = first; i < chunk; i += step) {
            const uint32_t at = round.gather + i * OH_WORD_BYTES;
            oh_word16 result[ranks];
            if (!await(gathered, at, oh_word16(), result)) {
                return false;
            }
            oh_each<1, ranks>(nranks, [&](int j) {
                message.store(round.base + oh_peer_rank(args, nranks, j) * chunk + i, result[j]);
            });
            gathered.empty(at, result);
            if (once) {
                break;
            }
        }
        return true;
    }
};

/* Words of a row, of which each owner has one. */
OH_DEVICE uint32_t twoshot_row_words(uint32_t nranks)
{
    return OH_TWOSHOT_BYTES / OH_WORD_BYTES / (nranks - 1);
}

template <bool once, class Reduction, class Message>
OH_DEVICE void twoshot_rounds(const oh_kernel_args &args, const Message &message)
{
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;
    const uint32_t nranks = Reduction::nranks(args);
    const uint32_t row_words = twoshot_row_words(nranks), row_bytes = row_words * OH_WORD_BYTES;
    const uint32_t words = message.words();
    const uint32_t rounds = once ? 1 : (words + nranks * row_words - 1) / (nranks * row_words);
    const uint32_t chunk = (words + nranks * rounds - 1) / (nranks * rounds);
    const oh_inbox<type, ranks, 0> scattered(args, (int)nranks, row_bytes);
    const oh_inbox<type, ranks, 1> gathered(args, (int)nranks, row_bytes);
    const oh_outbox<type, ranks> outbox(args, (int)nranks, row_bytes);

    oh_begin(args);
    twoshot_call<once, Reduction, Message> call = {args,
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
    oh_word16 head[ranks]; /* under way before the epoch has come */
    if (call.first < chunk) {
        call.load(0, call.first, head);
    }
    uint32_t epoch = oh_epoch_last(args) + 1;
    twoshot_round round(0, epoch);
    if (call.first < chunk) {
        call.send(round, call.first, head);
    }
    if (!once) {
        call.scatter(round, call.first + call.step);
    }
    while (call.reduce(round) && call.gather(round)) {
        const uint32_t next_base = round.base + nranks * chunk;
        if (once || next_base >= words) {
            oh_epoch_finish(args, epoch);
            return;
        }
        epoch++;
        round = twoshot_round(next_base, epoch);
        oh_fence_system(); /* what this thread has cleared comes before its words of the next round */
        call.scatter(round, call.first);
    }
}

template <class Reduction, class Args> OH_DEVICE void twoshot(const Args &args)
{
    typedef typename Reduction::type type;
    if constexpr (Reduction::is_sum) {
        typedef oh_whole_message<type> whole_t;
        if (__builtin_expect(whole_t::fits(args), 1)) {
            const whole_t message(args);
            const uint32_t nranks = Reduction::nranks(args), threads = oh_blocks() * oh_threads();
            const uint32_t row_words = twoshot_row_words(nranks);
            if (message.words() <= nranks * (threads < row_words ? threads : row_words)) {
                twoshot_rounds<true, Reduction>(args, message);
            } else {
                twoshot_rounds<false, Reduction>(args, message);
            }
            return;
        }
    }
    twoshot_rounds<false, Reduction>(oh_base(args), typename oh_message_of<Args, type>::message(args));
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, twoshot)
OH_EACH_TYPE(OH_ANY_KERNELS, twoshot)
