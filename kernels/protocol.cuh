/* SPDX-License-Identifier: MIT */
/*
 * protocol.cuh - what the algorithms share: a message seen as words, epochs, and waiting
 */
#ifndef OH_KERNELS_PROTOCOL_CUH_
#define OH_KERNELS_PROTOCOL_CUH_

#include "kernels/reduce.cuh"

/*
 * A call's local buffers as rows of words. The pointers may have any alignment of the element, and the last word may be
 * partly outside the message; both are this rank's own affair and leave no trace in what the peers see.
 */
template <class Type> struct oh_message {
    typedef typename Type::element element;
    static const uint32_t per_word = OH_WORD_BYTES / sizeof(element);

    const char *sendbuff;
    char *recvbuff;
    uint64_t count;
    bool bypass_l1; /* as in oh_element_load */

    /* call: struct oh_kernel_args or oh_list_item; base: of its kernel */
    template <class Call>
    OH_DEVICE_METHOD oh_message(const Call &call, const oh_kernel_args &base)
        : sendbuff(static_cast<const char *>(call.sendbuff)), recvbuff(static_cast<char *>(call.recvbuff)),
          count(call.count), bypass_l1(base.pipeline_position != 0)
    {
    }

    OH_DEVICE_METHOD uint32_t words() const
    {
        return (uint32_t)((count + per_word - 1) / per_word); /* OH_MESSAGE_BYTES sees to it that it fits */
    }

    OH_DEVICE_METHOD bool whole(const char *base, uint64_t i) const
    {
        return reinterpret_cast<uintptr_t>(base) % OH_WORD_BYTES == 0 && (i + 1) * per_word <= count;
    }

    /* Element k of a word. Shifts keep a word in registers; copying through an array of elements put it into local
     * memory (nvcc 13.0). */
    static OH_INLINE element take(const oh_word16 &word, uint32_t k)
    {
        if constexpr (sizeof(element) == 8) {
            return word.w[2 * k] | (uint64_t)word.w[2 * k + 1] << 32;
        } else {
            const uint32_t per_32 = 4 / sizeof(element);
            return (element)(word.w[k / per_32] >> (k % per_32 * 8 * sizeof(element)));
        }
    }
    static OH_INLINE void put(oh_word16 *word, uint32_t k, element value)
    {
        if constexpr (sizeof(element) == 8) {
            word->w[2 * k] = (uint32_t)value;
            word->w[2 * k + 1] = (uint32_t)(value >> 32);
        } else {
            const uint32_t per_32 = 4 / sizeof(element);
            word->w[k / per_32] |= (uint32_t)value << (k % per_32 * 8 * sizeof(element));
        }
    }

    /* Word i of what this rank sends; zeros where there is no message. */
    OH_DEVICE_METHOD oh_word16 load(uint32_t i) const
    {
        oh_word16 word;
        if (__builtin_expect(whole(sendbuff, i), 1)) {
            oh_user_load(sendbuff + (uint64_t)i * OH_WORD_BYTES, &word);
            return word;
        }
        word = oh_word16();
        OH_UNROLL
        for (uint32_t k = 0; k < per_word; k++) {
            const uint64_t at = (uint64_t)i * per_word + k;
            if (at < count) {
                put(&word, k, oh_element_load(reinterpret_cast<const element *>(sendbuff) + at, bypass_l1));
            }
        }
        return word;
    }

    /* Word i of the result. */
    OH_DEVICE_METHOD void store(uint32_t i, const oh_word16 &word) const
    {
        if (__builtin_expect(whole(recvbuff, i), 1)) {
            oh_user_store(recvbuff + (uint64_t)i * OH_WORD_BYTES, word);
            return;
        }
        OH_UNROLL
        for (uint32_t k = 0; k < per_word; k++) {
            const uint64_t at = (uint64_t)i * per_word + k;
            if (at < count) {
                reinterpret_cast<element *>(recvbuff)[at] = take(word, k);
            }
        }
    }
};

