/* SPDX-License-Identifier: MIT */
/*
 * twoshot.cu - two hops: rank p, the owner of chunk p, reduces that chunk (scatter) and sends the result to all
 * (gather)
 *
 * A slot has a section of fixed length for each peer: for each source in the scatter, for each owner in the gather.
 * Word i of a section is word i of the chunk; words are Lamport words (lamport.cuh). A message that is larger than its
 * slots goes in parts, one kernel each (src/comm/launch/decide.c). One thread does, for all words i of a chunk that are
 * its own:
 *
 *     wait for the previous kernel                           griddepcontrol.wait; before, it only reads its arguments
 *     epoch = own epoch word + 1;  slot = epoch % 2
 *     for each own i:                                        scatter
 *         for each peer p:
 *             staging of p, slot, section of this rank [i] = word i of chunk p of sendbuff
 *     for each own i:                                        reduce: this rank owns chunk `rank`
 *         do
 *             for each peer p:
 *                 word[p] = own staging, slot, section of p [i]
 *         while any word[p] is empty
 *         word[own rank] = word i of chunk `rank` of sendbuff
 *         sum = word[0] + word[1] + ... + word[n-1]          rank order, rounded once
 *         for each peer p:
 *             staging of p, gather slot, section of this rank [i] = sum
 *         word i of chunk `rank` of recvbuff = sum
 *         own staging, slot, section of each peer [i] = empty
 *     for each own i:                                        gather
 *         poll own staging, gather slot, section of each peer p [i] until none is empty
 *         word i of chunk p of recvbuff = the word of p;  empty the word
 *     wait for all threads of the block;  write epoch to the epoch words
 */
#include "kernels/entry_points.cuh"
#include "kernels/exchange.cuh"

/* What one thread does. single: no thread has more than one batch; code without loops is faster. */
template <int batch, bool single, class Reduction, class Message> struct twoshot_thread {
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;

    const oh_kernel_args &args;
    const Message &message;
    const int nranks;
    const oh_thread_words<batch> own; /* of a chunk */
    const oh_operand_receiver<type, ranks> scattered;
    const oh_receiver<type, ranks, 1> gathered;
    const oh_sender<type, ranks> sender;
    const Reduction reduction;
    oh_spin spin;
    uint32_t held; /* as in struct oh_epoch */

    /* Index in the message of word i of a rank's chunk. */
    OH_DEVICE_METHOD uint32_t word_index(uint32_t owner, uint32_t i) const
    {
        return owner * own.words + i;
    }
    /* Loads the words for each peer's chunk. Words outside the chunk must not be read: another thread may be storing
     * its results there. */
    OH_DEVICE_METHOD void load(uint32_t i, oh_word16 (&theirs)[batch][ranks]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            const bool exists = own.index(i, b) < own.words;
            oh_for_each_rank<1, ranks>(nranks, [&](int j) {
                theirs[b][j] =
                    exists ? message.load(word_index(oh_peer_rank(args, nranks, j), own.index(i, b))) : oh_word16();
            });
        }
    }
    /* hold: `held` for the thread's first batch; if no peer receives that batch, none gets to the later ones */
    OH_DEVICE_METHOD void send(uint32_t slot, uint32_t i, oh_word16 (&theirs)[batch][ranks], uint32_t hold) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (own.has(i, b)) {
                oh_for_each_rank<1, ranks>(nranks, [&](int j) { theirs[b][j] = reduction.prepare(theirs[b][j]); });
                sender.send_each(slot + own.index(i, b) * OH_WORD_BYTES, theirs[b], hold);
            }
        }
    }
    /* Sends all words of the peers' chunks. theirs: the first batch, loaded. */
    OH_DEVICE_METHOD void scatter(uint32_t slot, oh_word16 (&theirs)[batch][ranks]) const
    {
        for (uint32_t i = own.first; i < own.words; i += own.stride()) {
            if (i != own.first) {
                load(i, theirs); /* all loads before the first store: the compiler cannot move loads across it */
            }
            send(slot, i, theirs, i == own.first ? held : 0);
            if (single) {
                break;
            }
        }
    }
    /* Reduces this rank's chunk and sends it to all. Returns false if the communicator has been aborted. */
    OH_DEVICE_METHOD bool reduce(uint32_t slot)
    {
        for (uint32_t i = own.first; i < own.words; i += own.stride()) {
            oh_word16 mine[batch], addend[batch][ranks];
            OH_UNROLL
            for (int b = 0; b < batch; b++) { /* arrives while the kernel waits for the peers' words */
                mine[b] = message.load(word_index(args.rank, own.index(i, own.has(i, b) ? b : 0)));
            }
            if (!oh_receive<batch, ranks>(scattered, own, slot, i, held, &spin, addend)) {
                return false;
            }
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                if (own.has(i, b)) {
                    const uint32_t at = own.index(i, b) * OH_WORD_BYTES;
                    oh_word16 operand[ranks];
                    scattered.operands(oh_canonical<type>(reduction.prepare(mine[b])), addend[b], operand);
                    const oh_word16 result = oh_canonical<type>(reduction.combine(operand));
                    sender.send(OH_SLOT_OFFSET(OH_GATHER_SLOT) + at, result, 0);
                    message.store(word_index(args.rank, own.index(i, b)), result);
                    scattered.reset(slot + at, addend[b]);
                }
            }
            if (single) {
                break;
            }
        }
        return true;
    }
    /* Receives the reduced chunks of the peers. Returns false if the communicator has been aborted. */
    OH_DEVICE_METHOD bool gather()
    {
        const uint32_t slot = OH_SLOT_OFFSET(OH_GATHER_SLOT);
        for (uint32_t i = own.first; i < own.words; i += own.stride()) {
            oh_word16 result[batch][ranks];
            if (!oh_receive<batch, ranks>(gathered, own, slot, i, held, &spin, result)) {
                return false;
            }
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                if (own.has(i, b)) {
                    oh_for_each_rank<1, ranks>(nranks, [&](int j) {
                        message.store(word_index(oh_peer_rank(args, nranks, j), own.index(i, b)), result[b][j]);
                    });
                    gathered.reset(slot + own.index(i, b) * OH_WORD_BYTES, result[b]);
                }
            }
            if (single) {
                break;
            }
        }
        return true;
    }
};

