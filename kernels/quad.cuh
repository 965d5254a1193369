/* SPDX-License-Identifier: MIT */
/*
 * quad.cuh - four threads for each word: thread k of a quad sends to rank k, receives from rank k, and reduces quarter
 * k
 *
 * For sums of three and four ranks, where a grid has four threads for each word. A thread alone sends to all peers,
 * polls and empties a word of each, one after the other. Words lie in staging as in other kernels. Quarter k of a word
 * is its 32 bits k; the quads of a warp have eight consecutive words, a line of the caches.
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
    /* load_word(k): what this rank sends to rank k, or adds as its own. A rank that does not exist has zeros. */
    template <class Load> OH_DEVICE_METHOD void load(oh_quad_words &word, Load load_word) const
    {
        OH_UNROLL
        for (int t = 0; t < OH_QUAD_THREADS; t++) {
            word[t] = oh_word16();
        }
        each_rank([&](int t, uint32_t k) { word[t] = Reduction(args).prepare(load_word(k)); });
    }
    /* Makes the words canonical, and sends thread k's word to rank k. held: as in struct oh_epoch. */
    OH_DEVICE_METHOD void send(uint32_t slot, oh_quad_words &word, uint32_t held) const
    {
        OH_UNROLL
        for (int t = 0; t < OH_QUAD_THREADS; t++) {
            word[t] = oh_canonical<type>(word[t]);
        }
        each_peer([&](int t, uint32_t) {
            oh_encoded<type> sent(word[t]);
            sent.hold(held);
            sent.store(target[t], slot + sent_at[t]);
        });
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
    /* word: rank k's of thread k; exchanged. take(k, t, quarter) gets quarter k of the sum. */
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
    /* All threads get the sum's whole word. */
    OH_DEVICE_METHOD void reduce_whole(oh_quad_words &word) const
    {
        reduce(word, [&](int t, uint32_t, uint32_t quarter) { word[t] = {{quarter, quarter, quarter, quarter}}; });
        oh_quad_exchange(word);
    }
};

#endif