/* A message of whole, aligned words, as most are: the same, an instruction for each load and store. */
template <class Type> struct oh_whole_message {
    static const uint32_t per_word = OH_WORD_BYTES / sizeof(typename Type::element);

    const char *sendbuff;
    char *recvbuff;
    uint32_t count; /* words */

    template <class Call>
    explicit OH_DEVICE_METHOD oh_whole_message(const Call &call)
        : sendbuff(static_cast<const char *>(call.sendbuff)), recvbuff(static_cast<char *>(call.recvbuff)),
          count((uint32_t)(call.count / per_word))
    {
    }
    template <class Call> static OH_INLINE bool fits(const Call &call)
    {
        const uintptr_t buffers =
            reinterpret_cast<uintptr_t>(call.sendbuff) | reinterpret_cast<uintptr_t>(call.recvbuff);
        return ((uint32_t)buffers % OH_WORD_BYTES | (uint32_t)call.count % per_word) == 0;
    }
    OH_DEVICE_METHOD uint32_t words() const
    {
        return count;
    }
    OH_DEVICE_METHOD oh_word16 load(uint32_t i) const
    {
        oh_word16 word = oh_word16();
        if (i < count) {
            oh_user_load(sendbuff + (uint64_t)i * OH_WORD_BYTES, &word);
        }
        return word;
    }
    OH_DEVICE_METHOD void store(uint32_t i, const oh_word16 &word) const
    {
        if (i < count) {
            oh_user_store(recvbuff + (uint64_t)i * OH_WORD_BYTES, word);
        }
    }
};

/* Several calls: words of the message that they make together. */
template <class Type> struct oh_message_list {
    const oh_kernel_list_args &list;

    OH_DEVICE_METHOD oh_message_list(const oh_kernel_list_args &list_args, const oh_kernel_args &) : list(list_args)
    {
    }
    OH_DEVICE_METHOD uint32_t words() const
    {
        return list.words;
    }
    /* The call that word i belongs to: the last that begins at or before it. */
    OH_DEVICE_METHOD const oh_list_item &item(uint32_t i) const
    {
        uint32_t low = 0, high = list.calls;
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            if (list.item[middle].first_word <= i) {
                low = middle;
            } else {
                high = middle;
            }
        }
        return list.item[low];
    }
    OH_DEVICE_METHOD oh_word16 load(uint32_t i) const
    {
        oh_word16 word = oh_word16();
        if (i < list.words) {
            const oh_list_item &it = item(i);
            word = oh_message<Type>(it, list.base).load(i - (uint32_t)it.first_word);
        }
        return word;
    }
    OH_DEVICE_METHOD void store(uint32_t i, const oh_word16 &word) const
    {
        const oh_list_item &it = item(i);
        oh_message<Type>(it, list.base).store(i - (uint32_t)it.first_word, word);
    }
};

/* What a kernel's parameter means, whichever of the two it is. */
OH_DEVICE const oh_kernel_args &oh_base(const oh_kernel_args &args)
{
    return args;
}
OH_DEVICE const oh_kernel_args &oh_base(const oh_kernel_list_args &args)
{
    return args.base;
}
/* The only call, where it is one. */
OH_DEVICE const oh_kernel_args *oh_only_call(const oh_kernel_args &args)
{
    return &args;
}
OH_DEVICE const oh_list_item *oh_only_call(const oh_kernel_list_args &args)
{
    return args.calls == 1 ? &args.item[0] : NULL;
}
template <class Args, class Type> struct oh_message_of;
template <class Type> struct oh_message_of<oh_kernel_args, Type> {
    typedef oh_message<Type> message;
};
template <class Type> struct oh_message_of<oh_kernel_list_args, Type> {
    typedef oh_message_list<Type> message;
};

