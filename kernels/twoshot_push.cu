/* SPDX-License-Identifier: MIT */
/*
 * twoshot_push.cu - two hops in full 16-byte words, ordered by one flag per block and peer
 *
 * For large messages: no bytes are lost to flags in the data. A message is cut into rounds that fit the staging
 * memory; each round is scatter, flag, sum, flag, copy out, with an epoch of its own. Block b of every rank works on
 * the same words, so it waits for block b of the peers only.
 * Area layout: scatter [source rank][word], gather [owner rank][word], both with a fixed row length (row_words), so
 * that in all rounds of one call a place in staging belongs to one block.
 *
 * One pair of areas is enough. A block writes the scatter area of a peer again when it has that peer's flag of the
 * gather before, which the peer sets after reading the scatter; it writes the gather area again when it has the
 * peer's flag of the next scatter, which the peer sets after copying the gather out. Between calls, where blocks are
 * dealt out anew, the same holds for whole kernels.
 */
#include "kernels/protocol.cuh"

/* args.staging[j] for a j that differs from thread to thread: selects, where an index would go through local memory. */
template <int most> OH_DEVICE char *staging_of(const oh_kernel_args &args, uint32_t j)
{
    char *staging = args.staging[0];
    oh_each<1, most>(most, [&](int k) { staging = k == (int)j ? args.staging[k] : staging; });
    return staging;
}

/*
 * Tells block b of every peer that this block's part is written, and waits until they say the same. One thread for
 * each peer, side by side: a release at system scope takes a microsecond, and n-1 of them in turn would add up.
 */
template <int most>
OH_DEVICE bool push_exchange(const oh_kernel_args &args, uint32_t nranks, int phase, uint32_t flag,
                             oh_patience *patience)
{
    bool lost = false;

    oh_block_sync(); /* all threads' stores come before the release store below */
    for (uint32_t j = oh_thread() + 1; j < nranks; j += oh_threads()) {
        oh_flag_store(oh_flag_at(staging_of<most>(args, j), phase, oh_block(), args.rank), flag);
    }
    for (uint32_t j = oh_thread() + 1; j < nranks; j += oh_threads()) {
        const char *at = oh_flag_at(args.staging[0], phase, oh_block(), oh_peer_rank(args, nranks, j));
        while (!lost && oh_flag_load(at) != flag) {
            lost = patience->lost(args);
        }
    }
    return !oh_block_any(lost); /* the acquire loads come before all threads' loads of the data */
}

template <class Reduction, class Args> OH_DEVICE void twoshot_push(const Args &args)
{
    const uint32_t nranks = Reduction::nranks(args);
    const uint32_t row_words = OH_PUSH_ROUND_BYTES / OH_WORD_BYTES / nranks;
    const uint32_t row_bytes = row_words * OH_WORD_BYTES;

    oh_grid_wait();
    const Reduction reduction(args);
    const oh_message<typename Reduction::type, oh_word16> message(args);
    const uint32_t words = message.words();
    const uint32_t first = oh_block() * oh_threads() + oh_thread();
    const uint32_t step = oh_blocks() * oh_threads();
    uint32_t epoch = oh_epoch_last(args);
    oh_patience patience = {0};

    for (uint32_t base = 0; base < words; base += nranks * row_words) {
        const uint32_t left = words - base;
        const uint32_t round = left < nranks * row_words ? left : nranks * row_words;
        const uint32_t chunk = (round + nranks - 1) / nranks;

        epoch = oh_epoch_after(epoch);
        const uint32_t flag = epoch | OH_FLAG_BIT;
        const uint32_t scatter = OH_PUSH_OFFSET;
        const uint32_t gather = OH_PUSH_OFFSET + OH_PUSH_ROUND_BYTES;
        oh_sweep(args, epoch, oh_blocks(), oh_blocks());

        for (uint32_t i = first; i < chunk; i += step) {
            /* All loads before the first store, which the compiler cannot move them across. */
            oh_word16 theirs[Reduction::ranks];
            oh_each<1, Reduction::ranks>(nranks, [&](int j) {
                theirs[j] = reduction.prepare(message.load(base + oh_peer_rank(args, nranks, j) * chunk + i));
            });
            oh_each<1, Reduction::ranks>(nranks, [&](int j) {
                if (oh_peer_rank(args, nranks, j) * chunk + i < round) {
                    oh_push_store(args.staging[j] + scatter + args.rank * row_bytes + i * OH_WORD_BYTES, theirs[j]);
                }
            });
        }
        if (!push_exchange<Reduction::ranks>(args, nranks, 0, flag, &patience)) {
            return;
        }

        for (uint32_t i = first; i < chunk; i += step) {
            const uint32_t word = args.rank * chunk + i;
            if (word >= round) {
                break;
            }
            const oh_word16 mine = reduction.prepare(message.load(base + word));
            oh_word16 addend[Reduction::ranks] = {};
            oh_each<0, Reduction::ranks>(nranks, [&](int r) {
                addend[r] = r == (int)args.rank
                                ? mine
                                : oh_push_load(args.staging[0] + scatter + r * row_bytes + i * OH_WORD_BYTES);
            });
            const oh_word16 sum = reduction.combine(addend);
            oh_each<1, Reduction::ranks>(nranks, [&](int j) {
                oh_push_store(args.staging[j] + gather + args.rank * row_bytes + i * OH_WORD_BYTES, sum);
            });
            message.store(base + word, sum);
        }
        if (!push_exchange<Reduction::ranks>(args, nranks, 1, flag, &patience)) {
            return;
        }

        for (uint32_t i = first; i < chunk; i += step) {
            oh_word16 sum[Reduction::ranks];
            oh_each<0, Reduction::ranks>(nranks, [&](int r) {
                sum[r] = oh_push_load(args.staging[0] + gather + r * row_bytes + i * OH_WORD_BYTES);
            });
            oh_each<0, Reduction::ranks>(nranks, [&](int r) {
                if (r != (int)args.rank && r * chunk + i < round) {
                    message.store(base + r * chunk + i, sum[r]);
                }
            });
        }
    }
    oh_epoch_finish(args, epoch);
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, twoshot_push)
OH_EACH_FLOAT_TYPE(OH_ANY_KERNELS, twoshot_push)
OH_EACH_INTEGER_TYPE(OH_ANY_KERNELS, twoshot_push)
