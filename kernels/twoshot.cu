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
 *     epoch = own epoch word + 1;  slot = epoch % 2;  gather slot = the one that the last two-shot kernel did not use
 *     for each own i:                                        scatter
 *         for each peer p:
 *             staging of p, slot, section of this rank [i] = word i of chunk p of sendbuff
 *     for each i of what the last two-shot kernel received:  while this kernel's words travel
 *         own staging, the other gather slot, section of each peer [i] = empty
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
 *         word i of chunk p of recvbuff = the word of p
 *     wait for all threads of the block;  write epoch, gather slot and the length of a chunk to the epoch words
 *
 * quad.cuh has the same for small sums of three and four ranks.
 */
#include "kernels/entry_points.cuh"
#include "kernels/quad.cuh"
#include "kernels/scatter.cuh"

/* The chunks of a message. */
template <class Message> struct twoshot_chunks {
    const Message &message;
    const uint32_t words; /* of a chunk */

    /* Index in the message of word i of a rank's chunk. */
    OH_DEVICE_METHOD uint32_t index(uint32_t owner, uint32_t i) const
    {
        return owner * words + i;
    }
    OH_DEVICE_METHOD oh_word16 load(uint32_t owner, uint32_t i, bool streams = false) const
    {
        return message.load(index(owner, i), streams);
    }
    OH_DEVICE_METHOD void store(uint32_t owner, uint32_t i, const oh_word16 &word) const
    {
        message.store(index(owner, i), word);
    }
};

/* The gather slot of the last two-shot kernel, and what that has left there (struct oh_epoch). */
struct last_gather {
    const uint32_t nranks;
    bool second; /* of the two slots */
    uint32_t left;

    OH_DEVICE_METHOD last_gather(const oh_kernel_args &args, uint32_t n) : nranks(n)
    {
        const uint64_t pair = oh_pair_load(oh_epoch_address(args) + offsetof(struct oh_epoch, gather));
        second = (uint32_t)pair != 0;
        left = (uint32_t)(pair >> 32);
    }
    OH_DEVICE_METHOD uint32_t slot() const
    {
        return OH_SLOT_OFFSET(OH_GATHER_SLOT + second, nranks);
    }
    OH_DEVICE_METHOD uint32_t next_slot() const
    {
        return OH_SLOT_OFFSET(OH_GATHER_SLOT + !second, nranks);
    }
    /* Empties what is left, with all threads: it may be longer than this kernel's chunks. */
    template <class Receiver> OH_DEVICE_METHOD void empty(const Receiver &gathered) const
    {
        for (uint32_t i = oh_block() * oh_threads() + oh_thread(); i < left; i += oh_blocks() * oh_threads()) {
            gathered.clear(slot() + i * OH_WORD_BYTES);
        }
    }
    /* The next kernel finds this kernel's slot, with `words` in each section. */
    OH_DEVICE_METHOD void replace(char *epoch_words, uint32_t words) const
    {
        oh_pair_store(epoch_words + offsetof(struct oh_epoch, gather), (uint64_t)words << 32 | !second);
    }
};