/*
 * Marker words. An empty word holds OH_MARKER in each 32-bit part (of 64-bit elements only the upper parts count), a
 * full one in none; the reader puts the marker back once it has taken the word. So no bytes go to flags, and what was
 * not written for long cannot look new.
 *
 * Of floating-point types the marker is a NaN, in 16- and 8-bit types a row of NaNs: a part of a message that holds it
 * is sent without its top bit, as another NaN. Results of NaNs are the GPU's one canonical NaN whatever their bits
 * were, so no result changes. Zeros keep their sign.
 *
 * Integers need every pattern. Their words are told apart by 8-byte halves: an empty one is all ones. What is sent is
 * xored with a key, so that no usual number comes out as all ones. A half that does, or that comes out one less, is
 * sent as the escape, all ones less one; which of the two it is stands in the word's escape cell, which the reader
 * waits for and clears as it does the word.
 */
#define OH_ESCAPE_LOW (OH_MARKER - 1)
#define OH_CELL_FULL 4u /* beside a bit for each half */

/* A row of an area in rank `owner`'s staging: that of what `source` sends. */
OH_DEVICE uint32_t oh_row(uint32_t owner, uint32_t source)
{
    return source - (source > owner ? 1 : 0);
}

/* The escape cell of the marker word at an offset in staging. */
OH_DEVICE uint32_t oh_escape_cell(uint32_t offset)
{
    return OH_ESCAPE_OFFSET + (offset - OH_MARKER_OFFSET) / OH_WORD_BYTES;
}

/* What a rank reckons with instead of a word of its own: what its peers get. */
template <class Type> OH_DEVICE oh_word16 oh_unmarked(oh_word16 word)
{
    if constexpr (Type::has_marker) {
        OH_UNROLL
        for (int k = Type::part_words - 1; k < 4; k += Type::part_words) {
            word.w[k] = word.w[k] == OH_MARKER ? OH_MARKER >> 1 : word.w[k];
        }
    }
    return word;
}

/* A word (oh_unmarked) as it travels. */
template <class Type> struct oh_marked {
    oh_word16 word;
    uint32_t cell; /* 0: no escape */

    explicit OH_DEVICE_METHOD oh_marked(const oh_word16 &plain) : word(plain), cell(0)
    {
        if constexpr (!Type::has_marker) {
            OH_UNROLL
            for (int k = 0; k < 4; k += 2) {
                word.w[k] ^= OH_KEY_LOW;
                word.w[k + 1] ^= OH_KEY_HIGH;
                if (word.w[k + 1] == OH_MARKER && word.w[k] >= OH_ESCAPE_LOW) {
                    cell |= OH_CELL_FULL | (word.w[k] & 1) << (k / 2);
                    word.w[k] = OH_ESCAPE_LOW;
                }
            }
        }
    }
    /* OH_MARKER in `held` makes it an empty word, which tells a peer nothing. A branch cost 2 % of a small message. */
    OH_DEVICE_METHOD void hold(uint32_t held)
    {
        OH_UNROLL
        for (int k = 0; k < 4; k++) {
            word.w[k] |= held;
        }
    }
    OH_DEVICE_METHOD void store(char *staging, uint32_t offset) const
    {
        oh_marker_store(staging + offset, word);
        if (!Type::has_marker && __builtin_expect(cell != 0, 0)) {
            oh_cell_store(staging + oh_escape_cell(offset), cell);
        }
    }
};

/* All of a word, as it has travelled, has come. */
template <class Type> OH_DEVICE bool oh_is_here(const oh_word16 &word)
{
    bool here = true;
    if constexpr (Type::has_marker) {
        OH_UNROLL
        for (int k = Type::part_words - 1; k < 4; k += Type::part_words) {
            here &= word.w[k] != OH_MARKER;
        }
    } else {
        OH_UNROLL
        for (int k = 0; k < 4; k += 2) {
            here &= (word.w[k] & word.w[k + 1]) != OH_MARKER;
        }
    }
    return here;
}

/* Makes the place of a word that was taken empty again. */
template <class Type> OH_DEVICE void oh_marker_empty(char *staging, uint32_t offset, const oh_word16 &taken)
{
    oh_marker_clear(staging + offset);
    if (!Type::has_marker && __builtin_expect(oh_marked<Type>(taken).cell != 0, 0)) {
        oh_cell_store(staging + oh_escape_cell(offset), 0);
    }
}

