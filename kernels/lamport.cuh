/* SPDX-License-Identifier: MIT */
/*
 * lamport.cuh - words that carry no flag: how a message is encoded in staging
 */
#ifndef OH_KERNELS_LAMPORT_CUH_
#define OH_KERNELS_LAMPORT_CUH_

#include "kernels/reduce.cuh"

/*
 * Lamport words. An empty word holds OH_SENTINEL in each of its 32-bit parts (64-bit elements: in the upper parts), a
 * word that has arrived in none. The reader resets each word that it has used. So no bytes are spent on flags, and a
 * stale word is never mistaken for a new one. (NCCL's LL words carry a flag for each 4 bytes of data.) A word arrives
 * in one or two steps, each of which is a whole 8-byte half (primitives.cuh, "Memory order").
 *
 * Floating-point types: the sentinel is a NaN, of 16- and 8-bit types two or four NaNs. A part of a message that holds
 * it is sent without its top bit, as another NaN. The result of NaNs is the GPU's canonical NaN whatever their bits
 * were, so no result changes. Zeros keep their sign.
 *
 * Integers use every bit pattern. An 8-byte half that is empty is all ones. Halves are sent xored with a constant, so
 * that no usual number comes out as all ones. A half that does, or that comes out as one less, is sent as the escape
 * code, all ones less one. The word's escape byte tells which of the two values the half stands for. The reader waits
 * for that byte and resets it with the word.
 */
#define OH_ESCAPE_CODE (OH_SENTINEL - 1)
#define OH_ESCAPE_VALID 4u /* in an escape byte, beside a bit for each half */

/* Index of the section in a slot of rank `owner` that `source` writes. */
OH_DEVICE uint32_t oh_section_index(uint32_t owner, uint32_t source)
{
    return source - (source > owner ? 1 : 0);
}

/* Offset in staging of the escape byte of the word at `offset`. */
OH_DEVICE uint32_t oh_escape_offset(uint32_t offset)
{
    return OH_ESCAPE_OFFSET + (offset - OH_WORDS_OFFSET) / OH_WORD_BYTES;
}

/* The word that the peers receive for `word`. The sender reduces this word, too, so that all ranks get the same bits.
 */
template <class Type> OH_DEVICE oh_word16 oh_canonical(oh_word16 word)
{
    if constexpr (Type::has_sentinel) {
        OH_UNROLL
        for (int k = Type::part_words - 1; k < 4; k += Type::part_words) {
            word.w[k] = word.w[k] == OH_SENTINEL ? OH_SENTINEL >> 1 : word.w[k];
        }
    }
    return word;
}

/* A canonical word as it is sent. */
template <class Type> struct oh_encoded {
    oh_word16 word;
    uint32_t escape; /* 0: no escape */

    explicit OH_DEVICE_METHOD oh_encoded(const oh_word16 &plain) : word(plain), escape(0)
    {
        if constexpr (!Type::has_sentinel) {
            OH_UNROLL
            for (int k = 0; k < 4; k += 2) {
                word.w[k] ^= OH_XOR_LOW;
                word.w[k + 1] ^= OH_XOR_HIGH;
                if (word.w[k + 1] == OH_SENTINEL && word.w[k] >= OH_ESCAPE_CODE) {
                    escape |= OH_ESCAPE_VALID | (word.w[k] & 1) << (k / 2);
                    word.w[k] = OH_ESCAPE_CODE;
                }
            }
        }
    }
    /* If `held` is 0 (struct oh_epoch). */
    OH_DEVICE_METHOD void send(char *staging, uint32_t offset, uint32_t held) const
    {
        oh_lamport_send(staging + offset, word, held);
        if (!Type::has_sentinel && __builtin_expect(escape != 0, 0) && held == 0) {
            oh_escape_store(staging + oh_escape_offset(offset), escape);
        }
    }
};

/* All parts of a word, as it was loaded from staging, have arrived. */
template <class Type> OH_DEVICE bool oh_lamport_has_arrived(const oh_word16 &word)
{
    bool arrived = true;
    if constexpr (Type::has_sentinel) {
        OH_UNROLL
        for (int k = Type::part_words - 1; k < 4; k += Type::part_words) {
            arrived &= word.w[k] != OH_SENTINEL;
        }
    } else {
        OH_UNROLL
        for (int k = 0; k < 4; k += 2) {
            arrived &= (word.w[k] & word.w[k + 1]) != OH_SENTINEL;
        }
    }
    return arrived;
}

/* Clears the escape byte of the word at `offset`, if it has one. decoded: the word that was there. */
template <class Type> OH_DEVICE void oh_escape_reset(char *staging, uint32_t offset, const oh_word16 &decoded)
{
    if (!Type::has_sentinel && __builtin_expect(oh_encoded<Type>(decoded).escape != 0, 0)) {
        oh_escape_store(staging + oh_escape_offset(offset), 0);
    }
}

/* Empties the word at `offset`, and its escape byte. decoded: the word that it held. */
template <class Type> OH_DEVICE void oh_lamport_reset(char *staging, uint32_t offset, const oh_word16 &decoded)
{
    oh_lamport_clear(staging + offset);
    oh_escape_reset<Type>(staging, offset, decoded);
}

#endif
