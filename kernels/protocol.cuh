/* SPDX-License-Identifier: MIT */
/*
 * protocol.cuh - what the algorithms share: epochs, waiting, receiving and sending words, and the kernels' names
 */
#ifndef OH_KERNELS_PROTOCOL_CUH_
#define OH_KERNELS_PROTOCOL_CUH_

#include "kernels/lamport.cuh"
#include "kernels/message.cuh"

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

/* Every block has its own copy of the epoch. */
OH_DEVICE const char *oh_epoch_address(const oh_kernel_args &args)
{
    return args.staging[0] + OH_EPOCH_OFFSET + oh_block() * sizeof(struct oh_epoch);
}

/*
 * Epoch of the last kernel of this communicator that has ended on this rank, equal on all ranks. Only its lowest bit
 * matters; reports use all.
 */
OH_DEVICE uint32_t oh_epoch_last(const oh_kernel_args &args)
{
    return oh_word_load(oh_epoch_address(args));
}

/*
 * Epoch of a kernel that has waited for the previous kernel. *held_p: not 0 if this rank has refused a call that other
 * ranks may have made. A kernel that begins now, as by a replay, has the epoch of that call: its words would be
 * mistaken for the call's.
 */
OH_DEVICE uint32_t oh_epoch_of(const oh_kernel_args &args, uint32_t *held_p)
{
    const uint64_t pair = oh_pair_load(oh_epoch_address(args));
    *held_p = (uint32_t)(pair >> 32);
    return (uint32_t)pair + 1;
}

/*
 * Waits for the previous kernel. Before its wait a kernel reads its arguments only, since the previous kernel may still
 * poll. A kernel triggers early only after its own wait, so at most two kernels of a communicator are resident.
 */
OH_DEVICE void oh_kernel_begin(const oh_kernel_args &args)
{
    oh_pdl_wait();
    if (args.trigger == OH_TRIGGER_EARLY) {
        oh_pdl_trigger();
    }
}

/* Reports to the host that this kernel still waits, and in which call. */
OH_DEVICE void oh_stall_report(const oh_kernel_args &args, uint32_t spins)
{
    oh_word_store(&args.control->epoch, oh_epoch_last(args));
    oh_word_store(&args.control->call_number, args.call_number);
    oh_word_store(&args.control->signature, args.signature);
    oh_word_store(&args.control->report_count, args.report_count);
    oh_word_store(&args.control->spins, spins);
}

/*
 * Returns whether the communicator has been aborted. The rare part of waiting: nothing here stays in a register of the
 * loop that polls. Reads of host memory serialize across warps, 0.6 us each, and a warp that reads does not poll
 * meanwhile. When all warps of a large grid read it, those that had waited for a late rank became late themselves by
 * more than the spins of the other rank, whose turn it then was to wait and to read, call after call
 * (doc/dev/experiments.md, "A late rank"). So one warp in OH_HOST_POLL_STRIDE reads the host's abort flag, in turns. A
 * warp that finds it set copies it to device memory of this rank, which the other warps read, those of queued kernels
 * too.
 */
OH_DEVICE bool oh_abort_check(const oh_kernel_args &args, uint32_t spins)
{
    const uint32_t turn = spins / OH_SPINS_BEFORE_CHECK_ABORT + (oh_block() * oh_threads() + oh_thread()) / 32;
    char *const abort_seen = args.staging[0] + OH_ABORT_SEEN_OFFSET;
    return oh_warp_once([&]() {
        if (turn % OH_HOST_POLL_STRIDE == 0) {
            if (args.control) {
                oh_stall_report(args, spins);
            }
            const uint32_t abort = oh_word_load(args.abort_flag); /* pairs with oh_comm_release_kernels() */
            if (abort != OH_ABORT_NONE) {
                oh_word_store(abort_seen, abort);
            }
        }
        return oh_word_load(abort_seen) != 0;
    });
}

/*
 * Ends a kernel that was aborted. Called once a kernel, not where it polls: each kernel of a stream loads its code
 * anew, so code that never runs costs time, too.
 */
OH_DEVICE void oh_abort_leave(const oh_kernel_args &args)
{
    if (oh_word_load(args.staging[0] + OH_ABORT_SEEN_OFFSET) == OH_ABORT_TRAP) {
        oh_trap();
    }
}

/* A loop that polls: counts its spins, and checks now and then whether the communicator has been aborted. */
struct oh_spin {
    uint32_t spins;

    OH_DEVICE_METHOD bool is_aborted(const oh_kernel_args &args)
    {
        oh_spin_pause();
        return (++spins & (OH_SPINS_BEFORE_CHECK_ABORT - 1)) == 0 && oh_abort_check(args, spins);
    }
};

/* Polls until have_arrived() returns true. Returns false if the communicator has been aborted. */
template <class HaveArrived> OH_DEVICE bool oh_poll(const oh_kernel_args &args, oh_spin *spin, HaveArrived have_arrived)
{
    while (!have_arrived()) {
        if (spin->is_aborted(args)) {
            return false;
        }
    }
    return true;
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
        oh_encoded<Type> sent(word);
        sent.hold(held);
        oh_for_each_rank<1, ranks>(nranks, [&](int j) { sent.store(args.staging[j], at + section[j]); });
    }
    /* Sends word j to the peer whose staging is args.staging[j]. */
    OH_DEVICE_METHOD void send_each(uint32_t at, const oh_word16 (&word)[ranks], uint32_t held) const
    {
        oh_for_each_rank<1, ranks>(nranks, [&](int j) {
            oh_encoded<Type> sent(oh_canonical<Type>(word[j]));
            sent.hold(held);
            sent.store(args.staging[j], at + section[j]);
        });
    }
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
 * Ends the kernel: block b writes the epoch into the words b, b + blocks, b + 2 blocks, ... So after a kernel of any
 * grid all OH_MAX_BLOCKS words are equal. In one kernel no word is written by two blocks, or read by one block and
 * written by another.
 */
OH_DEVICE void oh_epoch_finish(const oh_kernel_args &args, uint32_t epoch)
{
    oh_block_sync(); /* all threads have read this block's epoch word, and have received all their words */
    if (args.trigger == OH_TRIGGER_LATE) {
        oh_pdl_trigger(); /* after the barrier: the first thread that triggers does so for its block */
    }
    for (uint32_t b = oh_block() + oh_thread() * oh_blocks(); b < OH_MAX_BLOCKS; b += oh_threads() * oh_blocks()) {
        oh_word_store(args.staging[0] + OH_EPOCH_OFFSET + b * sizeof(struct oh_epoch), epoch);
    }
}

template <class Args, bool (*algorithm)(const Args &)> OH_DEVICE void oh_run(const Args &args)
{
    if (!algorithm(args)) {
        oh_abort_leave(oh_base(args));
    }
}

/*
 * The kernels of one type: the sum of one call; any op of a call list. Profilers recognise NCCL's kernels, and so
 * onehop's, by their names (PyTorch's Kineto and HTA: ^nccl.*Kernel). src/gpu/kernels.c has the same names.
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