/* Calls act(k) for k = from to nranks-1: a static loop to `most`, so that k may index what lives in registers. */
template <int from, int most, class Act> OH_DEVICE void oh_each(int nranks, Act act)
{
    OH_UNROLL
    for (int k = from; k < most; k++) {
        if (k < nranks) {
            act(k);
        }
    }
}

/* Rank of the peer whose staging stands at args.staging[j]. */
OH_DEVICE uint32_t oh_peer_rank(const oh_kernel_args &args, uint32_t nranks, uint32_t j)
{
    const uint32_t rank = args.rank + j;
    return rank >= nranks ? rank - nranks : rank;
}

/*
 * Epoch of the last kernel of this communicator that has ended on this rank, the same number on all ranks; all but its
 * lowest bits is for reports. Every block has its own copy of the word.
 */
OH_DEVICE uint32_t oh_epoch_last(const oh_kernel_args &args)
{
    return oh_word_load(args.staging[0] + OH_EPOCH_OFFSET + oh_block() * sizeof(struct oh_epoch));
}

/*
 * Pipelines. The parts of a call between two ranks overlap: nothing of the program is between them, and no part reads
 * what another part writes. A kernel with an early trigger triggers the launch of the next kernel right after its own
 * wait, so at most two of a communicator are resident. The next part stores its words to the peer before it waits for
 * the kernel before it. That kernel has not stored its epoch yet, so the part counts from the pipeline head, which
 * publishes its own epoch before the first trigger.
 */
OH_DEVICE void oh_pipeline_publish(const oh_kernel_args &args)
{
    if (oh_thread() == 0) { /* the first thread that triggers does so for its block: no other thread of it may */
        oh_word_publish(args.staging[0] + OH_PIPELINE_EPOCH_OFFSET, oh_epoch_last(args) + 1);
        oh_grid_release();
    }
}

/*
 * Epoch of a kernel that has waited for the kernel before it. *held_p: this rank has refused a call that other ranks
 * may have made. A kernel that begins now, as by a replay, has the epoch of theirs: its words would be taken for those
 * of that call.
 */
OH_DEVICE uint32_t oh_epoch_of(const oh_kernel_args &args, uint32_t *held_p)
{
    const uint64_t both = oh_pair_load(args.staging[0] + OH_EPOCH_OFFSET + oh_block() * sizeof(struct oh_epoch));
    *held_p = (uint32_t)(both >> 32);
    return (uint32_t)both + 1;
}

/* Epoch of a kernel that sends early. It is launched with its head, so `held` of the head decides for both. */
OH_DEVICE uint32_t oh_pipeline_epoch(const oh_kernel_args &args)
{
    return oh_word_load(args.staging[0] + OH_PIPELINE_EPOCH_OFFSET) + args.pipeline_position;
}

/*
 * Waits for the kernel before. Up to here a kernel reads its arguments only, since the kernel before may still poll. A
 * kernel that sends early also reads its input and the epoch of its head, and stores what it sends.
 */
OH_DEVICE void oh_kernel_begin(const oh_kernel_args &args)
{
    oh_grid_wait();
    if (args.early_trigger) {
        if (args.pipeline_head && oh_block() == 0) {
            oh_pipeline_publish(args);
        } else {
            oh_grid_release();
        }
    }
}

/* Tells the host that this kernel still waits, and where. */
OH_DEVICE void oh_report(const oh_kernel_args &args, uint32_t looks)
{
    oh_word_store(&args.signal->epoch, oh_epoch_last(args));
    oh_word_store(&args.signal->call, args.call);
    oh_word_store(&args.signal->what, args.what);
    oh_word_store(&args.signal->count, args.told_count);
    oh_word_store(&args.signal->looks, looks);
}