template <int batch, bool single, class Reduction, class Message>
OH_DEVICE bool twoshot_words(const oh_kernel_args &args, const Message &message)
{
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;
    const uint32_t nranks = Reduction::nranks(args);
    const uint32_t chunk = (message.words() + nranks - 1) / nranks;
    const uint32_t section_bytes = OH_SECTION_WORDS(nranks) * OH_WORD_BYTES;
    const oh_operand_receiver<type, ranks> scattered(args, (int)nranks, section_bytes);
    const oh_receiver<type, ranks, 1> gathered(args, (int)nranks, section_bytes);
    const oh_sender<type, ranks> sender(args, (int)nranks, section_bytes);

    const oh_thread_words<batch> own = {chunk, oh_block() * oh_threads() + oh_thread(), oh_blocks() * oh_threads()};
    oh_kernel_begin(args);
    twoshot_thread<batch, single, Reduction, Message> thread = {args,     message, (int)nranks,     own, scattered,
                                                                gathered, sender,  Reduction(args), {0}, 0};
    oh_word16 theirs[batch][ranks];
    thread.load(own.first, theirs); /* in flight before the epoch is loaded */
    const uint32_t epoch = oh_epoch_of(args, &thread.held);
    const uint32_t slot = OH_SLOT_OFFSET(epoch % 2);
    thread.scatter(slot, theirs);
    if (!thread.reduce(slot) || !thread.gather()) {
        return false;
    }
    oh_epoch_finish(args, epoch);
    return true;
}

/* Messages of whole, aligned words. Batches of two words, where there are enough registers for them. */
template <class Reduction, class Message>
OH_DEVICE bool twoshot_whole(const oh_kernel_args &args, const Message &message)
{
    if (message.words() <= Reduction::nranks(args) * oh_blocks() * oh_threads()) {
        return twoshot_words<1, true, Reduction>(args, message);
    }
    return twoshot_words<(Reduction::ranks > 4 ? 1 : 2), false, Reduction>(args, message);
}

/* Returns false if the communicator has been aborted. */
template <class Reduction, class Args> OH_DEVICE bool twoshot(const Args &args)
{
    typedef typename Reduction::type type;
    if constexpr (Reduction::is_sum) {
        typedef oh_whole_message<type> whole_t;
        if (__builtin_expect(whole_t::fits(args), 1)) {
            return twoshot_whole<Reduction>(args, whole_t(args));
        }
    }
    return twoshot_words<1, false, Reduction>(oh_base(args), typename oh_message_of<Args, type>::message(args));
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, twoshot)
OH_EACH_TYPE(OH_ANY_KERNELS, twoshot)
