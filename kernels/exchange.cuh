/* SPDX-License-Identifier: MIT */
/*
 * exchange.cuh - how a thread sends words to its peers, and receives words from them
 */
#ifndef OH_KERNELS_EXCHANGE_CUH_
#define OH_KERNELS_EXCHANGE_CUH_

#include "kernels/lamport.cuh"
#include "kernels/wait.cuh"

/* Calls act(k) for k = from to nranks - 1, in a static loop to `most`, so that k may index registers. */
template <int from, int most, class Act> OH_DEVICE void oh_for_each_rank(int nranks, Act act)
{
    OH_UNROLL
    for (int k = from; k < most; k++) {
        if (k < nranks) {
            act(k);
        }
    }
}

/* Rank of the peer whose staging is args.staging[j]. */
OH_DEVICE uint32_t oh_peer_rank(const oh_kernel_args &args, uint32_t nranks, uint32_t j)
{
    const uint32_t rank = args.rank + j;
    return rank >= nranks ? rank - nranks : rank;
}

/* Bytes of a section that holds so many words. */
OH_DEVICE uint32_t oh_section_bytes(uint32_t words)
{
    return OH_ROUND_UP(words, OH_LINE_WORDS) * OH_WORD_BYTES;
}

OH_DEVICE bool oh_is_escape(const oh_word16 &word, int k)
{
    return word.w[k + 1] == OH_SENTINEL && word.w[k] == OH_ESCAPE_CODE;
}

/* Decodes a word that has arrived, in place. Returns false if the communicator has been aborted. */
template <class Type>
OH_DEVICE bool oh_lamport_decode(const oh_kernel_args &args, uint32_t offset, oh_spin *spin, oh_word16 *word)
{
    if constexpr (!Type::has_sentinel) {
        if (__builtin_expect(oh_is_escape(*word, 0) || oh_is_escape(*word, 2), 0)) {
            uint32_t escape;
            while ((escape = oh_escape_load(args.staging[0] + oh_escape_offset(offset))) == 0) {
                if (spin->is_aborted(args)) {
                    return false;
                }
            }
            OH_UNROLL
            for (int k = 0; k < 4; k += 2) {
                word->w[k] |= oh_is_escape(*word, k) ? escape >> (k / 2) & 1 : 0;
            }
        }
        OH_UNROLL
        for (int k = 0; k < 4; k += 2) {
            word->w[k] ^= OH_XOR_LOW;
            word->w[k + 1] ^= OH_XOR_HIGH;
        }
    }
    return true;
}

/*
 * The words at one index of all sections of a slot of this rank. If `from` is 0, word k is rank k's; this rank's own
 * word has no section. If `from` is 1, word k is from the peer whose staging is args.staging[k].
 */
