/* SPDX-License-Identifier: MIT */
/*
 * message.cuh - a call's local buffers, or those of a call list, as 16-byte words
 */
#ifndef OH_KERNELS_MESSAGE_CUH_
#define OH_KERNELS_MESSAGE_CUH_

#include "kernels/reduce.cuh"

/* The parts of the ranks in the larger buffer, of a message that `stride` separates; and the root. */
template <class Message> struct oh_message_parts {
    static const bool has_one_root = true;

    OH_DEVICE_METHOD const Message &whole_buffers() const
    {
        return static_cast<const Message &>(*this);
    }
    /* Where load_part loads a word from. */
    OH_DEVICE_METHOD const char *input_part(uint32_t rank, uint32_t i) const
    {
        const Message &buffers = whole_buffers();
        return buffers.input(i) + rank * buffers.stride;
    }
    /* Word i of a rank's part. streams: as for oh_user_load. */
    OH_DEVICE_METHOD oh_word16 load_part(uint32_t rank, uint32_t i, bool streams = false) const
    {
        Message part(whole_buffers());
        part.sendbuff += rank * part.stride;
        return part.load(i, streams);
    }
    OH_DEVICE_METHOD void store_part(uint32_t rank, uint32_t i, const oh_word16 &word) const
    {
        Message part(whole_buffers());
        part.recvbuff += rank * part.stride;
        part.store(i, word);
    }
    /* The same for a word of sendbuff, unless the buffers are in place. */
    OH_DEVICE_METHOD void copy_part(uint32_t rank, uint32_t i, const oh_word16 &word) const
    {
        const Message &buffers = whole_buffers();
        if (buffers.recvbuff + rank * buffers.stride != buffers.sendbuff) {
            store_part(rank, i, word);
        }
    }
    /* The rank that broadcasts word i. */
    OH_DEVICE_METHOD uint32_t root(uint32_t) const
    {
        return whole_buffers().broadcast_root;
    }
};

/*
 * A call's local buffers as arrays of words. The pointers may have any alignment of the element, and the last word may
 * be partly outside the message. The peers see no difference.
 */
template <class Type> struct oh_message : oh_message_parts<oh_message<Type>> {
    typedef typename Type::element element;
    static const bool is_whole = false;
    static const uint32_t per_word = OH_WORD_BYTES / sizeof(element);

    const char *sendbuff;
    char *recvbuff;
    uint64_t count, stride;
    uint32_t broadcast_root;

    /* call: struct oh_kernel_args or oh_list_item */
    template <class Call>
    explicit OH_DEVICE_METHOD oh_message(const Call &call)
        : sendbuff(static_cast<const char *>(call.sendbuff)), recvbuff(static_cast<char *>(call.recvbuff)),
          count(call.count), stride(call.stride), broadcast_root(call.root)
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
    static OH_INLINE element get_element(const oh_word16 &word, uint32_t k)
    {
        if constexpr (sizeof(element) == 8) {
            return word.w[2 * k] | (uint64_t)word.w[2 * k + 1] << 32;
        } else {
            const uint32_t per_32 = 4 / sizeof(element);
            return (element)(word.w[k / per_32] >> (k % per_32 * 8 * sizeof(element)));
        }
    }
    static OH_INLINE void set_element(oh_word16 *word, uint32_t k, element value)
    {
        if constexpr (sizeof(element) == 8) {
            word->w[2 * k] = (uint32_t)value;
            word->w[2 * k + 1] = (uint32_t)(value >> 32);
        } else {
            const uint32_t per_32 = 4 / sizeof(element);
            word->w[k / per_32] |= (uint32_t)value << (k % per_32 * 8 * sizeof(element));
        }
    }

    OH_DEVICE_METHOD const char *input(uint32_t i) const
    {
        return sendbuff + (uint64_t)i * OH_WORD_BYTES;
    }

    /* Word i of what this rank sends; zeros where there is no message. streams: as for oh_user_load. */
    OH_DEVICE_METHOD oh_word16 load(uint32_t i, bool streams = false) const
    {
        oh_word16 word;
        if (__builtin_expect(whole(sendbuff, i), 1)) {
            oh_user_load(input(i), &word, streams);
            return word;
        }
        word = oh_word16();
        OH_UNROLL
        for (uint32_t k = 0; k < per_word; k++) {
            const uint64_t at = (uint64_t)i * per_word + k;
            if (at < count) {
                set_element(&word, k, reinterpret_cast<const element *>(sendbuff)[at]);
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
                reinterpret_cast<element *>(recvbuff)[at] = get_element(word, k);
            }
        }
    }
};

