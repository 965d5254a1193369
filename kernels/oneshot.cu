/* SPDX-License-Identifier: MIT */
/*
 * oneshot.cu - one hop: each rank sends its message to all peers and reduces the messages of all ranks
 *
 * A slot has a section for each peer, as long as the message. Words are Lamport words (lamport.cuh). One thread does,
 * for all words i of the message that are its own (own + 0, own + threads of the grid, own + 2 threads, ...):
 *
 *     wait for the previous kernel                           griddepcontrol.wait; before, it only reads its arguments
 *     epoch = own epoch word + 1;  slot = epoch % 2
 *     for each own i:
 *         mine = sendbuff[i], with sentinels replaced        one batch ahead of the receiving loop
 *         for each peer p:                                   NVLink; a relaxed store, nothing orders it
 *             staging of p, slot, section of this rank [i] = mine
 *     for each own i:
 *         do                                                 all peers in one poll
 *             for each peer p:
 *                 word[p] = own staging, slot, section of p [i]
 *         while any word[p] is empty                         now and then: has the communicator been aborted?
 *         word[own rank] = mine
 *         recvbuff[i] = word[0] + word[1] + ... + word[n-1]  rank order, rounded once
 *         for each peer p:
 *             own staging, slot, section of p [i] = empty    for the kernel after the next one
 *     wait for all threads of the block;  write epoch to the epoch words
 *
 * The sources below do this for batches of words, so that several loads are in flight together. quad.cuh has the same
 * for small sums of three and four ranks.
 */
#include "kernels/entry_points.cuh"
#include "kernels/quad.cuh"

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
    const oh_operand_receiver<type, ranks> receiver;
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
    OH_DEVICE_METHOD void send(uint32_t i, const oh_word16 (&mine)[batch]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (own.has(i, b)) {
                sender.send(slot + own.index(i, b) * OH_WORD_BYTES, mine[b], held);
            }
        }
    }
    OH_DEVICE_METHOD void send_first(oh_word16 (&mine)[batch])
    {
        prepare(mine);
        if (own.first < own.words) {
            send(own.first, mine);
        }
        next = own.first + own.stride();
    }
    OH_DEVICE_METHOD void send_next(oh_word16 (&mine)[batch])
    {
        load(next, mine);
        prepare(mine);
        send(next, mine);
        next += own.stride();
    }
    /* Reduces a batch that has arrived, and empties its words. mine: prepared. */
    OH_DEVICE_METHOD void reduce(uint32_t i, const oh_word16 (&mine)[batch], oh_word16 (&word)[batch][ranks]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (own.has(i, b)) {
                oh_word16 operand[ranks];
                receiver.operands(mine[b], word[b], operand);
                message.store(own.index(i, b), reduction.combine(operand));
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

/* Returns false if the communicator has been aborted. */
template <int batch, bool single, class Reduction, class Message>
OH_DEVICE bool oneshot_words(const oh_kernel_args &args, const Message &message)
{
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;
    const uint32_t nranks = Reduction::nranks(args);
    const uint32_t words = message.words(), section_bytes = oh_section_bytes(words);
    const oh_thread_words<batch> own = {words, oh_first_word<Reduction, Message>(words), oh_blocks() * oh_threads()};
    const oh_operand_receiver<type, ranks> receiver(args, (int)nranks, section_bytes);
    const oh_sender<type, ranks> sender(args, (int)nranks, section_bytes);

    OH_UNROLL
    for (int b = 0; b < batch; b++) {
        oh_materialize_addresses(message.input(own.index(own.first, b)), oh_epoch_address(args));
    }
    const uint32_t trigger = oh_kernel_begin(args);
    oneshot_thread<batch, single, Reduction, Message> thread = {args, message, own, receiver, sender, Reduction(args),
                                                                0,    0,       0,   {0}};
    oh_word16 mine[batch];
    thread.load(own.first, mine); /* in flight before the epoch is loaded */
    const uint32_t epoch = oh_epoch_of(args, &thread.held);
    thread.slot = OH_SLOT_OFFSET(epoch % 2, nranks);
    thread.send_first(mine);
    while (OH_SEND_ALL_FIRST && !single && thread.next < words) {
        thread.send_next(mine);
    }
    if (!thread.receive_all(mine)) {
        return false;
    }
    oh_epoch_finish<ranks>(args, epoch, trigger);
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
        if constexpr (oh_has_quads<Reduction>::value) {
            if (oh_fits_quads(message.words())) {
                return oh_quad_hop<Reduction>(base, message, [&](uint32_t, uint32_t i) { return message.load(i); });
            }
        }
        if (message.words() <= threads) {
            return oneshot_words<1, true, Reduction>(base, message);
        }
        if constexpr (Reduction::is_sum && Reduction::ranks > 2) { /* of two ranks: registers for one word */
            if (message.words() <= 2 * threads) {
                return oneshot_words<2, true, Reduction>(base, message);
            }
        }
        if constexpr (Reduction::ranks == 2) { /* where one-shot serves messages of MiB */
            return oneshot_words<1, false, Reduction>(base, message);
        }
    }
    return oneshot_words<1, false, Reduction>(base, typename oh_message_of<Args, type>::message(args));
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, AllReduce, oneshot, oneshot)
OH_EACH_TYPE(OH_ANY_KERNELS, AllReduce, oneshot, oneshot)
