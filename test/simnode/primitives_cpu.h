/* SPDX-License-Identifier: MIT */
/*
 * primitives_cpu.h - the functions of kernels/primitives.cuh for the CPU: one thread per block
 *
 * Staging is memory shared between processes, so everything that peers exchange goes through atomics: a marker
 * word is two 8-byte atomics (release store, acquire load). What this shows is the state machine (epochs, slots,
 * chunks, rounds); it says nothing of the GPU's memory order.
 */
#ifndef TEST_SIMNODE_PRIMITIVES_CPU_H_
#define TEST_SIMNODE_PRIMITIVES_CPU_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "kernels/abi.h"
#include "test/simnode/kernels.h"

/* The GPU's fmin and fmax. The C library's make a signalling NaN the result, and leave open which zero is less. */
template <class Value> inline Value simnode_fmin(Value a, Value b)
{
    return a != a || b < a || (a == b && signbit(b)) ? b : a;
}
template <class Value> inline Value simnode_fmax(Value a, Value b)
{
    return a != a || b > a || (a == b && signbit(a)) ? b : a;
}
#define fmin simnode_fmin
#define fmax simnode_fmax

#define OH_INLINE inline
#define OH_DEVICE static inline
#define OH_DEVICE_METHOD inline
#define OH_UNROLL
#define OH_NO_UNROLL
#define OH_SPINS_BEFORE_CHECK_ABORT 16u /* a look may take as long as a time slice of everything else that runs */
#define OH_HOST_POLL_STRIDE 2u
/* The kernels' tests do as a GPU does. Here ranks on few processors would take turns for each word. */
#ifndef OH_SEND_ALL_FIRST
#define OH_SEND_ALL_FIRST 1
#endif

/* The block that this thread plays. Set by the wrapper of each kernel. */
struct simnode_place {
    uint32_t block;
    uint32_t blocks;
};
static thread_local simnode_place simnode_here;

/* Of test/protocol, which has a memory of its own, too. */
#ifndef SIMNODE_KERNEL_END
#define SIMNODE_KERNEL_END()
#endif

/* Adds the kernel to the list that simnode_kernel_find searches. */
struct simnode_kernel_entry {
    simnode_kernel kernel;
    simnode_kernel_entry *next;
};
static simnode_kernel_entry *simnode_kernels;

#define OH_KERNEL(name_, threads_, args_t_, ...)                                                                       \
    static void name_(const void *args, unsigned block, unsigned blocks)                                               \
    {                                                                                                                  \
        simnode_here = {block, blocks};                                                                                \
        __VA_ARGS__(*static_cast<const args_t_ *>(args));                                                              \
        SIMNODE_KERNEL_END();                                                                                          \
    }                                                                                                                  \
    static simnode_kernel_entry name_##_entry = {{#name_, name_, sizeof(args_t_), threads_}, simnode_kernels};         \
    static const bool name_##_listed = (simnode_kernels = &name_##_entry, true);

struct alignas(16) oh_word16 {
    uint32_t w[4];
};

/* The GPU's arithmetic has one NaN. Here a NaN is that of either operand, as the compiler has put them, and ranks whose
 * code is other code would differ. */
template <class Value> OH_DEVICE Value oh_result(Value value)
{
    return value == value ? value : (Value)NAN;
}

OH_DEVICE void oh_assume(bool condition)
{
    if (!condition) {
        __builtin_unreachable();
    }
}

OH_DEVICE void oh_materialize_addresses(const void *, const void *)
{
}

OH_DEVICE uint32_t oh_warp_keep(uint32_t value)
{
    return value;
}

OH_DEVICE void oh_materialize(uint32_t *)
{
}

OH_DEVICE uint32_t oh_block()
{
    return simnode_here.block;
}

OH_DEVICE uint32_t oh_blocks()
{
    return simnode_here.blocks;
}

OH_DEVICE uint32_t oh_thread()
{
    return 0;
}

OH_DEVICE uint32_t oh_threads()
{
    return 1;
}

/* A thread is a quad. Messages of an even number of words, with a block for each, have quads. */
#define OH_QUAD_THREADS 4

OH_DEVICE uint32_t oh_quad_thread(int t)
{
    return (uint32_t)t;
}

OH_DEVICE uint32_t oh_quad_index()
{
    return oh_block();
}

OH_DEVICE bool oh_fits_quads(uint32_t words)
{
    return words <= oh_blocks() && words % 2 == 0;
}

OH_DEVICE void oh_quad_exchange(oh_word16 (&word)[OH_QUAD_THREADS])
{
    for (int a = 0; a < OH_QUAD_THREADS; a++) {
        for (int b = 0; b < a; b++) {
            const uint32_t quarter = word[a].w[b];
            word[a].w[b] = word[b].w[a];
            word[b].w[a] = quarter;
        }
    }
}

OH_DEVICE bool oh_warp_all(bool condition)
{
    return condition;
}

/* A test may make threads slow where it matters. */
OH_DEVICE void oh_litmus_delay()
{
    if (simnode_litmus_delay) {
        simnode_litmus_delay();
    }
}

OH_DEVICE void oh_block_sync()
{
    oh_litmus_delay();
}

OH_DEVICE void oh_pdl_wait()
{
    if (simnode_pdl_wait) {
        simnode_pdl_wait();
    }
}

OH_DEVICE void oh_pdl_trigger()
{
    if (simnode_pdl_trigger) {
        simnode_pdl_trigger();
    }
}