template <class Type, int ranks, int from> struct oh_receiver {
    const oh_kernel_args &args;
    const int nranks;
    uint32_t section[ranks]; /* offset in the slot of the section of word k */

    OH_DEVICE_METHOD oh_receiver(const oh_kernel_args &kernel_args, int n, uint32_t section_bytes)
        : args(kernel_args), nranks(n)
    {
        OH_UNROLL
        for (int k = from; k < ranks; k++) {
            section[k] = oh_section_index(args.rank, source(k)) * section_bytes;
            oh_materialize(&section[k]);
        }
    }
    /* A kernel for up to `ranks` ranks loads a word of an existing peer in place of those of ranks that do not exist: a
     * branch would make each load wait for the previous load. */
    OH_DEVICE_METHOD uint32_t source(int k) const
    {
        return from == 0 && k < nranks ? (uint32_t)k : oh_peer_rank(args, nranks, from == 1 && k < nranks ? k : 1);
    }
    OH_DEVICE_METHOD bool is_own(int k) const
    {
        return from == 0 && source(k) == args.rank;
    }
    /* Loads the peers' words at offset `at` of the sections. A poll loads all words that it waits for and then tests
     * them (all_arrived): a test in between would make each load wait for the previous load. */
    OH_DEVICE_METHOD void load(uint32_t at, oh_word16 (&word)[ranks]) const
    {
        OH_UNROLL
        for (int k = from; k < ranks; k++) {
            oh_word16 one = oh_word16(); /* a single store to word[k]: with two nvcc 13.0 makes the index dynamic */
            if (!is_own(k)) {
                oh_lamport_load(args.staging[0] + at + section[k], &one);
            }
            word[k] = one;
        }
    }
    /* The words of all ranks in their order, so that all ranks compute the same bits. Called after the poll: before,
     * the kernel would wait until this rank's own word has been loaded. */
    OH_DEVICE_METHOD void operands(const oh_word16 &mine, const oh_word16 (&word)[ranks],
                                   oh_word16 (&operand)[ranks]) const
    {
        static_assert(from == 0 || ranks == 2, "the order of several peers is not known");
        OH_UNROLL
        for (int k = 0; k < ranks; k++) {
            const bool own = from == 0 ? is_own(k) : (uint32_t)k == args.rank;
            OH_UNROLL
            for (int w = 0; w < 4; w++) {
                operand[k].w[w] = own ? mine.w[w] : word[from == 0 ? k : 1].w[w];
            }
        }
    }
    OH_DEVICE_METHOD bool all_arrived(const oh_word16 (&word)[ranks]) const
    {
        bool all = true;
        OH_UNROLL
        for (int k = from; k < ranks; k++) {
            const bool own = is_own(k), arrived = oh_lamport_has_arrived<Type>(word[k]);
            all &= own | arrived;
        }
        return all;
    }
    /* Decodes words that have arrived, in place. Returns false if the communicator has been aborted. */
    OH_DEVICE_METHOD bool decode(uint32_t at, oh_spin *spin, oh_word16 (&word)[ranks]) const
    {
        bool good = true;
        oh_for_each_rank<from, ranks>(nranks, [&](int k) {
            if (!is_own(k)) {
                good = good && oh_lamport_decode<Type>(args, at + section[k], spin, &word[k]);
            }
        });
        return good;
    }
    /* Empties the sections' words again; `word` are the decoded words. */
    OH_DEVICE_METHOD void reset(uint32_t at, const oh_word16 (&word)[ranks]) const
    {
        oh_for_each_rank<from, ranks>(nranks, [&](int k) {
            if (!is_own(k)) {
                oh_lamport_reset<Type>(args.staging[0], at + section[k], word[k]);
            }
        });
    }
    /* The two halves of this: the escape bytes, and later the words. */
    OH_DEVICE_METHOD void reset_escapes(uint32_t at, const oh_word16 (&word)[ranks]) const
    {
        oh_for_each_rank<from, ranks>(nranks, [&](int k) {
            if (!is_own(k)) {
                oh_escape_reset<Type>(args.staging[0], at + section[k], word[k]);
            }
        });
    }
    OH_DEVICE_METHOD void clear(uint32_t at) const
    {
        oh_for_each_rank<from, ranks>(nranks, [&](int k) {
            if (!is_own(k)) {
                oh_lamport_clear(args.staging[0] + at + section[k]);
            }
        });
    }
};

/* Receives the words of a reduction. From a single peer there is less to load and to test in a poll. */
template <class Type, int ranks> using oh_operand_receiver = oh_receiver<Type, ranks, ranks == 2 ? 1 : 0>;

/* This rank's section in a slot of each peer. */
template <class Type, int ranks> struct oh_sender {
    const oh_kernel_args &args;
    const int nranks;
    uint32_t section[ranks];

    OH_DEVICE_METHOD oh_sender(const oh_kernel_args &kernel_args, int n, uint32_t section_bytes)
        : args(kernel_args), nranks(n)
    {
        oh_for_each_rank<1, ranks>(nranks, [&](int j) {
            section[j] = oh_section_index(oh_peer_rank(args, nranks, j), args.rank) * section_bytes;
            oh_materialize(&section[j]);
        });
    }
    /* Sends a canonical word to all peers. held: as in struct oh_epoch. */
    OH_DEVICE_METHOD void send(uint32_t at, const oh_word16 &word, uint32_t held) const
    {
        const oh_encoded<Type> sent(word);
        oh_for_each_rank<1, ranks>(nranks, [&](int j) { sent.send(args.staging[j], at + section[j], held); });
    }
    /* Sends word j to the peer whose staging is args.staging[j]. */
    OH_DEVICE_METHOD void send_each(uint32_t at, const oh_word16 (&word)[ranks], uint32_t held) const
    {
        oh_for_each_rank<1, ranks>(nranks, [&](int j) {
            const oh_encoded<Type> sent(oh_canonical<Type>(word[j]));
            sent.send(args.staging[j], at + section[j], held);
        });
    }
};

