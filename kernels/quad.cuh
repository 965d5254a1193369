/* SPDX-License-Identifier: MIT */
/*
 * quad.cuh - sums of few words: four threads for each word, each of which sends to, and receives from, one rank
 *
 * For three and four ranks, where a grid has four threads for each word. A thread alone sends a word to each peer,
 * polls for a word of each, and empties it, one after the other; that takes up to 7 % longer (4 x H200, 2026-11-27).
 * Words lie in staging as in other kernels. Quarter k of a word is its 32 bits k. Thread k of a quad does, in one hop:
 *
 *     staging of rank k, slot, section of this rank [i] = own word i       that of an allreduce, or of part k
 *     poll own staging, slot, section of rank k [i] until it is not empty
 *     exchange with the quad: its word for quarter k of all ranks' words
 *     quarter k of word i of recvbuff = their sum                          rank order, rounded once
 *     own staging, slot, section of rank k [i] = empty
 *
 * The thread of the own rank sends and polls nothing; with three ranks the fourth only reduces its quarter. The quads
 * of a warp have eight consecutive words, a line of the caches.
 */
#ifndef OH_KERNELS_QUAD_CUH_
#define OH_KERNELS_QUAD_CUH_

#include "kernels/exchange.cuh"

/* A quarter of a word. */
struct oh_word4 {
    uint32_t w[1];
};

/* Of types without escapes, whose elements are in one quarter. */
template <class Reduction> struct oh_has_quads {
    static const bool value = (Reduction::ranks == 3 || Reduction::ranks == 4) && Reduction::type::has_sentinel &&
                              Reduction::type::part_words == 1;
};

/*
 * Returns a thread's first word, of `words` in the longest loop. A table has one grid for all types and operations.
 * Where it has room for quads, and this kernel has none, the first thread of each quad has the quad's word. So the
 * words are in as many blocks, and no thread has a second one.
 */
template <class Reduction, class Message> OH_DEVICE uint32_t oh_first_word(uint32_t words)
{
    const bool never = (Reduction::ranks != 3 && Reduction::ranks != 4) ||
                       (Message::is_whole && oh_has_quads<Reduction>::value); /* then it would be in quads */
    if (!never && oh_fits_quads(words)) {
        return oh_quad_thread(0) == 0 ? oh_quad_index() : words;
    }
    return oh_block() * oh_threads() + oh_thread();
}

/* A word of each thread of a quad. On the GPU a kernel's thread is one of them, on the CPU it is all four. */
typedef oh_word16 oh_quad_words[OH_QUAD_THREADS];