/*
 * The rare part of waiting: nothing here stays in a register of the loop. Host memory answers one warp after the other,
 * in 0.6 us each, and a warp that asks is deaf meanwhile. When all of a large grid asked, those that had waited for a
 * late rank came to be late themselves by more than the patience of the other rank, and then it was that one's turn to
 * wait and to ask, in call after call (doc/experiments.md, "A late rank"). So few warps ask the host, in turns; what
 * one of them has heard the others read in the rank's own memory, kernels that are queued behind this one too.
 */
OH_DEVICE bool oh_has_lost(const oh_kernel_args &args, uint32_t looks)
{
    const uint32_t turn = looks / OH_PATIENCE + (oh_block() * oh_threads() + oh_thread()) / 32;
    char *const heard = args.staging[0] + OH_HEARD_OFFSET;
    return oh_ask_once([&]() {
        if (turn % OH_HOST_TURNS == 0) {
            if (args.signal) {
                oh_report(args, looks);
            }
            const uint32_t abort = oh_word_load(args.abort_word); /* pairs with the release store of the host */
            if (abort != OH_ABORT_NONE) {
                oh_word_store(heard, abort);
            }
        }
        return oh_word_load(heard) != 0;
    });
}

/*
 * Ends a kernel that oh_has_lost. Once a kernel, and not where it polls: each call behind another in the stream loads
 * its code anew, so code that never runs costs time, too.
 */
OH_DEVICE void oh_leave(const oh_kernel_args &args)
{
    if (oh_word_load(args.staging[0] + OH_HEARD_OFFSET) == OH_ABORT_TRAP) {
        oh_trap();
    }
}

/* Once in a while it is time to ask whether this communicator has been aborted. */
struct oh_patience {
    uint32_t looks;

    OH_DEVICE_METHOD bool lost(const oh_kernel_args &args)
    {
        oh_spin_pause();
        return (++looks & (OH_PATIENCE - 1)) == 0 && oh_has_lost(args, looks);
    }
};

/* Until look() finds all that it looks at. False: aborted. */
template <class Look> OH_DEVICE bool oh_poll(const oh_kernel_args &args, oh_patience *patience, Look look)
{
    while (!look()) {
        if (patience->lost(args)) {
            return false;
        }
    }
    return true;
}

OH_DEVICE bool oh_is_escape(const oh_word16 &word, int k)
{
    return word.w[k + 1] == OH_MARKER && word.w[k] == OH_ESCAPE_LOW;
}

/* Turns a word that was taken into what was sent. False: aborted. */
template <class Type>
OH_DEVICE bool oh_marker_decode(const oh_kernel_args &args, uint32_t offset, oh_patience *patience, oh_word16 *word)
{
    if constexpr (!Type::has_marker) {
        if (__builtin_expect(oh_is_escape(*word, 0) || oh_is_escape(*word, 2), 0)) {
            uint32_t cell;
            while ((cell = oh_cell_load(args.staging[0] + oh_escape_cell(offset))) == 0) {
                if (patience->lost(args)) {
                    return false;
                }
            }
            OH_UNROLL
            for (int k = 0; k < 4; k += 2) {
                word->w[k] |= oh_is_escape(*word, k) ? cell >> (k / 2) & 1 : 0;
            }
        }
        OH_UNROLL
        for (int k = 0; k < 4; k += 2) {
            word->w[k] ^= OH_KEY_LOW;
            word->w[k + 1] ^= OH_KEY_HIGH;
        }
    }
    return true;
}

/*
 * The words that the peers send to this rank's staging. If `from` is 0, words of a place are numbered by rank, this
 * rank's own among them. If `from` is 1, they are numbered by peer: word k is from the rank of args.staging[k].
 */