/* A message of whole, aligned words, as most are: the same, an instruction for each load and store. */
template <class Type> struct oh_whole_message : oh_message_parts<oh_whole_message<Type>> {
    static const bool is_whole = true;
    static const uint32_t per_word = OH_WORD_BYTES / sizeof(typename Type::element);

    const char *sendbuff;
    char *recvbuff;
    uint32_t count; /* words */
    uint64_t stride;
    uint32_t broadcast_root;

    template <class Call>
    explicit OH_DEVICE_METHOD oh_whole_message(const Call &call)
        : sendbuff(static_cast<const char *>(call.sendbuff)), recvbuff(static_cast<char *>(call.recvbuff)),
          count((uint32_t)(call.count / per_word)), stride(call.stride), broadcast_root(call.root)
    {
    }
    template <class Call> static OH_INLINE bool fits(const Call &call)
    {
        const uintptr_t buffers =
            reinterpret_cast<uintptr_t>(call.sendbuff) | reinterpret_cast<uintptr_t>(call.recvbuff);
        return ((uint32_t)buffers % OH_WORD_BYTES | (uint32_t)call.count % per_word) == 0;
    }
    template <class Call> static OH_INLINE bool fits_parts(const Call &call)
    {
        return fits(call) && (uint32_t)call.stride % OH_WORD_BYTES == 0;
    }
    OH_DEVICE_METHOD uint32_t words() const
    {
        return count;
    }
    OH_DEVICE_METHOD const char *input(uint32_t i) const
    {
        return sendbuff + (uint64_t)i * OH_WORD_BYTES;
    }
    OH_DEVICE_METHOD oh_word16 load(uint32_t i, bool streams = false) const
    {
        oh_word16 word = oh_word16();
        if (i < count) {
            oh_user_load(input(i), &word, streams);
        }
        return word;
    }
    OH_DEVICE_METHOD void store(uint32_t i, const oh_word16 &word) const
    {
        if (i < count) {
            oh_user_store(recvbuff + (uint64_t)i * OH_WORD_BYTES, word);
        }
    }
    /* Stores quarter k, the 32 bits k, of word i. */
    OH_DEVICE_METHOD void store_quarter(uint32_t i, uint32_t k, uint32_t quarter) const
    {
        if (i < count) {
            oh_word_store(recvbuff + (uint64_t)i * OH_WORD_BYTES + k * sizeof quarter, quarter);
        }
    }
};

/* Several calls: words of the message that they make together. */
template <class Type> struct oh_message_list {
    static const bool is_whole = false;
    static const bool has_one_root = false;
    const oh_kernel_list_args &list;

    explicit OH_DEVICE_METHOD oh_message_list(const oh_kernel_list_args &list_args) : list(list_args)
    {
    }
    OH_DEVICE_METHOD uint32_t words() const
    {
        return list.words;
    }
    /* Found only after the wait: that takes loads. */
    OH_DEVICE_METHOD const char *input(uint32_t) const
    {
        return NULL;
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
    OH_DEVICE_METHOD oh_word16 load(uint32_t i, bool streams = false) const
    {
        oh_word16 word = oh_word16();
        if (i < list.words) {
            const oh_list_item &it = item(i);
            word = oh_message<Type>(it).load(i - it.first_word, streams);
        }
        return word;
    }
    OH_DEVICE_METHOD void store(uint32_t i, const oh_word16 &word) const
    {
        const oh_list_item &it = item(i);
        oh_message<Type>(it).store(i - it.first_word, word);
    }
    OH_DEVICE_METHOD const char *input_part(uint32_t, uint32_t) const
    {
        return NULL;
    }
    OH_DEVICE_METHOD oh_word16 load_part(uint32_t rank, uint32_t i, bool streams = false) const
    {
        const oh_list_item &it = item(i);
        return i < list.words ? oh_message<Type>(it).load_part(rank, i - it.first_word, streams) : oh_word16();
    }
    OH_DEVICE_METHOD void store_part(uint32_t rank, uint32_t i, const oh_word16 &word) const
    {
        const oh_list_item &it = item(i);
        oh_message<Type>(it).store_part(rank, i - it.first_word, word);
    }
    OH_DEVICE_METHOD void copy_part(uint32_t rank, uint32_t i, const oh_word16 &word) const
    {
        const oh_list_item &it = item(i);
        oh_message<Type>(it).copy_part(rank, i - it.first_word, word);
    }
    OH_DEVICE_METHOD uint32_t root(uint32_t i) const
    {
        return item(i).root;
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

#endif
