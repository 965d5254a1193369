/* SPDX-License-Identifier: MIT */
/*
 * primitives.cuh - the machine functions that the kernels use, for the GPU
 *
 * test/simnode/primitives_cpu.h defines the same functions for the CPU (one thread per block), so that the same kernel
 * source runs without a GPU.
 *
 * Memory order: a Lamport word is stored and loaded by one relaxed system-scope access of two 64-bit elements. PTX
 * models such an access as two scalar accesses, in an unspecified order (PTX ISA, "Memory Consistency Model", "Vector
 * Data-types"). So a reader may see one 8-byte half without the other half, and never a part of a half. The reader
 * tests whether each half has arrived (lamport.cuh).
 */
#ifndef OH_KERNELS_PRIMITIVES_CUH_
#define OH_KERNELS_PRIMITIVES_CUH_

#if defined(OH_SIMNODE)
#include "test/simnode/primitives_cpu.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math.h>

#include "kernels/abi.h"

#define OH_INLINE __device__ __forceinline__
#define OH_DEVICE static OH_INLINE
#define OH_DEVICE_METHOD OH_INLINE
#define OH_UNROLL _Pragma("unroll")
#define OH_NO_UNROLL _Pragma("unroll 1")
/* Polls of staging memory, a third of a microsecond or more each, between two checks of the abort flag; the number of
 * warps of which one at a time polls, and reports to, the host. Powers of two. */
#define OH_SPINS_BEFORE_CHECK_ABORT 1024u
#define OH_HOST_POLL_STRIDE 16u
/* Not 0: one-shot sends all words before it polls. */
#define OH_SEND_ALL_FIRST 0

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define OH_NO_FP8 /* no instructions for it, and NCCL takes it from compute capability 9.0 on */
#endif

/*
 * A kernel entry point: name, threads of a block at most, type of its parameter, and body, a function of a constant
 * reference to that. No more registers than let two such blocks onto a multiprocessor, so that the largest grids of two
 * communicators fit on a GPU together (oh_plan_table_fit).
 */
#define OH_KERNEL(name_, threads_, args_t_, ...)                                                                       \
    extern "C" __global__ void __launch_bounds__(threads_, 2) name_(const __grid_constant__ args_t_ args)              \
    {                                                                                                                  \
        __VA_ARGS__(args);                                                                                             \
    }

struct alignas(16) oh_word16 {
    uint32_t w[4];
};

/*
 * Delays the thread at random in the kernels of `make litmus`, so that blocks and ranks run far apart. Does nothing in
 * the product.
 */
OH_DEVICE void oh_litmus_delay()
{
#if defined(OH_LITMUS)
    uint32_t random;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(random));
    random = (random ^ blockIdx.x * 0x9e3779b9u ^ threadIdx.x / 32 * 0x85ebca6bu) * 0xc2b2ae35u;
    random ^= random >> 15;
    if (random % 64 == 0) { /* a few microseconds, now and then many */
        __nanosleep(random >> 8 & (random >> 28 == 0 ? 0x1ffffu : 0x0fffu));
    }
#endif
}

/* A result as the GPU's arithmetic gives it. */
template <class Value> OH_DEVICE Value oh_result(Value value)
{
    return value;
}

/* Lets the compiler assume the condition. */
OH_DEVICE void oh_assume(bool condition)
{
    __builtin_assume(condition);
}

/* Makes the compiler compute the value here, before the kernel waits, and not when it is used. */
OH_DEVICE void oh_materialize(uint32_t *value)
{
    asm volatile("" : "+r"(*value));
}

/*
 * Returns the value, which all threads of the warp have, in a register that keeps it: the assembler would load a value
 * of the parameters anew wherever it is used.
 */
OH_DEVICE uint32_t oh_warp_keep(uint32_t value)
{
    return __shfl_sync(0xffffffffu, value, 0);
}

/*
 * Computes two addresses here, before the kernel waits, and not when they are used: the compiler moves arithmetic
 * across the wait, where it delays the first loads, by 0.06 us of 1.6 (nvcc 13.0). An instruction with an effect that
 * depends on both keeps it in place. They are hardly ever equal; then the thread pauses.
 */
OH_DEVICE void oh_materialize_addresses(const void *a, const void *b)
{
    asm volatile("{ .reg .pred equal; setp.eq.u64 equal, %0, %1; @equal nanosleep.u32 1; }" ::"l"(a), "l"(b));
}