/* Words that a thread of an all-gather or a reduce-scatter handles at a time in a loop: two, if there are registers for
 * them. Between two ranks there are twice as many threads instead. */
template <int ranks> struct oh_batch {
    static const int words = ranks == 3 || ranks == 4 ? 2 : 1;
};

/*
 * The words of a message or of a chunk that one thread handles: first, first + step, ... It handles `batch` of them at
 * a time, so that it polls for several words together.
 */
template <int batch> struct oh_thread_words {
    uint32_t words; /* of all threads */
    uint32_t first, step;

    OH_DEVICE_METHOD uint32_t stride() const
    {
        return batch * step;
    }
    /* Index of word b of the batch that begins at word i. */
    OH_DEVICE_METHOD uint32_t index(uint32_t i, int b) const
    {
        return i + b * step;
    }
    /* Word b exists. Word 0 does: loops end before a batch without words. */
    OH_DEVICE_METHOD bool has(uint32_t i, int b) const
    {
        return b == 0 || index(i, b) < words;
    }
};

/*
 * Waits for the words of the batch that begins at word i, from all peers, and decodes them. If `held` is not 0, none
 * counts as arrived (struct oh_epoch). Returns false if the communicator has been aborted.
 */
template <int batch, int ranks, class Receiver>
OH_DEVICE bool oh_receive(const Receiver &receiver, const oh_thread_words<batch> &own, uint32_t slot, uint32_t i,
                          uint32_t held, oh_spin *spin, oh_word16 (&word)[batch][ranks])
{
    /* For a word that does not exist word 0 is loaded again: a branch would make the loads wait for each other. */
    const auto at = [&](int b) { return slot + own.index(i, own.has(i, b) ? b : 0) * OH_WORD_BYTES; };
    bool good = oh_poll(receiver.args, spin, [&]() {
        bool all = held == 0;
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            receiver.load(at(b), word[b]);
        }
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            all &= receiver.all_arrived(word[b]);
        }
        return all;
    });
    OH_UNROLL
    for (int b = 0; b < batch; b++) {
        good = good && (!own.has(i, b) || receiver.decode(at(b), spin, word[b]));
    }
    return good;
}

/*
 * Receives the words that each peer sends to all: take(source, i, word) gets word i of a rank, empty(at, words) all
 * peers' words at an offset, to empty them. slot: offset in staging. single: no thread has more than one batch; code
 * without loops is faster. Returns false if the communicator has been aborted.
 */
template <int batch, bool single, class Type, int ranks, class Take, class Empty>
OH_DEVICE bool oh_gather(const oh_receiver<Type, ranks, 1> &receiver, const oh_thread_words<batch> &own, uint32_t slot,
                         uint32_t held, oh_spin *spin, Take take, Empty empty)
{
    for (uint32_t i = own.first; i < own.words; i += own.stride()) {
        oh_word16 word[batch][ranks];
        if (!oh_receive<batch, ranks>(receiver, own, slot, i, held, spin, word)) {
            return false;
        }
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (own.has(i, b)) {
                oh_for_each_rank<1, ranks>(receiver.nranks, [&](int j) {
                    take(oh_peer_rank(receiver.args, receiver.nranks, j), own.index(i, b), word[b][j]);
                });
                empty(slot + own.index(i, b) * OH_WORD_BYTES, word[b]);
            }
        }
        if (single) {
            break;
        }
    }
    return true;
}

#endif
