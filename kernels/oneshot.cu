/* SPDX-License-Identifier: MIT */
/*
 * oneshot.cu - one hop: every rank sends its message to all others, and combines what has come
 *
 * A word is there when it no longer holds the marker (protocol.cuh, "Marker words"). Slot layout: a row for each peer,
 * as long as the message. Of two ranks, for which one-shot serves large messages, too, a message that is larger than a
 * slot goes in parts, a kernel each (src/comm/launch.c), which overlap (protocol.cuh, "Pipelines").
 */
#include "kernels/protocol.cuh"

/*
 * batch: words that a thread looks at together, so that it waits for several at a time. once: no thread has more than
 * one batch; code without loops is faster, by 3 to 6 % of a small message.
 */
template <int batch, bool once, class Reduction, class Message> struct oneshot_call {
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;

    const oh_kernel_args &args;
    const Message &message;
    const uint32_t words, step;
    const oh_inbox<type, ranks, 0> inbox;
    const oh_outbox<type, ranks> outbox;
    const Reduction reduction;
    oh_patience patience;
    uint32_t held; /* as in struct oh_epoch */

    /* Batch b of the words from i on is there. The first is, where the loops go round. */
    OH_DEVICE_METHOD bool has(uint32_t i, int b) const
    {
        return b == 0 || i + b * step < words;
    }
    OH_DEVICE_METHOD void load(uint32_t i, oh_word16 (&mine)[batch]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            mine[b] = message.load(i + b * step);
        }
    }
    OH_DEVICE_METHOD void prepare(oh_word16 (&mine)[batch]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            mine[b] = oh_unmarked<type>(reduction.prepare(mine[b]));
        }
    }
    /* hold: as `held`, for a thread's first batch; without that no peer gets to the others */
    OH_DEVICE_METHOD void send(uint32_t slot, uint32_t i, const oh_word16 (&mine)[batch], uint32_t hold) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (has(i, b)) {
                outbox.send(slot + (i + b * step) * OH_WORD_BYTES, mine[b], hold);
            }
        }
    }

    /* Waits for the peers' words of a batch. False: aborted. */
    OH_DEVICE_METHOD bool await(uint32_t slot, uint32_t i, oh_word16 (&word)[batch][ranks])
    {
        const auto at = [&](int b) { return slot + (has(i, b) ? i + b * step : i) * OH_WORD_BYTES; };
        bool here = oh_poll(args, &patience, [&]() {
            bool all = held == 0;
            OH_UNROLL
            for (int b = 0; b < batch; b++) { /* where there is no word b, at the first again */
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
    /* Combines a batch; its words are empty then. */
    OH_DEVICE_METHOD void combine(uint32_t slot, uint32_t i, const oh_word16 (&mine)[batch],
                                  oh_word16 (&word)[batch][ranks]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (has(i, b)) {
                inbox.put_own(mine[b], word[b]);
                message.store(i + b * step, reduction.combine(word[b]));
                inbox.empty(slot + (i + b * step) * OH_WORD_BYTES, word[b]);
            }
        }
    }
};

/*
 * A thread with several batches sends one more than it has waited for, so that what it waits for is on its way together
 * with the next. A kernel that sends early sends seven eighths first: while it does, the kernel before it polls and
 * combines. That kernel has ended by then, so that the rest goes behind the wait for it: the next kernel is launched
 * meanwhile, and the wire is never idle. Returns false if the communicator has been aborted.
 */
template <int batch, bool once, class Reduction, class Message>
OH_DEVICE bool oneshot_words(const oh_kernel_args &args, const Message &message)
{
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;
    const bool sends_early = ranks == 2 && !once && args.pipeline_position != 0;
    const uint32_t nranks = Reduction::nranks(args);
    const uint32_t words = message.words();
    const uint32_t first = oh_block() * oh_threads() + oh_thread();
    const oh_inbox<type, ranks, 0> inbox(args, (int)nranks, words * OH_WORD_BYTES);
    const oh_outbox<type, ranks> outbox(args, (int)nranks, words * OH_WORD_BYTES);

    if (!sends_early) {
        oh_kernel_begin(args);
    }
    oneshot_call<batch, once, Reduction, Message> call = {
        args, message, words, oh_blocks() * oh_threads(), inbox, outbox, Reduction(args), {0}, 0};
    const uint32_t stride = batch * call.step;
    oh_word16 mine[batch], word[batch][ranks];
    call.load(first, mine); /* under way before the epoch has come */
    const uint32_t epoch = sends_early ? oh_pipeline_epoch(args) : oh_epoch_of(args, &call.held);
    const uint32_t slot = OH_ONESHOT_OFFSET + epoch % OH_ONESHOT_SLOTS(nranks) * OH_ONESHOT_BYTES(nranks);
    call.prepare(mine);
    if (first < words) {
        call.send(slot, first, mine, call.held);
    }
    uint32_t next = first + stride; /* to be sent */
    const auto send_next = [&]() {
        call.load(next, mine);
        call.prepare(mine);
        call.send(slot, next, mine, 0);
        next += stride;
    };
    const auto send_until = [&](uint32_t end) {
        while (!once && next < end) {
            send_next();
        }
    };
    if (sends_early) {
        send_until(words - words / 8);
        oh_kernel_begin(args);
    }
    if (sends_early || OH_SENDS_FIRST) {
        send_until(words);
    }
    for (uint32_t i = first; i < words; i += stride) {
        if (!once) {
            if (next < words) {
                send_next();
            }
            call.load(i, mine); /* comes while the peers' words are waited for */
        }
        if (!call.await(slot, i, word)) {
            return false;
        }
        if (!once) {
            call.prepare(mine);
        }
        call.combine(slot, i, mine, word);
        if (once) {
            break;
        }
    }
    oh_epoch_finish(args, epoch);
    return true;
}

/* False: aborted. */
template <class Reduction, class Args> OH_DEVICE bool oneshot(const Args &args)
{
    typedef typename Reduction::type type;
    typedef oh_whole_message<type> whole_t;
    const auto *call = oh_only_call(args);
    const oh_kernel_args &base = oh_base(args);
    if (__builtin_expect(call && whole_t::fits(*call), 1)) {
        const whole_t message(*call);
        const uint32_t threads = oh_blocks() * oh_threads();
        const bool once = Reduction::ranks > 2 || base.pipeline_position == 0; /* code that does not send early */
        if (message.words() <= threads && once) {
            return oneshot_words<1, true, Reduction>(base, message);
        }
        if constexpr (Reduction::is_sum) {
            if (message.words() <= 2 * threads && once) {
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
