/* SPDX-License-Identifier: MIT */
/*
 * allgather.cu - all-gather in one hop: each rank sends its message to all peers
 *
 * A slot has a section for each peer, as long as the message. One thread does, for all words i of a message that are
 * its own:
 *
 *     wait for the previous kernel                           griddepcontrol.wait; before, it only reads its arguments
 *     epoch = own epoch word + 1;  slot = epoch % 2
 *     for each own i:
 *         for each peer p:
 *             staging of p, slot, section of this rank [i] = sendbuff[i]
 *         word i of the own part of recvbuff = sendbuff[i]
 *     for each own i:
 *         poll own staging, slot, section of each peer p [i] until none is empty
 *         word i of part p of recvbuff = the word of p;  empty the word
 *     wait for all threads of the block;  write epoch to the epoch words
 *
 * Where a grid has a thread for each word and peer (allgather_pairs), a block has one peer that it sends to and one
 * that it receives from, so that a thread waits for one word instead of n - 1.
 */
#include "kernels/entry_points.cuh"
#include "kernels/exchange.cuh"

template <int batch, class Message>
OH_DEVICE void allgather_load(const Message &message, const oh_thread_words<batch> &own, uint32_t i,
                              oh_word16 (&mine)[batch])
{
    OH_UNROLL
    for (int b = 0; b < batch; b++) {
        mine[b] = message.load(own.index(i, b));
    }
}

template <int batch, bool single, class Bytes, class Message>
OH_DEVICE bool allgather_words(const oh_kernel_args &args, const Message &message)
{
    typedef typename Bytes::type type;
    static const int ranks = Bytes::ranks;
    const uint32_t nranks = Bytes::nranks(args);
    const uint32_t words = message.words(), section_bytes = oh_section_bytes(words);
    const oh_thread_words<batch> own = {words, oh_block() * oh_threads() + oh_thread(), oh_blocks() * oh_threads()};
    const oh_receiver<type, ranks, 1> receiver(args, (int)nranks, section_bytes);
    const oh_sender<type, ranks> sender(args, (int)nranks, section_bytes);

    OH_UNROLL
    for (int b = 0; b < batch; b++) {
        oh_materialize_addresses(message.input(own.index(own.first, b)), oh_epoch_address(args));
    }
    const uint32_t trigger = oh_kernel_begin(args);
    oh_word16 mine[batch];
    oh_spin spin = {0};
    uint32_t held;
    allgather_load(message, own, own.first, mine); /* in flight before the epoch is loaded */
    const uint32_t epoch = oh_epoch_of(args, &held);
    const uint32_t slot = OH_SLOT_OFFSET(epoch % 2, nranks);
    for (uint32_t i = own.first; i < words; i += own.stride()) {
        if (i != own.first) {
            allgather_load(message, own, i, mine);
        }
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            if (own.has(i, b)) {
                sender.send(slot + own.index(i, b) * OH_WORD_BYTES, mine[b], held);
                message.copy_part(args.rank, own.index(i, b), mine[b]);
            }
        }
        if (single) {
            break;
        }
    }
    const auto take = [&](uint32_t source, uint32_t i, const oh_word16 &word) { message.store_part(source, i, word); };
    const auto empty = [&](uint32_t at, const oh_word16(&word)[ranks]) { receiver.reset(at, word); };
    if (!oh_gather<batch, single>(receiver, own, slot, held, &spin, take, empty)) {
        return false;
    }
    oh_epoch_finish<ranks>(args, epoch, trigger);
    return true;
}

/* One word of a thread, from this rank to the rank `distance` after it, and one from the rank as far before. */
template <class Bytes, class Message> OH_DEVICE bool allgather_pairs(const oh_kernel_args &args, const Message &message)
{
    typedef typename Bytes::type type;
    const uint32_t nranks = Bytes::nranks(args), distance = 1 + oh_block() % (nranks - 1);
    const uint32_t i = oh_block() / (nranks - 1) * oh_threads() + oh_thread(), at = i * OH_WORD_BYTES;
    const uint32_t section_bytes = oh_section_bytes(message.words());
    const uint32_t target = oh_peer_rank(args, nranks, distance),
                   source = oh_peer_rank(args, nranks, nranks - distance);
    uint32_t sent_at = oh_section_index(target, args.rank) * section_bytes + at;
    uint32_t received_at = oh_section_index(args.rank, source) * section_bytes + at;
    oh_materialize(&sent_at);
    oh_materialize(&received_at);

    oh_materialize_addresses(message.input(i), oh_epoch_address(args));
    const uint32_t trigger = oh_kernel_begin(args);
    oh_spin spin = {0};
    uint32_t held;
    const oh_word16 mine = message.load(i); /* in flight before the epoch is loaded */
    const uint32_t epoch = oh_epoch_of(args, &held);
    const uint32_t slot = OH_SLOT_OFFSET(epoch % 2, nranks);
    if (i < message.words()) {
        oh_encoded<type>(mine).send(args.staging[distance], slot + sent_at, held);
        if (distance == 1) {
            message.copy_part(args.rank, i, mine);
        }
        oh_word16 word;
        const bool good = oh_poll(args, &spin, [&]() {
            oh_lamport_load(args.staging[0] + slot + received_at, &word);
            return held == 0 && oh_lamport_has_arrived<type>(word);
        });
        if (!good || !oh_lamport_decode<type>(args, slot + received_at, &spin, &word)) {
            return false;
        }
        message.store_part(source, i, word);
        oh_lamport_reset<type>(args.staging[0], slot + received_at, word);
    }
    oh_epoch_finish<Bytes::ranks>(args, epoch, trigger);
    return true;
}

/* Returns false if the communicator has been aborted. */
template <class Bytes, class Args> OH_DEVICE bool allgather(const Args &args)
{
    typedef typename Bytes::type type;
    typedef oh_whole_message<type> whole_t;
    const auto *call = oh_only_call(args);
    const oh_kernel_args &base = oh_base(args);
    if (__builtin_expect(call && whole_t::fits_parts(*call), 1)) {
        const whole_t message(*call);
        if (message.words() <= oh_blocks() / (Bytes::nranks(base) - 1) * oh_threads()) {
            return allgather_pairs<Bytes>(base, message);
        }
        if (Bytes::ranks > 2 && message.words() <= oh_blocks() * oh_threads()) {
            return allgather_words<1, true, Bytes>(base, message);
        }
        return allgather_words<oh_batch<Bytes::ranks>::words, false, Bytes>(base, message);
    }
    return allgather_words<1, false, Bytes>(base, typename oh_message_of<Args, type>::message(args));
}

OH_BYTE_KERNELS(AllGather, allgather)
