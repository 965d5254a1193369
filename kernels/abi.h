/* SPDX-License-Identifier: MIT */
/* clang-format off */
/*
 * abi.h - what host and device must agree on: kernel arguments and the layout of a rank's staging memory
 *
 * The only header that host C, device CUDA C++ and the CPU build of the kernels share. Sizes are in bytes unless a
 * name says otherwise. A kernel takes one parameter by value: struct oh_kernel_list_args for a call list ("_Any_" or
 * "_List_" in its name), else struct oh_kernel_args for one call.
 *
 * Staging of one rank (one cuMemAlloc allocation, written by the peers, read by the owner):
 *
 *   0                         struct oh_epoch, one per block, all equal between kernels
 *   OH_ABORT_SEEN_OFFSET      enum oh_abort, as a kernel of this rank has read it; once not 0, never 0 again
 *   OH_REPORTED_OFFSET            ONEHOP_VERIFY: epoch and number of the last call that differs from NCCL's, and how many
 *                             such calls there were
 *   OH_ESCAPE_OFFSET          escape bytes, one for each word of the slots
 *   OH_SLOT_OFFSET            four slots: kernels with even and with odd epochs send into the first two; the second hop
 *                             of two-shot into the third and the fourth by turns
 *
 * Between kernels all words (from OH_WORDS_OFFSET on) hold OH_SENTINEL and all escape bytes 0, except those in flight
 * and those that the last kernel with two hops has left in its gather slot (struct oh_epoch). A slot consists of
 * sections, one for each peer that writes it, in the order of ranks.
 *
 * Why this number of slots needs no closing barrier: doc/design.md, "Epochs".
 */
/* clang-format on */
#ifndef OH_KERNELS_ABI_H_
#define OH_KERNELS_ABI_H_

#include <stdint.h>

#define OH_MAX_RANKS 8
#define OH_MAX_BLOCKS 256
#define OH_MAX_THREADS 1024
/* Threads of a block, at most: with more ranks a thread holds more words, and in a broadcast two at a time. Two blocks
 * of any kernel fit on a multiprocessor together. */
#define OH_BLOCK_THREADS(nranks_) ((nranks_) > 2 ? OH_BROADCAST_BLOCK_THREADS(nranks_) : OH_MAX_THREADS)
#define OH_BROADCAST_BLOCK_THREADS(nranks_) ((nranks_) > 4 ? 256 : 512)
#define OH_VERIFY_THREADS 256u /* of each block of the kernels of ONEHOP_VERIFY */

#define OH_ROUND_UP(value_, unit_) (((value_) + (unit_)-1) / (unit_) * (unit_))

/* The unit in which messages travel, and how many are in a line of the caches. Sections begin with a line, so that the
 * words of a warp fill four of them instead of parts of five (4 x H200: 1 MiB 3 % faster). */
#define OH_WORD_BYTES 16u
#define OH_LINE_WORDS 8u

/* Sums of three and four ranks have four threads for each word, from so many words on (kernels/quad.cuh). */
#define OH_QUAD_LEAST_WORDS 512u

/* A section of a slot has room for a rank's share of so many bytes, or half of them with five ranks and more, where no
 * table serves so much. An all-gather, a reduce-scatter or a two-shot allreduce of this length goes in one kernel, so a
 * product of the program beside it waits for SMs once (doc/dev/experiments.md). The tests of the kernels have less. */
#ifndef OH_PART_BYTES
#define OH_PART_BYTES (16u << 20)
#endif
#define OH_PART_WORDS(nranks_) (OH_PART_BYTES / OH_WORD_BYTES / ((nranks_) > 4 ? 2 : 1))
#define OH_SECTION_WORDS(nranks_) (OH_ROUND_UP(OH_PART_WORDS(nranks_), OH_LINE_WORDS * (nranks_)) / (nranks_))

#define OH_SLOTS 4u
#define OH_GATHER_SLOT 2u /* and the next */
#define OH_SLOT_BYTES(nranks_) (((nranks_)-1) * OH_SECTION_WORDS(nranks_) * OH_WORD_BYTES)

