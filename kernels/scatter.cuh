/* SPDX-License-Identifier: MIT */
/*
 * scatter.cuh - the hop in which each rank sends every peer the words of the peer's part, and reduces its own part
 *
 * The whole of a reduce-scatter, and the first hop of two-shot, in which the parts are chunks of the message.
 */
#ifndef OH_KERNELS_SCATTER_CUH_
#define OH_KERNELS_SCATTER_CUH_

#include "kernels/exchange.cuh"

/*
 * What one thread does. single: no thread has more than one batch; code without loops is faster. Parts: load(owner, i,
 * streams) is word i of a rank's part in this rank's buffer. The words of a larger message stream (oh_user_load).
 */
template <int batch, bool single, class Reduction, class Parts> struct scatter_thread {
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;

    const oh_kernel_args &args;
    const Parts &parts;
    const int nranks;
    const oh_thread_words<batch> own; /* of a part */
    const oh_operand_receiver<type, ranks> receiver;
    const oh_sender<type, ranks> sender;
    const Reduction reduction;
    oh_spin spin;
    uint32_t held; /* as in struct oh_epoch */

    /* Loads the words for each peer's part. Words outside the part must not be read: another thread may be storing its
     * results there. */
    OH_DEVICE_METHOD void load(uint32_t i, oh_word16 (&theirs)[batch][ranks]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            const bool exists = own.index(i, b) < own.words;
            oh_for_each_rank<1, ranks>(nranks, [&](int j) {
                theirs[b][j] =
                    exists ? parts.load(oh_peer_rank(args, nranks, j), own.index(i, b), !single) : oh_word16();
            });
        }
    }
    OH_DEVICE_METHOD void send(uint32_t slot, uint32_t i, oh_word16 (&theirs)[batch][ranks]) const
    {
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (own.has(i, b)) {
                oh_for_each_rank<1, ranks>(nranks, [&](int j) { theirs[b][j] = reduction.prepare(theirs[b][j]); });
                sender.send_each(slot + own.index(i, b) * OH_WORD_BYTES, theirs[b], held);
            }
        }
    }
    /* Sends all words of the peers' parts. theirs: the first batch, loaded. */
    OH_DEVICE_METHOD void scatter(uint32_t slot, oh_word16 (&theirs)[batch][ranks]) const
    {
        for (uint32_t i = own.first; i < own.words; i += own.stride()) {
            if (i != own.first) {
                load(i, theirs); /* all loads before the first store: the compiler cannot move loads across it */
            }
            send(slot, i, theirs);
            if (single) {
                break;
            }
        }
    }
    /* Reduces this rank's part: take(i, word) gets word i of the result. Returns false if the communicator has been
     * aborted. */
    template <class Take> OH_DEVICE_METHOD bool reduce(uint32_t slot, Take take)
    {
        for (uint32_t i = own.first; i < own.words; i += own.stride()) {
            oh_word16 mine[batch], addend[batch][ranks];
            OH_UNROLL
            for (int b = 0; b < batch; b++) { /* arrives while the kernel waits for the peers' words */
                mine[b] = parts.load(args.rank, own.index(i, own.has(i, b) ? b : 0), !single);
            }
            if (!oh_receive<batch, ranks>(receiver, own, slot, i, held, &spin, addend)) {
                return false;
            }
            OH_UNROLL
            for (int b = 0; b < batch; b++) {
                if (own.has(i, b)) {
                    oh_word16 operand[ranks];
                    receiver.operands(oh_canonical<type>(reduction.prepare(mine[b])), addend[b], operand);
                    take(own.index(i, b), reduction.combine(operand));
                    receiver.reset(slot + own.index(i, b) * OH_WORD_BYTES, addend[b]);
                }
            }
            if (single) {
                break;
            }
        }
        return true;
    }
};

#endif