template <int batch, bool single, class Reduction, class Message>
OH_DEVICE bool twoshot_words(const oh_kernel_args &args, const Message &message)
{
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;
    typedef twoshot_chunks<Message> chunks_t;
    const uint32_t nranks = Reduction::nranks(args);
    const chunks_t chunks = {message, (message.words() + nranks - 1) / nranks};
    const uint32_t section_bytes = OH_SECTION_WORDS(nranks) * OH_WORD_BYTES;
    const oh_operand_receiver<type, ranks> scattered(args, (int)nranks, section_bytes);
    const oh_receiver<type, ranks, 1> gathered(args, (int)nranks, section_bytes);
    const oh_sender<type, ranks> sender(args, (int)nranks, section_bytes);

    const oh_thread_words<batch> own = {chunks.words, oh_first_word<Reduction, Message>(chunks.words),
                                        oh_blocks() * oh_threads()};
    const uint32_t trigger = oh_kernel_begin(args);
    scatter_thread<batch, single, Reduction, chunks_t> thread = {args,   chunks,          (int)nranks, own, scattered,
                                                                 sender, Reduction(args), {0},         0};
    oh_word16 theirs[batch][ranks];
    thread.load(own.first, theirs); /* in flight before the epoch is loaded */
    const uint32_t epoch = oh_epoch_of(args, &thread.held);
    const uint32_t slot = OH_SLOT_OFFSET(epoch % 2, nranks);
    const last_gather last(args, nranks);
    const uint32_t gather_slot = last.next_slot();
    thread.scatter(slot, theirs);
    last.empty(gathered);
    const bool reduced = thread.reduce(slot, [&](uint32_t i, const oh_word16 &sum) {
        const oh_word16 result = oh_canonical<type>(sum);
        sender.send(gather_slot + i * OH_WORD_BYTES, result, 0);
        chunks.store(args.rank, i, result);
    });
    const auto take = [&](uint32_t owner, uint32_t i, const oh_word16 &word) { chunks.store(owner, i, word); };
    const auto empty = [&](uint32_t at, const oh_word16(&word)[ranks]) { gathered.reset_escapes(at, word); };
    if (!reduced || !oh_gather<batch, single>(gathered, own, gather_slot, thread.held, &thread.spin, take, empty)) {
        return false;
    }
    oh_epoch_finish<ranks>(args, epoch, trigger, [&](char *at) { last.replace(at, chunks.words); });
    return true;
}

/* The same in quads (quad.cuh): thread k sends to and gathers from rank k; all four have the sum in between. */
template <class Reduction, class Message>
OH_DEVICE bool twoshot_quads(const oh_kernel_args &args, const Message &message)
{
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;
    const uint32_t section_bytes = OH_SECTION_WORDS(ranks) * OH_WORD_BYTES;
    const twoshot_chunks<Message> chunks = {message, (message.words() + ranks - 1) / ranks};
    const oh_receiver<type, ranks, 1> gathered(args, ranks, section_bytes);
    oh_quad<Reduction> quad(args, chunks.words, section_bytes);
    const uint32_t trigger = oh_kernel_begin(args);
    oh_quad_words word;
    uint32_t held;
    quad.load(word, [&](uint32_t k) { return chunks.load(k, quad.i); }); /* in flight before the epoch is loaded */
    const uint32_t epoch = oh_epoch_of(args, &held);
    const uint32_t slot = OH_SLOT_OFFSET(epoch % 2, ranks);
    const last_gather last(args, ranks);
    const uint32_t gather_slot = last.next_slot();
    quad.send(slot, word, held);
    last.empty(gathered);
    if (!quad.receive(slot, word, held)) {
        return false;
    }
    quad.reduce_whole(word);
    quad.send(gather_slot, word, 0);
    quad.each_rank([&](int t, uint32_t k) {
        if (k == args.rank) {
            chunks.store(k, quad.i, word[t]);
        }
    });
    quad.empty(slot);
    if (!quad.receive(gather_slot, word, 0)) {
        return false;
    }
    quad.each_peer([&](int t, uint32_t k) { chunks.store(k, quad.i, word[t]); });
    oh_epoch_finish<ranks>(args, epoch, trigger, [&](char *at) { last.replace(at, chunks.words); });
    return true;
}

/* Messages of whole, aligned words. Between two ranks a thread of more than two words has them in batches of two.
 * Batches spill registers: a thread's only two words would take 1.5 % longer in one (2 x H200, 8 MiB). */
template <class Reduction, class Message>
OH_DEVICE bool twoshot_whole(const oh_kernel_args &args, const Message &message)
{
    /* Words of a message of which each thread has one of each chunk. */
    const uint32_t one_each = Reduction::nranks(args) * oh_blocks() * oh_threads();
    if constexpr (oh_has_quads<Reduction>::value) {
        if (oh_fits_quads((message.words() + Reduction::ranks - 1) / Reduction::ranks)) {
            return twoshot_quads<Reduction>(args, message);
        }
    }
    if (message.words() <= one_each) {
        return twoshot_words<1, true, Reduction>(args, message);
    }
    if constexpr (Reduction::ranks == 2) {
        if (message.words() > 2 * one_each) {
            return twoshot_words<2, false, Reduction>(args, message);
        }
    }
    return twoshot_words<1, false, Reduction>(args, message);
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

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, AllReduce, twoshot, twoshot)
OH_EACH_TYPE(OH_ANY_KERNELS, AllReduce, twoshot, twoshot)
