/* SPDX-License-Identifier: MIT */
/*
 * oneshot.cu - one hop: each rank sends its message to all peers and reduces the messages of all ranks
 *
 * A slot has a section for each peer, as long as the message. Words are Lamport words (lamport.cuh). Between two ranks
 * one-shot also serves messages that are larger than a slot, in parts of one kernel each (src/comm/launch/decide.c).
 * These overlap (protocol.cuh, "Pipelines").
 */
#include "kernels/protocol.cuh"

/*
 * What one thread does. single: no thread has more than one batch, and its words are loaded once; code without loops is
 * faster, by 3 to 6 % of the time of a small message.
 */
template <int batch, bool single, class Reduction, class Message> struct oneshot_thread {
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;

    const oh_kernel_args &args;
    const Message &message;
    const oh_thread_words<batch> own;
    const oh_receiver<type, ranks, 0> receiver;
    const oh_sender<type, ranks> sender;
    const Reduction reduction;
    uint32_t slot; /* offset in staging */
    uint32_t next; /* first word of the batch that is sent next */
    uint32_t held; /* as in struct oh_epoch */
    oh_spin spin;

    OH_DEVICE_METHOD void load(uint32_t i, oh_word16 (&mine)[batch]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            mine[b] = message.load(own.index(i, b));
        }
    }
    OH_DEVICE_METHOD void prepare(oh_word16 (&mine)[batch]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            mine[b] = oh_canonical<type>(reduction.prepare(mine[b]));
        }
    }
    /* hold: `held` for the thread's first batch; if no peer receives that batch, none gets to the later ones */
    OH_DEVICE_METHOD void send(uint32_t i, const oh_word16 (&mine)[batch], uint32_t hold) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (own.has(i, b)) {
                sender.send(slot + own.index(i, b) * OH_WORD_BYTES, mine[b], hold);
            }
        }
    }
    OH_DEVICE_METHOD void send_first(oh_word16 (&mine)[batch])
    {
        prepare(mine);
        if (own.first < own.words) {
            send(own.first, mine, held);
        }
        next = own.first + own.stride();
    }
    OH_DEVICE_METHOD void send_next(oh_word16 (&mine)[batch])
    {
        load(next, mine);
        prepare(mine);
        send(next, mine, 0);
        next += own.stride();
    }
    /* Sends the batches that begin before word `end`. */
    OH_DEVICE_METHOD void send_until(uint32_t end, oh_word16 (&mine)[batch])
    {
        while (!single && next < end) {
            send_next(mine);
        }
    }
    /* Reduces a batch that has arrived, and empties its words. mine: prepared. */
    OH_DEVICE_METHOD void reduce(uint32_t i, const oh_word16 (&mine)[batch], oh_word16 (&word)[batch][ranks]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (own.has(i, b)) {
                receiver.insert_own(mine[b], word[b]);
                message.store(own.index(i, b), reduction.combine(word[b]));
                receiver.reset(slot + own.index(i, b) * OH_WORD_BYTES, word[b]);
            }
        }
    }
    /*
     * Receives and reduces all batches. Each time a batch more is sent than is received, so that the words that the
     * peer waits for are in flight together with the next. Returns false if the communicator has been aborted.
     */
    OH_DEVICE_METHOD bool receive_all(oh_word16 (&mine)[batch])
    {
        oh_word16 word[batch][ranks];
        for (uint32_t i = own.first; i < own.words; i += own.stride()) {
            if (!single) {
                if (next < own.words) {
                    send_next(mine);
                }
                load(i, mine); /* arrives while the kernel waits for the peers' words */
            }
            if (!oh_receive<batch, ranks>(receiver, own, slot, i, held, &spin, word)) {
                return false;
            }
            if (!single) {
                prepare(mine);
            }
            reduce(i, mine, word);
            if (single) {
                break;
            }
        }
        return true;
    }
};

/*
 * A kernel that sends early sends seven eighths of its words before it waits for the previous kernel, which polls and
 * reduces meanwhile. It sends the rest after that wait: the next kernel is launched meanwhile, and the link is never
 * idle. Returns false if the communicator has been aborted.
 */
template <int batch, bool single, class Reduction, class Message>
OH_DEVICE bool oneshot_words(const oh_kernel_args &args, const Message &message)
{
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;
    const bool sends_early = ranks == 2 && !single && args.pipeline_position != 0;
    const uint32_t nranks = Reduction::nranks(args);
    const uint32_t words = message.words();
    const oh_thread_words<batch> own = {words, oh_block() * oh_threads() + oh_thread(), oh_blocks() * oh_threads()};
    const oh_receiver<type, ranks, 0> receiver(args, (int)nranks, words * OH_WORD_BYTES);
    const oh_sender<type, ranks> sender(args, (int)nranks, words * OH_WORD_BYTES);

    if (!sends_early) {
        oh_kernel_begin(args);
    }
    oneshot_thread<batch, single, Reduction, Message> thread = {args, message, own, receiver, sender, Reduction(args),
                                                                0,    0,       0,   {0}};
    oh_word16 mine[batch];
    thread.load(own.first, mine); /* in flight before the epoch is loaded */
    const uint32_t epoch = sends_early ? oh_pipeline_epoch(args) : oh_epoch_of(args, &thread.held);
    thread.slot = OH_ONESHOT_OFFSET + epoch % OH_ONESHOT_SLOTS(nranks) * OH_ONESHOT_BYTES(nranks);
    thread.send_first(mine);
    if (sends_early) {
        thread.send_until(words - words / 8, mine);
        oh_kernel_begin(args);
    }
    if (sends_early || OH_SEND_ALL_FIRST) {
        thread.send_until(words, mine);
    }
    if (!thread.receive_all(mine)) {
        return false;
    }
    oh_epoch_finish(args, epoch);
    return true;
}

/* Returns false if the communicator has been aborted. */
template <class Reduction, class Args> OH_DEVICE bool oneshot(const Args &args)
{
    typedef typename Reduction::type type;
    typedef oh_whole_message<type> whole_t;
    const auto *call = oh_only_call(args);
    const oh_kernel_args &base = oh_base(args);
    if (__builtin_expect(call && whole_t::fits(*call), 1)) {
        const whole_t message(*call);
        const uint32_t threads = oh_blocks() * oh_threads();
        const bool single = Reduction::ranks > 2 || base.pipeline_position == 0; /* that code does not send early */
        if (message.words() <= threads && single) {
            return oneshot_words<1, true, Reduction>(base, message);
        }
        if constexpr (Reduction::is_sum) {
            if (message.words() <= 2 * threads && single) {
                return oneshot_words<2, true, Reduction>(base, message);
            }
        }
        if constexpr (Reduction::ranks == 2) { /* where one-shot serves large messages */
            return oneshot_words<2, false, Reduction>(base, message);
        }
    }
    return oneshot_words<(Reduction::ranks == 2 ? 2 : 1), false, Reduction>(
        base, typename oh_message_of<Args, type>::message(args, oh_base(args)));
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, oneshot)
OH_EACH_TYPE(OH_ANY_KERNELS, oneshot)