#define OH_EPOCH_OFFSET 0u
#define OH_ABORT_SEEN_OFFSET 4096u
#define OH_REPORTED_OFFSET 5120u
#define OH_ESCAPE_OFFSET 8192u
#define OH_ESCAPE_END (OH_ESCAPE_OFFSET + OH_SLOTS * OH_SLOT_BYTES(4u) / OH_WORD_BYTES) /* the longest slots */
#define OH_WORDS_OFFSET OH_ROUND_UP(OH_ESCAPE_END, 4096u)                               /* a page */
#define OH_SLOT_OFFSET(slot_, nranks_) (OH_WORDS_OFFSET + (slot_)*OH_SLOT_BYTES(nranks_))
#define OH_STAGING_BYTES(nranks_) OH_SLOT_OFFSET(OH_SLOTS, nranks_)

/*
 * What each 32 bits of an empty word hold. As floating-point numbers of any width they are NaNs that no arithmetic on
 * the GPU produces. Inputs that hold this pattern are sent as another NaN; integers are encoded (lamport.cuh).
 */
#define OH_SENTINEL 0xffffffffu
/* The lower and upper 32 bits of each 8 bytes of integers are sent xored with these. */
#define OH_XOR_LOW 0x5c9e31a7u
#define OH_XOR_HIGH 0xa34db86eu

/* Words of a message of `count` elements, whose bytes 64 bits hold. */
static inline uint64_t oh_message_words(uint64_t count, uint64_t element_bytes)
{
    const uint64_t bytes = count * element_bytes;
    return bytes / OH_WORD_BYTES + (bytes % OH_WORD_BYTES > 0);
}

/* No message is larger, so that words of it are counted in 32 bits. */
#define OH_MESSAGE_BYTES (1u << 30)

/* Element types of the kernels: integers by width alone. The first OH_SUM_TYPES have separate kernels for the sum. */
enum oh_kernel_type {
    OH_TYPE_F32,
    OH_TYPE_F16,
    OH_TYPE_BF16,
    OH_SUM_TYPES,
    OH_TYPE_F64 = OH_SUM_TYPES,
    OH_TYPE_E4M3,
    OH_TYPE_E5M2,
    OH_TYPE_I8,
    OH_TYPE_I32,
    OH_TYPE_I64,
    OH_KERNEL_TYPES
};

/* What a kernel for any op does with the elements of all ranks. */
enum oh_kernel_op {
    OH_OP_SUM,
    OH_OP_PROD,
    OH_OP_MIN,
    OH_OP_MAX,
    OH_OP_AVG,
    OH_OP_SCALED_SUM, /* each rank's elements times its scalar, rounded to the type, then the sum */
    OH_OPS
};

/* Epochs count the kernels of a communicator, equally on all ranks, and select the slot. A block loads two words at
 * once. */
struct oh_epoch {
    uint32_t last;   /* of the last kernel of this communicator that has ended on this rank */
    uint32_t held;   /* not 0: a kernel that begins sends nothing, and waits (oh_staging_hold, oh_abort_leave) */
    uint32_t gather; /* 0 or 1: the gather slot of the last kernel with two hops */
    uint32_t left;   /* words of each section there: the next kernel with two hops empties them */
};

/* The abort flag. The host changes it from OH_ABORT_NONE; kernels that wait poll it. */
enum oh_abort {
    OH_ABORT_NONE,
    OH_ABORT_LEAVE, /* kernels return without a result: the program has ended the communicator */
    OH_ABORT_TRAP   /* kernels end the context with an error: ONEHOP_TRAP_AFTER has passed after a failure */
};

/* The last call whose result differs from NCCL's, as the kernel that compares has found it. */
struct oh_difference {
    uint32_t calls;       /* that differ, so far: written last; 0 while the rest is written */
    uint32_t call_number; /* these three as in struct oh_kernel_args */
    uint32_t signature;
    uint32_t report_count;
    uint64_t element;      /* of the receive buffer */
    uint64_t onehop, nccl; /* the element: of floats the bits of a double */
};

