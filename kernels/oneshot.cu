/* SPDX-License-Identifier: MIT */
/*
 * oneshot.cu - one hop: every rank sends its message to all others, and combines what has come
 *
 * A word is there when it no longer holds the marker (protocol.cuh, "Marker words"). Slot layout: a row for each peer,
 * as long as the message.
 */
#include "kernels/protocol.cuh"

OH_DEVICE uint32_t oneshot_slot(uint32_t epoch)
{
    return OH_ONESHOT_OFFSET + epoch % 4 * OH_ONESHOT_BYTES;
}

/*
 * batch: words that a thread looks at together, so that it waits for several at a time. once: no thread has more than
 * one batch; code without loops is faster, by 3 to 6 % of a small message.
 */
template <int batch, bool once, class Reduction, class Message>
OH_DEVICE void oneshot_words(const oh_kernel_args &args, const Message &message)
{
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;
    const int nranks = (int)Reduction::nranks(args);
    const uint32_t words = message.words();
    const uint32_t first = oh_block() * oh_threads() + oh_thread();
    const uint32_t step = oh_blocks() * oh_threads();
    const oh_inbox<type, ranks, 0> inbox(args, nranks, words * OH_WORD_BYTES);
    const oh_outbox<type, ranks> outbox(args, nranks, words * OH_WORD_BYTES);

    if (!args.ahead) {
        oh_begin(args);
    }
    const Reduction reduction(args);
    oh_word16 mine[batch];
    const auto load = [&](uint32_t i) {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            mine[b] = message.load(i + b * step);
        }
    };
    const auto prepare = [&]() {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            mine[b] = oh_unmarked<type>(reduction.prepare(mine[b]));
        }
    };
    /* Batch b of the words from i on is there. The first is, where the loops go round. */
    const auto has = [&](uint32_t i, int b) { return b == 0 || i + b * step < words; };

    load(first); /* under way before the epoch has come */
    const uint32_t epoch = oh_epoch_of(args);
    const uint32_t slot = oneshot_slot(epoch);
    prepare();
    for (uint32_t i = first; i < words; i += batch * step) {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (has(i, b)) {
                outbox.send(slot + (i + b * step) * OH_WORD_BYTES, mine[b]);
            }
        }
        if (once) {
            break;
        }
        load(i + batch * step);
        prepare();
    }
    if (args.ahead) {
        oh_begin(args);
    }
    oh_patience patience = {0};
    if (!once) {
        load(first);
        prepare();
    }
    for (uint32_t i = first; i < words; i += batch * step) {
        oh_word16 addend[batch][ranks];
        const bool here = oh_poll(args, &patience, [&]() {
            bool all = true;
            OH_UNROLL
            for (int b = 0; b < batch; b++) { /* where there is no word b, at the first again */
                inbox.look(slot + (has(i, b) ? i + b * step : i) * OH_WORD_BYTES, mine[b], addend[b]);
            }
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                all &= inbox.has_all(addend[b]);
            }
            return all;
        });
        if (!here) {
            return;
        }
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (has(i, b)) {
                const uint32_t at = slot + (i + b * step) * OH_WORD_BYTES;
                if (!inbox.decode(at, &patience, addend[b])) {
                    return;
                }
                message.store(i + b * step, reduction.combine(addend[b]));
                inbox.empty(at, addend[b]);
            }
        }
        if (once) {
            break;
        }
        load(i + batch * step);
        prepare();
    }
    oh_epoch_finish(args, epoch);
}

template <class Reduction, class Args> OH_DEVICE void oneshot(const Args &args)
{
    typedef typename Reduction::type type;
    typedef oh_whole_message<type> whole_t;
    const auto *call = oh_only_call(args);
    const oh_kernel_args &base = oh_base(args);
    if (__builtin_expect(call && whole_t::fits(*call), 1)) {
        const whole_t message(*call);
        const uint32_t threads = oh_blocks() * oh_threads();
        if (message.words() <= threads) {
            oneshot_words<1, true, Reduction>(base, message);
            return;
        }
        if constexpr (Reduction::is_sum) {
            if (message.words() <= 2 * threads) {
                oneshot_words<2, true, Reduction>(base, message);
                return;
            }
            if constexpr (Reduction::ranks == 2) { /* where one-shot goes that far */
                if (message.words() <= 4 * threads) {
                    oneshot_words<4, true, Reduction>(base, message);
                    return;
                }
            }
        }
    }
    oneshot_words<1, false, Reduction>(base, typename oh_message_of<Args, type>::message(args, oh_base(args)));
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, oneshot)
OH_EACH_TYPE(OH_ANY_KERNELS, oneshot)