template <class Reduction> struct oh_quad {
    typedef typename Reduction::type type;
    static const uint32_t ranks = Reduction::ranks;
    static_assert(oh_has_quads<Reduction>::value);

    const oh_kernel_args &args;
    const uint32_t i; /* of the quad's word */
    const bool exists;
    char *target[OH_QUAD_THREADS];                                   /* a peer's staging */
    uint32_t sent_at[OH_QUAD_THREADS], received_at[OH_QUAD_THREADS]; /* offsets in a slot */
    oh_spin spin;

    OH_DEVICE_METHOD oh_quad(const oh_kernel_args &kernel_args, uint32_t words, uint32_t section_bytes)
        : args(kernel_args), i(oh_quad_index()), exists(i < words), spin{0}
    {
        OH_UNROLL
        for (int t = 0; t < OH_QUAD_THREADS; t++) {
            const uint32_t k = oh_quad_thread(t), peer = is_peer(k) ? k : args.rank == 0 ? 1 : 0;
            const uint32_t distance = peer >= args.rank ? peer - args.rank : peer + ranks - args.rank;
            target[t] = args.staging[distance];
            sent_at[t] = oh_section_index(peer, args.rank) * section_bytes + i * OH_WORD_BYTES;
            received_at[t] = oh_section_index(args.rank, peer) * section_bytes + i * OH_WORD_BYTES;
            oh_materialize_addresses(target[t] + sent_at[t], args.staging[0] + received_at[t]);
        }
    }
    OH_DEVICE_METHOD bool is_peer(uint32_t k) const
    {
        return k < ranks && k != args.rank;
    }
    /* act(t, k) for each thread that has a word of rank k. */
    template <class Act> OH_DEVICE_METHOD void each_rank(Act act) const
    {
        OH_UNROLL
        for (int t = 0; t < OH_QUAD_THREADS; t++) {
            const uint32_t k = oh_quad_thread(t);
            if (exists && k < ranks) {
                act(t, k);
            }
        }
    }
    template <class Act> OH_DEVICE_METHOD void each_peer(Act act) const
    {
        each_rank([&](int t, uint32_t k) {
            if (k != args.rank) {
                act(t, k);
            }
        });
    }
    /* load_word(k): what this rank sends to rank k, or adds as its own. */
    template <class Load> OH_DEVICE_METHOD void load(oh_quad_words &word, Load load_word) const
    {
        OH_UNROLL
        for (int t = 0; t < OH_QUAD_THREADS; t++) {
            word[t] = oh_word16();
        }
        each_rank([&](int t, uint32_t k) { word[t] = load_word(k); });
    }
    OH_DEVICE_METHOD void prepare(oh_quad_words &word) const
    {
        each_rank([&](int t, uint32_t) { word[t] = Reduction(args).prepare(word[t]); });
    }
    /* Makes the words canonical, and sends thread k's word to rank k. held: as in struct oh_epoch. */
    OH_DEVICE_METHOD void send(uint32_t slot, oh_quad_words &word, uint32_t held) const
    {
        OH_UNROLL
        for (int t = 0; t < OH_QUAD_THREADS; t++) {
            word[t] = oh_canonical<type>(word[t]);
        }
        each_peer([&](int t, uint32_t) { oh_encoded<type>(word[t]).send(target[t], slot + sent_at[t], held); });
    }
    /* Puts rank k's word in place of the one that thread k has sent. Returns false in a whole warp if the communicator
     * has been aborted: a quad of which a thread left alone would add what has not arrived. */
    OH_DEVICE_METHOD bool receive(uint32_t slot, oh_quad_words &word, uint32_t held)
    {
        bool good = true;
        each_peer([&](int t, uint32_t) {
            good = good && oh_poll(args, &spin, [&]() {
                       oh_lamport_load(args.staging[0] + slot + received_at[t], &word[t]);
                       return held == 0 && oh_lamport_has_arrived<type>(word[t]);
                   });
        });
        return oh_warp_all(good);
    }
    OH_DEVICE_METHOD void empty(uint32_t slot) const
    {
        each_peer([&](int t, uint32_t) { oh_lamport_clear(args.staging[0] + slot + received_at[t]); });
    }
    /* word: thread k's is that of rank k. take(t, k, quarter) gets quarter k of the result. */
    template <class Take> OH_DEVICE_METHOD void reduce(oh_quad_words &word, Take take) const
    {
        oh_quad_exchange(word); /* now quarter k of all ranks' words */
        OH_UNROLL
        for (int t = 0; t < OH_QUAD_THREADS; t++) {
            oh_word4 operand[ranks];
            OH_UNROLL
            for (uint32_t r = 0; r < ranks; r++) {
                operand[r].w[0] = word[t].w[r];
            }
            take(t, oh_quad_thread(t), Reduction(args).combine(operand).w[0]);
        }
    }
    /* The same; all threads get the whole word. */
    OH_DEVICE_METHOD void reduce_whole(oh_quad_words &word) const
    {
        reduce(word, [&](int t, uint32_t, uint32_t quarter) { word[t] = {{quarter, quarter, quarter, quarter}}; });
        oh_quad_exchange(word);
    }
};

/*
 * The whole of a kernel with one hop. load(k, i): word i of what this rank sends to rank k. Returns false if the
 * communicator has been aborted.
 */
template <class Reduction, class Message, class Load>
OH_DEVICE bool oh_quad_hop(const oh_kernel_args &args, const Message &message, Load load)
{
    oh_quad<Reduction> quad(args, message.words(), oh_section_bytes(message.words()));
    oh_materialize_addresses(message.input(quad.i), oh_epoch_address(args));
    const uint32_t trigger = oh_kernel_begin(args);
    oh_quad_words word;
    uint32_t held;
    quad.load(word, [&](uint32_t k) { return load(k, quad.i); }); /* in flight before the epoch is loaded */
    const uint32_t epoch = oh_epoch_of(args, &held);
    const uint32_t slot = OH_SLOT_OFFSET(epoch % 2, quad.ranks);
    quad.prepare(word);
    quad.send(slot, word, held);
    if (!quad.receive(slot, word, held)) {
        return false;
    }
    quad.reduce(word, [&](int, uint32_t k, uint32_t quarter) { message.store_quarter(quad.i, k, quarter); });
    quad.empty(slot);
    oh_epoch_finish<Reduction::ranks>(args, epoch, trigger);
    return true;
}

#endif
