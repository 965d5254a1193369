/* SPDX-License-Identifier: MIT */
/*
 * broadcast.cu - broadcast in one hop: the root sends its message to all peers
 *
 * Every other rank sends each peer a word for the epochs alone: where a kernel has ended, it has begun on every rank
 * (doc/design.md, "Epochs"). A call list may have a root for each of its calls. A slot has a section for each peer, as
 * long as the message. One thread does, for all words i of the message that are its own:
 *
 *     wait for the previous kernel                           griddepcontrol.wait; before, it only reads its arguments
 *     epoch = own epoch word + 1;  slot = epoch % 2
 *     for each own i:
 *         if this rank is the root of word i, or i = 0:
 *             for each peer p:
 *                 staging of p, slot, section of this rank [i] = root: sendbuff[i], else: any
 *         root: recvbuff[i] = sendbuff[i]
 *     for each own i:
 *         poll own staging, slot, section of the root [i], and if i = 0 of all peers, until none is empty
 *         recvbuff[i] = the word of the root;  empty the words
 *     wait for all threads of the block;  write epoch to the epoch words
 */
#include "kernels/entry_points.cuh"
#include "kernels/exchange.cuh"

/* What one thread does. single: no thread has more than one batch. */
template <int batch, bool single, class Bytes, class Message> struct broadcast_thread {
    typedef typename Bytes::type type;
    static const int ranks = Bytes::ranks;

    const oh_kernel_args &args;
    const Message &message;
    const oh_thread_words<batch> own;
    const oh_receiver<type, ranks, 1> receiver;
    const oh_sender<type, ranks> sender;
    uint32_t section_bytes;
    uint32_t slot; /* offset in staging */
    uint32_t held; /* as in struct oh_epoch */
    oh_spin spin;

    /* Word i comes from its root alone. */
    OH_DEVICE_METHOD bool is_from_root(uint32_t i) const
    {
        return i != 0 && i < own.words && message.root(i) != args.rank;
    }
    OH_DEVICE_METHOD uint32_t place(uint32_t root, uint32_t i) const
    {
        return slot + oh_section_index(args.rank, root) * section_bytes + i * OH_WORD_BYTES;
    }
    /* Word i, if this rank is its root. */
    OH_DEVICE_METHOD oh_word16 load(uint32_t i) const
    {
        return i < own.words && message.root(i) == args.rank ? message.load(i) : oh_word16();
    }
    OH_DEVICE_METHOD void send(uint32_t i, const oh_word16 &word) const
    {
        const bool is_root = message.root(i) == args.rank;
        if (is_root || i == 0) {
            sender.send(slot + i * OH_WORD_BYTES, word, held);
        }
        if (is_root) {
            message.copy_part(0, i, word);
        }
    }
    /* first: this thread's first word, loaded */
    OH_DEVICE_METHOD void send_all(const oh_word16 &first) const
    {
        for (uint32_t i = own.first; i < own.words; i += own.step) {
            send(i, i == own.first ? first : load(i));
            if (single) {
                break;
            }
        }
    }
    /* Takes and empties word 0, which all peers have sent. */
    OH_DEVICE_METHOD bool take_first(oh_word16 (&word)[ranks])
    {
        const uint32_t root = message.root(0);
        if (!receiver.decode(slot, &spin, word)) {
            return false;
        }
        oh_for_each_rank<1, ranks>(receiver.nranks, [&](int j) {
            if (oh_peer_rank(args, receiver.nranks, j) == root) {
                message.store(0, word[j]);
            }
        });
        receiver.reset(slot, word);
        return true;
    }
    OH_DEVICE_METHOD bool take(uint32_t i, oh_word16 *word)
    {
        const uint32_t at = place(message.root(i), i);
        if (!oh_lamport_decode<type>(args, at, &spin, word)) {
            return false;
        }
        message.store(i, *word);
        oh_lamport_reset<type>(args.staging[0], at, *word);
        return true;
    }
    /* Receives the batch that begins at word i. Returns false if the communicator has been aborted. */
    OH_DEVICE_METHOD bool receive(uint32_t i)
    {
        oh_word16 word[batch], first[ranks];
        const bool has_first = i == 0;
        bool good =
            oh_poll(args, &spin, [&]() { /* all loads before the first test */
                                         bool all = held == 0;
                                         OH_UNROLL
                                         for (int b = 0; b < batch; b++) {
                                             word[b] = oh_word16();
                                             if (is_from_root(own.index(i, b))) {
                                                 oh_lamport_load(args.staging[0] + place(message.root(own.index(i, b)),
                                                                                         own.index(i, b)),
                                                                 &word[b]);
                                             }
                                         }
                                         if (has_first) {
                                             receiver.load(slot, first);
                                             all &= receiver.all_arrived(first);
                                         }
                                         OH_UNROLL
                                         for (int b = 0; b < batch; b++) {
                                             all &= oh_lamport_has_arrived<type>(word[b]);
                                         }
                                         return all;
            });
        good = good && (!has_first || take_first(first));
        OH_UNROLL
        for (int b = 0; b < batch; b++) {
            good = good && (!is_from_root(own.index(i, b)) || take(own.index(i, b), &word[b]));
        }
        return good;
    }
    OH_DEVICE_METHOD bool receive_all()
    {
        for (uint32_t i = own.first; i < own.words; i += own.stride()) {
            if (!receive(i)) {
                return false;
            }
            if (single) {
                break;
            }
        }
        return true;
    }
};