/*
 * The control block of a rank, in host-mapped memory: the abort flag, the report of a kernel that has waited for long,
 * and that of one that compares. The host reads each word of a report by itself, and trusts one that does not change.
 */
struct oh_control {
    uint32_t abort_flag;  /* enum oh_abort */
    uint32_t spins;       /* changes as long as the kernel waits */
    uint32_t epoch;       /* of the last kernel that the rank had finished before */
    uint32_t call_number; /* these three as in struct oh_kernel_args */
    uint32_t signature;
    uint32_t report_count;
    struct oh_difference difference;
};

/* When a kernel triggers the launch of the kernel behind it (griddepcontrol.launch_dependents): doc/overlap.md,
 * "Requirement". */
enum oh_trigger {
    OH_TRIGGER_NONE,  /* never: any kernel may be behind it */
    OH_TRIGGER_EARLY, /* right after its own wait: the kernel behind it is of the same communicator */
    OH_TRIGGER_LATE   /* when it needs no more room to end, or for programs whose kernels all wait (ONEHOP_TRIGGER=1) */
};

struct oh_kernel_args {
    /* Staging of rank (rank + j) % nranks at [j]: rotated on the host, so that the index is static in the kernel. */
    char *staging[OH_MAX_RANKS];
    const void *sendbuff;       /* local, element aligned */
    void *recvbuff;             /* local, element aligned; may equal sendbuff */
    uint64_t count;             /* elements, > 0; of a collective that has a part for each rank, of the part */
    const uint32_t *abort_flag; /* in the control block */
    struct oh_control *control; /* for the report of a long wait; NULL: no report */
    uint32_t rank;
    uint32_t trigger; /* enum oh_trigger */
    /* The rest is read by kernels for any op and number of ranks only. */
    uint32_t nranks;
    uint32_t op;           /* enum oh_kernel_op */
    uint32_t call_number;  /* these three are for reports only */
    uint32_t signature;    /* src/comm/watch/watch.h */
    uint32_t report_count; /* elements of the whole call, or call list, of which this kernel may be a part */
    const void *scalar;    /* OH_OP_SCALED_SUM: one element that the GPU can read; NULL: the scalar is the operand */
    uint64_t operand; /* OH_OP_SCALED_SUM: bits of the scalar; MIN, MAX, AVG of integers: the sign bit, 0: unsigned */
    uint64_t stride;  /* all-gather, reduce-scatter: bytes from a rank's part of the larger buffer to the next part */
    uint32_t root;    /* broadcast */
};

/*
 * A call list: several calls in one launch, as one message in which each call begins at a new 16-byte word. base: as
 * above; its count and user buffers are unused.
 */
#define OH_LIST_CALLS 32
struct oh_list_item {
    const void *sendbuff;
    void *recvbuff;
    uint64_t count; /* these three as above */
    uint64_t stride;
    uint32_t root;
    uint32_t first_word; /* of the message, in words of OH_WORD_BYTES; ascending */
};

struct oh_kernel_list_args {
    struct oh_kernel_args base;
    uint32_t calls; /* items in use */
    uint32_t words; /* of the whole message, of OH_WORD_BYTES */
    struct oh_list_item item[OH_LIST_CALLS];
};

/*
 * The kernels of ONEHOP_VERIFY. call: the call that they verify; its count is that of the elements of a row which are
 * compared, its stride the bytes from a row of the result to the next.
 */
struct oh_verify_args {
    struct oh_kernel_args call;
    const void *reference; /* NCCL's result: the rows without gaps */
    void *magnitudes;      /* for each element of the result, its sum of magnitudes over all ranks: fp32, of fp64 fp64;
                              NULL: there is none */
    double relative;       /* results may differ by so much of this sum, or without one of NCCL's result, */
    double absolute;       /* and by so much more */
    double most;           /* where the sum is less: else any order may overflow */
    uint32_t type;         /* enum oh_kernel_type */
    uint32_t element_bytes;
    uint32_t rows;
    uint32_t rounds; /* 0: only equal bits are equal */
};

#endif