template <class Type, int ranks, int from> struct oh_inbox {
    const oh_kernel_args &args;
    const int nranks;
    uint32_t row[ranks]; /* offset of the row of word k, there before it is needed (oh_settle) */

    OH_DEVICE_METHOD oh_inbox(const oh_kernel_args &kernel_args, int n, uint32_t row_bytes)
        : args(kernel_args), nranks(n)
    {
        OH_UNROLL
        for (int k = from; k < ranks; k++) {
            row[k] = oh_row(args.rank, source(k)) * row_bytes;
            oh_settle(&row[k]);
        }
    }
    /* Where a kernel has room for more ranks than there are, it looks at a row once more: a branch would make each load
     * wait for the one before. */
    OH_DEVICE_METHOD uint32_t source(int k) const
    {
        return from == 0 && k < nranks ? (uint32_t)k : oh_peer_rank(args, nranks, from == 1 && k < nranks ? k : 1);
    }
    OH_DEVICE_METHOD bool is_own(int k) const
    {
        return from == 0 && source(k) == args.rank;
    }
    /* Looks at the peers' words of a place. A poll looks at all that it waits for (look), and then at what it has seen
     * (has_all): a test between would make each load wait for the one before. */
    OH_DEVICE_METHOD void look(uint32_t at, oh_word16 (&word)[ranks]) const
    {
        OH_UNROLL
        for (int k = from; k < ranks; k++) {
            oh_word16 one = oh_word16(); /* stored to word in one place: else its index would be dynamic */
            if (!is_own(k)) {
                oh_marker_load(args.staging[0] + at + row[k], &one);
            }
            word[k] = one;
        }
    }
    /* This rank's word among them. Behind the poll: to bring it in before would be to wait for it to be loaded. */
    OH_DEVICE_METHOD void put_own(const oh_word16 &mine, oh_word16 (&word)[ranks]) const
    {
        OH_UNROLL
        for (int k = from; k < ranks; k++) {
            const bool own = is_own(k);
            OH_UNROLL
            for (int w = 0; w < 4; w++) {
                word[k].w[w] = own ? mine.w[w] : word[k].w[w];
            }
        }
    }
    OH_DEVICE_METHOD bool has_all(const oh_word16 (&word)[ranks]) const
    {
        bool all = true;
        OH_UNROLL
        for (int k = from; k < ranks; k++) {
            const bool own = is_own(k), here = oh_is_here<Type>(word[k]);
            all &= own | here;
        }
        return all;
    }
    /* Turns words that have come into what was sent. False: aborted. */
    OH_DEVICE_METHOD bool decode(uint32_t at, oh_patience *patience, oh_word16 (&word)[ranks]) const
    {
        bool good = true;
        oh_each<from, ranks>(nranks, [&](int k) {
            if (!is_own(k)) {
                good = good && oh_marker_decode<Type>(args, at + row[k], patience, &word[k]);
            }
        });
        return good;
    }
    /* Makes the places of words that were decoded empty again. */
    OH_DEVICE_METHOD void empty(uint32_t at, const oh_word16 (&word)[ranks]) const
    {
        oh_each<from, ranks>(nranks, [&](int k) {
            if (!is_own(k)) {
                oh_marker_empty<Type>(args.staging[0], at + row[k], word[k]);
            }
        });
    }
};

/* Where this rank sends to: of the same area of each peer's staging, its row there. */
template <class Type, int ranks> struct oh_outbox {
    const oh_kernel_args &args;
    const int nranks;
    uint32_t row[ranks];

    OH_DEVICE_METHOD oh_outbox(const oh_kernel_args &kernel_args, int n, uint32_t row_bytes)
        : args(kernel_args), nranks(n)
    {
        oh_each<1, ranks>(nranks, [&](int j) {
            row[j] = oh_row(oh_peer_rank(args, nranks, j), args.rank) * row_bytes;
            oh_settle(&row[j]);
        });
    }
    /* One word (oh_unmarked) to all. held: as in struct oh_epoch. */
    OH_DEVICE_METHOD void send(uint32_t at, const oh_word16 &word, uint32_t held) const
    {
        oh_marked<Type> sent(word);
        sent.hold(held);
        oh_each<1, ranks>(nranks, [&](int j) { sent.store(args.staging[j], at + row[j]); });
    }
    /* Word j to the peer whose staging stands at args.staging[j]. */
    OH_DEVICE_METHOD void send_each(uint32_t at, const oh_word16 (&word)[ranks], uint32_t held) const
    {
        oh_each<1, ranks>(nranks, [&](int j) {
            oh_marked<Type> sent(oh_unmarked<Type>(word[j]));
            sent.hold(held);
            sent.store(args.staging[j], at + row[j]);
        });
    }
};