template <int batch, bool single, class Bytes, class Message>
OH_DEVICE bool broadcast_words(const oh_kernel_args &args, const Message &message)
{
    typedef typename Bytes::type type;
    static const int ranks = Bytes::ranks;
    const uint32_t nranks = Bytes::nranks(args);
    const uint32_t words = message.words(), section_bytes = oh_section_bytes(words);
    const oh_thread_words<batch> own = {words, oh_block() * oh_threads() + oh_thread(), oh_blocks() * oh_threads()};
    const oh_receiver<type, ranks, 1> receiver(args, (int)nranks, section_bytes);
    const oh_sender<type, ranks> sender(args, (int)nranks, section_bytes);

    oh_materialize_addresses(message.input(own.first), oh_epoch_address(args));
    const uint32_t trigger = oh_kernel_begin(args);
    broadcast_thread<batch, single, Bytes, Message> thread = {args,          message, own, receiver, sender,
                                                              section_bytes, 0,       0,   {0}};
    const oh_word16 first = thread.load(own.first); /* in flight before the epoch is loaded */
    const uint32_t epoch = oh_epoch_of(args, &thread.held);
    thread.slot = OH_SLOT_OFFSET(epoch % 2, nranks);
    thread.send_all(first);
    if (!thread.receive_all()) {
        return false;
    }
    /* Of a list the first thread may have words of this rank alone, and others of its block the peer's. */
    oh_epoch_finish<Message::has_one_root ? ranks : 0>(args, epoch, trigger);
    return true;
}

/* Returns false if the communicator has been aborted. */
template <class Bytes, class Args> OH_DEVICE bool broadcast(const Args &args)
{
    typedef typename Bytes::type type;
    typedef oh_whole_message<type> whole_t;
    const auto *call = oh_only_call(args);
    const oh_kernel_args &base = oh_base(args);
    if (__builtin_expect(call && whole_t::fits(*call), 1)) {
        const whole_t message(*call);
        if (message.words() <= oh_blocks() * oh_threads()) {
            return broadcast_words<1, true, Bytes>(base, message);
        }
        return broadcast_words<2, false, Bytes>(base, message);
    }
    return broadcast_words<1, false, Bytes>(base, typename oh_message_of<Args, type>::message(args));
}

OH_BYTE_KERNELS(Broadcast, broadcast)