OH_DEVICE uint32_t oh_block()
{
    return blockIdx.x;
}

OH_DEVICE uint32_t oh_blocks()
{
    return gridDim.x;
}

OH_DEVICE uint32_t oh_thread()
{
    return threadIdx.x;
}

OH_DEVICE uint32_t oh_threads()
{
    return blockDim.x;
}

/*
 * Quads (kernels/quad.cuh): threads of a quad that this thread is, which of the four, and the index of their word. They
 * are the threads l, l + 8, l + 16 and l + 24 of a warp.
 */
#define OH_QUAD_THREADS 1

OH_DEVICE uint32_t oh_quad_thread(int)
{
    return threadIdx.x % 32 / 8;
}

OH_DEVICE uint32_t oh_quad_index()
{
    return (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 8 + threadIdx.x % 8;
}

/* A quad for each of so many words. A few are as fast without. */
OH_DEVICE bool oh_fits_quads(uint32_t words)
{
    return words >= OH_QUAD_LEAST_WORDS && 4 * words <= gridDim.x * blockDim.x;
}

OH_DEVICE uint32_t oh_quarter(const oh_word16 &word, uint32_t k)
{
    const uint32_t even = k & 2 ? word.w[2] : word.w[0], odd = k & 2 ? word.w[3] : word.w[1];
    return k & 1 ? odd : even;
}

/* Thread k gets the quarters k of the quad's words, in the order of threads. All threads of the warp call it. */
OH_DEVICE void oh_quad_exchange(oh_word16 (&word)[OH_QUAD_THREADS])
{
    const uint32_t k = oh_quad_thread(0);
    oh_word16 got; /* at d: from thread k ^ d */
    got.w[0] = oh_quarter(word[0], k);
    OH_UNROLL
    for (uint32_t d = 1; d < 4; d++) {
        got.w[d] = __shfl_xor_sync(0xffffffffu, oh_quarter(word[0], k ^ d), 8 * d);
    }
    OH_UNROLL
    for (uint32_t t = 0; t < 4; t++) {
        word[0].w[t] = oh_quarter(got, k ^ t);
    }
}

/* Whether the condition is true in all threads of the warp, which all call it. */
OH_DEVICE bool oh_warp_all(bool condition)
{
    return __all_sync(0xffffffffu, condition);
}

OH_DEVICE void oh_block_sync()
{
    oh_litmus_delay();
    __syncthreads();
}

/*
 * Programmatic dependent launch (sm_90): a kernel may start before the previous kernel of its stream has ended.
 * oh_pdl_wait waits until that kernel has ended and its writes are visible; what it writes (user data, epochs,
 * staging) must not be touched before. oh_pdl_trigger triggers the launch of the next kernel once all blocks have
 * called it. A kernel calls it only where enum oh_trigger allows: a kernel of the program that does not execute
 * griddepcontrol.wait would read what the triggering kernel has not written yet. Without a call the next kernel is
 * launched when all blocks have ended. Both functions do nothing in a kernel launched without the attribute.
 */
OH_DEVICE void oh_pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

OH_DEVICE void oh_pdl_trigger()
{
    oh_litmus_delay();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* The asm of both joins or splits the halves: with 64-bit operands nvcc 13.0 moves and tests pairs of registers. */
OH_DEVICE void oh_lamport_store(char *at, const oh_word16 &data)
{
    oh_litmus_delay();
    asm volatile("{ .reg .b64 half<2>; mov.b64 half0, {%1, %2}; mov.b64 half1, {%3, %4};\n"
                 "  st.relaxed.sys.global.v2.b64 [%0], {half0, half1}; }" ::"l"(at),
                 "r"(data.w[0]), "r"(data.w[1]), "r"(data.w[2]), "r"(data.w[3])
                 : "memory");
}

/* Stores the word if `held` is 0. By a predicate: a branch cost 2 % of a small message. */
OH_DEVICE void oh_lamport_send(char *at, const oh_word16 &data, uint32_t held)
{
    oh_litmus_delay();
    asm volatile("{ .reg .b64 half<2>; .reg .pred sends; setp.eq.u32 sends, %5, 0;\n"
                 "  mov.b64 half0, {%1, %2}; mov.b64 half1, {%3, %4};\n"
                 "  @sends st.relaxed.sys.global.v2.b64 [%0], {half0, half1}; }" ::"l"(at),
                 "r"(data.w[0]), "r"(data.w[1]), "r"(data.w[2]), "r"(data.w[3]), "r"(held)
                 : "memory");
}

OH_DEVICE void oh_lamport_load(const char *at, oh_word16 *data)
{
    oh_litmus_delay();
    asm volatile("{ .reg .b64 half<2>; ld.relaxed.sys.global.v2.b64 {half0, half1}, [%4];\n"
                 "  mov.b64 {%0, %1}, half0; mov.b64 {%2, %3}, half1; }"
                 : "=r"(data->w[0]), "=r"(data->w[1]), "=r"(data->w[2]), "=r"(data->w[3])
                 : "l"(at)
                 : "memory");
}

/* Empties a word of this rank's staging. A weak store: until this kernel ends, no thread loads the word or stores to
 * it (doc/design.md, "Epochs"). It leaves L2 first: a peer's word comes next, not before the next call, and the
 * program's data have the place (doc/dev/experiments.md, "L2 for the program"). */
OH_DEVICE void oh_lamport_clear(char *at)
{
    oh_litmus_delay();
    __stcs(reinterpret_cast<uint4 *>(at), make_uint4(OH_SENTINEL, OH_SENTINEL, OH_SENTINEL, OH_SENTINEL));
}

/* Escape bytes. */
OH_DEVICE void oh_escape_store(char *at, uint32_t value)
{
    oh_litmus_delay();
    asm volatile("st.relaxed.sys.global.u8 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

OH_DEVICE uint32_t oh_escape_load(const char *at)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/* Words that only kernels of this GPU and the host access: epochs and the abort flag. */
OH_DEVICE uint32_t oh_word_load(const void *at)
{
    return *static_cast<const volatile uint32_t *>(at);
}

/* Two consecutive words at a multiple of 8 bytes, the first in the lower half. */
OH_DEVICE uint64_t oh_pair_load(const void *at)
{
    return *static_cast<const volatile uint64_t *>(at);
}

OH_DEVICE void oh_word_store(void *at, uint32_t value)
{
    *static_cast<volatile uint32_t *>(at) = value;
}

OH_DEVICE void oh_pair_store(void *at, uint64_t value)
{
    *static_cast<volatile uint64_t *>(at) = value;
}

/* Returns the pair that was there. */
OH_DEVICE uint64_t oh_pair_exchange(void *at, uint64_t value)
{
    return atomicExch(static_cast<unsigned long long *>(at), value);
}

/* After what this thread has stored before, for the host, too. */
OH_DEVICE void oh_word_publish(void *at, uint32_t value)
{
    __threadfence_system();
    oh_word_store(at, value);
}

/* Ends the kernel, and the context with it, with CUDA_ERROR_LAUNCH_FAILED. */
OH_DEVICE void oh_trap()
{
    asm volatile("trap;");
}

/* Cycles of the multiprocessor's clock. */
OH_DEVICE uint64_t oh_cycles()
{
    return (uint64_t)clock64();
}

/* Between two polls. */
OH_DEVICE void oh_spin_pause()
{
}

/* Calls ask() in one of the active threads of a warp, and returns its result in all of them. */
template <class Ask> OH_DEVICE bool oh_warp_once(Ask ask)
{
    const unsigned active = __activemask();
    const int leader = __ffs(active) - 1;
    bool answer = false;
    if ((int)(threadIdx.x % 32) == leader) {
        answer = ask();
    }
    return __shfl_sync(active, answer, leader);
}

/* User buffers. Words are read once or twice, so that L1 is of no use for them. streams: they leave L2 first, so that a
 * large message takes less of it from the program. Such a load may leave a word in L1, where it cannot be old: nobody
 * stores to a word before the thread that reads it has read it, and a kernel begins to read after its wait. */
OH_DEVICE void oh_user_load(const char *at, oh_word16 *data, bool streams)
{
    const uint4 *const from = reinterpret_cast<const uint4 *>(at);
    const uint4 v = streams ? __ldcs(from) : __ldcg(from);
    *data = {{v.x, v.y, v.z, v.w}};
}

OH_DEVICE void oh_user_store(char *at, const oh_word16 &data)
{
    *reinterpret_cast<uint4 *>(at) = make_uint4(data.w[0], data.w[1], data.w[2], data.w[3]);
}

#endif
#endif
