/* SPDX-License-Identifier: MIT */
/*
 * reducescatter.cu - reduce-scatter in one hop: each rank sends word i of a peer's part to that peer, and reduces its
 * own part
 *
 * A slot has a section for each peer, as long as a part. One thread does, for all words i of a part that are its own:
 *
 *     wait for the previous kernel                           griddepcontrol.wait; before, it only reads its arguments
 *     epoch = own epoch word + 1;  slot = epoch % 2
 *     for each own i:
 *         for each peer p:
 *             staging of p, slot, section of this rank [i] = word i of part p of sendbuff
 *     for each own i:
 *         poll own staging, slot, section of each peer [i] until none is empty
 *         word[own rank] = word i of the own part of sendbuff
 *         recvbuff[i] = word[0] + word[1] + ... + word[n-1]  rank order, rounded once: the bits of an allreduce
 *         empty the words
 *     wait for all threads of the block;  write epoch to the epoch words
 *
 * quad.cuh has the same for small messages of three and four ranks.
 */
#include "kernels/entry_points.cuh"
#include "kernels/quad.cuh"
#include "kernels/scatter.cuh"

/* The parts of sendbuff. */
template <class Message> struct sendbuff_parts {
    const Message &message;

    OH_DEVICE_METHOD const char *input(uint32_t owner, uint32_t i) const
    {
        return message.input_part(owner, i);
    }
    OH_DEVICE_METHOD oh_word16 load(uint32_t owner, uint32_t i, bool streams = false) const
    {
        return message.load_part(owner, i, streams);
    }
};

template <int batch, bool single, class Reduction, class Message>
OH_DEVICE bool reducescatter_words(const oh_kernel_args &args, const Message &message)
{
    typedef typename Reduction::type type;
    static const int ranks = Reduction::ranks;
    typedef sendbuff_parts<Message> parts_t;
    const parts_t parts = {message};
    const uint32_t nranks = Reduction::nranks(args);
    const uint32_t words = message.words(), section_bytes = oh_section_bytes(words);
    const oh_thread_words<batch> own = {words, oh_first_word<Reduction, Message>(words), oh_blocks() * oh_threads()};
    const oh_operand_receiver<type, ranks> receiver(args, (int)nranks, section_bytes);
    const oh_sender<type, ranks> sender(args, (int)nranks, section_bytes);

    if (single) {
        oh_for_each_rank<1, ranks>((int)nranks, [&](int j) {
            oh_materialize_addresses(parts.input(oh_peer_rank(args, nranks, j), own.first), oh_epoch_address(args));
        });
    }
    const uint32_t trigger = oh_kernel_begin(args);
    scatter_thread<batch, single, Reduction, parts_t> thread = {args,   parts,           (int)nranks, own, receiver,
                                                                sender, Reduction(args), {0},         0};
    oh_word16 theirs[batch][ranks];
    thread.load(own.first, theirs); /* in flight before the epoch is loaded */
    const uint32_t epoch = oh_epoch_of(args, &thread.held);
    const uint32_t slot = OH_SLOT_OFFSET(epoch % 2, nranks);
    thread.scatter(slot, theirs);
    if (!thread.reduce(slot, [&](uint32_t i, const oh_word16 &sum) { message.store(i, sum); })) {
        return false;
    }
    oh_epoch_finish<ranks>(args, epoch, trigger);
    return true;
}

/* Returns false if the communicator has been aborted. */
template <class Reduction, class Args> OH_DEVICE bool reducescatter(const Args &args)
{
    typedef typename Reduction::type type;
    typedef oh_whole_message<type> whole_t;
    const auto *call = oh_only_call(args);
    const oh_kernel_args &base = oh_base(args);
    if (__builtin_expect(call && whole_t::fits_parts(*call), 1)) {
        const whole_t message(*call);
        if constexpr (oh_has_quads<Reduction>::value) {
            if (oh_fits_quads(message.words())) {
                return oh_quad_hop<Reduction>(base, message,
                                              [&](uint32_t k, uint32_t i) { return message.load_part(k, i); });
            }
        }
        if (message.words() <= oh_blocks() * oh_threads()) {
            return reducescatter_words<1, true, Reduction>(base, message);
        }
        if constexpr (Reduction::is_sum) {
            return reducescatter_words<oh_batch<Reduction::ranks>::words, false, Reduction>(base, message);
        }
    }
    return reducescatter_words<1, false, Reduction>(base, typename oh_message_of<Args, type>::message(args));
}

OH_EACH_SUM_TYPE(OH_SUM_KERNELS, ReduceScatter, oneshot, reducescatter)
OH_EACH_TYPE(OH_ANY_KERNELS, ReduceScatter, oneshot, reducescatter)