#ifndef SIMNODE_OTHER_MEMORY
/* The simulated driver keeps these words inverted, so that empty memory is all zeros, and takes no time to make
 * (simcuda_memory_empty). */
#ifdef SIMNODE_INVERTED_WORDS
#define SIMNODE_STORED(half_) (~(uint64_t)(half_))
#else
#define SIMNODE_STORED(half_) ((uint64_t)(half_))
#endif

OH_DEVICE void oh_lamport_store(char *at, const oh_word16 &data)
{
    uint64_t *halves = reinterpret_cast<uint64_t *>(at);
    __atomic_store_n(halves, SIMNODE_STORED(data.w[0] | (uint64_t)data.w[1] << 32), __ATOMIC_RELEASE);
    __atomic_store_n(halves + 1, SIMNODE_STORED(data.w[2] | (uint64_t)data.w[3] << 32), __ATOMIC_RELEASE);
}

OH_DEVICE void oh_lamport_send(char *at, const oh_word16 &data, uint32_t held)
{
    if (held == 0) {
        oh_lamport_store(at, data);
    }
}

OH_DEVICE void oh_lamport_load(const char *at, oh_word16 *data)
{
    const uint64_t *halves = reinterpret_cast<const uint64_t *>(at);
    uint64_t first = SIMNODE_STORED(__atomic_load_n(halves, __ATOMIC_ACQUIRE));
    uint64_t second = SIMNODE_STORED(__atomic_load_n(halves + 1, __ATOMIC_ACQUIRE));
    *data = {{(uint32_t)first, (uint32_t)(first >> 32), (uint32_t)second, (uint32_t)(second >> 32)}};
}

OH_DEVICE void oh_lamport_clear(char *at)
{
    static thread_local unsigned turn;
    if (turn++ % 64 == 0) { /* a thread may be slow to clear what it has sent on already */
        oh_litmus_delay();
    }
    oh_lamport_store(at, {{OH_SENTINEL, OH_SENTINEL, OH_SENTINEL, OH_SENTINEL}});
}

OH_DEVICE void oh_escape_store(char *at, uint32_t value)
{
    oh_litmus_delay();
    __atomic_store_n(at, (char)value, __ATOMIC_RELEASE);
}

OH_DEVICE uint32_t oh_escape_load(const char *at)
{
    return (unsigned char)__atomic_load_n(at, __ATOMIC_ACQUIRE);
}

OH_DEVICE uint32_t oh_word_load(const void *at)
{
    return __atomic_load_n(static_cast<const uint32_t *>(at), __ATOMIC_RELAXED);
}

OH_DEVICE void oh_word_store(void *at, uint32_t value)
{
    __atomic_store_n(static_cast<uint32_t *>(at), value, __ATOMIC_RELAXED);
}
#endif

OH_DEVICE uint64_t oh_pair_load(const void *at)
{
    return __atomic_load_n(static_cast<const uint64_t *>(at), __ATOMIC_RELAXED);
}

OH_DEVICE void oh_pair_store(void *at, uint64_t value)
{
    __atomic_store_n(static_cast<uint64_t *>(at), value, __ATOMIC_RELAXED);
}

OH_DEVICE uint64_t oh_pair_exchange(void *at, uint64_t value)
{
    return __atomic_exchange_n(static_cast<uint64_t *>(at), value, __ATOMIC_RELAXED);
}

OH_DEVICE void oh_word_publish(void *at, uint32_t value)
{
    __atomic_store_n(static_cast<uint32_t *>(at), value, __ATOMIC_RELEASE);
}

/* The block goes on to leave; what runs the kernel makes the context unusable. */
OH_DEVICE void oh_trap()
{
    if (simnode_trap) {
        simnode_trap();
    }
}

/* Nanoseconds stand for cycles. */
OH_DEVICE uint64_t oh_cycles()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/*
 * Few cores, many ranks: let the peer run. The longer a thread has waited, the longer it leaves its core to others: a
 * fourth of the wait, at most 0.4 ms. A wait ends when the thread has not been here for a while.
 */
OH_DEVICE void oh_spin_pause()
{
    static thread_local uint64_t begin, last;
    uint64_t now = oh_cycles();
    if (now - last > 100000) {
        begin = now;
    }
    uint64_t pause = (now - begin) / 4;
    if (pause < 10000) {
        sched_yield();
    } else {
        const struct timespec rest = {0, (long)(pause < 400000 ? pause : 400000)};
        nanosleep(&rest, nullptr);
    }
    last = oh_cycles();
}

/* A thread is a block here, with no other together. */
template <class Ask> OH_DEVICE bool oh_warp_once(Ask ask)
{
    return ask();
}

/* Where a GPU fails since the address is not aligned, the words come from, and go to, a wrong place. */
OH_DEVICE uintptr_t oh_user_aligned(const void *at)
{
    return reinterpret_cast<uintptr_t>(at) / sizeof(oh_word16) * sizeof(oh_word16);
}

OH_DEVICE void oh_user_load(const char *at, oh_word16 *data, bool)
{
    memcpy(data, reinterpret_cast<const void *>(oh_user_aligned(at)), sizeof *data);
}

OH_DEVICE void oh_user_store(char *at, const oh_word16 &data)
{
    memcpy(reinterpret_cast<void *>(oh_user_aligned(at)), &data, sizeof data);
}

#endif