/*
 * Ends the kernel: writes the epoch into the words b, b + blocks, b + 2 blocks, ... So after any kernel all
 * OH_MAX_BLOCKS words are equal whatever its grid was, without a word being written by two blocks or read by one and
 * written by another in the same kernel.
 */
OH_DEVICE void oh_epoch_finish(const oh_kernel_args &args, uint32_t epoch)
{
    oh_block_sync();   /* every thread has read this block's word, and has all that it needs from the peers */
    oh_grid_release(); /* after the barrier, since the first thread to call it speaks for its block */
    for (uint32_t b = oh_block() + oh_thread() * oh_blocks(); b < OH_MAX_BLOCKS; b += oh_threads() * oh_blocks()) {
        oh_word_store(args.staging[0] + OH_EPOCH_OFFSET + b * sizeof(struct oh_epoch), epoch);
    }
}

template <class Args, bool (*algorithm)(const Args &)> OH_DEVICE void oh_run(const Args &args)
{
    if (!algorithm(args)) {
        oh_leave(oh_base(args));
    }
}

/*
 * Kernels for one type: the sum of one call; any op for a list of calls. Profilers find NCCL's kernels by their names,
 * and so onehop's (PyTorch's Kineto and HTA: ^nccl.*Kernel); src/gpu/kernels.c has the same names.
 */
#define OH_SUM_KERNELS(algorithm_, type_)                                                                              \
    OH_SUM_KERNEL(algorithm_, type_, 2)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 3)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 4)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 5)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 6)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 7)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 8)
#define OH_SUM_KERNEL(algorithm_, type_, n_)                                                                           \
    OH_KERNEL(ncclDevKernel_AllReduce_Sum_##type_##_onehop_##algorithm_##_n##n_, n_, oh_kernel_args,                   \
              oh_run<oh_kernel_args, algorithm_<oh_sum_of<oh_##type_, n_>, oh_kernel_args>>)

/* x_(algorithm, type, suffix, least ranks, most ranks) for the kernels that read the op from their arguments */
#define OH_EACH_ANY_RANKS(x_, algorithm_, type_)                                                                       \
    x_(algorithm_, type_, n2, 2, 2) x_(algorithm_, type_, n3, 3, 3) x_(algorithm_, type_, n4, 4, 4)                    \
        x_(algorithm_, type_, n5to8, 5, 8)

#define OH_ANY_KERNELS(algorithm_, type_) OH_EACH_ANY_RANKS(OH_ANY_KERNEL, algorithm_, type_)
#define OH_ANY_KERNEL(algorithm_, type_, suffix_, least_, most_)                                                       \
    OH_KERNEL(ncclDevKernel_AllReduce_Any_##type_##_onehop_##algorithm_##_##suffix_, most_, oh_kernel_list_args,       \
              oh_run<oh_kernel_list_args, algorithm_<oh_any_of<oh_##type_, least_, most_>, oh_kernel_list_args>>)

/* X(algorithm, type) for the types of one kind */
#define OH_EACH_TYPE(x_, algorithm_) OH_EACH_FLOAT_TYPE(x_, algorithm_) OH_EACH_INTEGER_TYPE(x_, algorithm_)
#define OH_EACH_SUM_TYPE(x_, algorithm_) x_(algorithm_, f32) x_(algorithm_, f16) x_(algorithm_, bf16)
#define OH_EACH_FLOAT_TYPE(x_, algorithm_)                                                                             \
    x_(algorithm_, f64) x_(algorithm_, f32) x_(algorithm_, f16) x_(algorithm_, bf16) x_(algorithm_, e4m3)              \
        x_(algorithm_, e5m2)
#define OH_EACH_INTEGER_TYPE(x_, algorithm_) x_(algorithm_, i8) x_(algorithm_, i32) x_(algorithm_, i64)

#endif
