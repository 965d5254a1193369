/* SPDX-License-Identifier: MIT */
/*
 * primitives.cuh - what the kernels need of the machine, for the GPU
 *
 * The kernels are written against these functions only. test/simnode/primitives_cpu.h gives the same functions for
 * the CPU (one thread per block), so that the same kernel source runs where there is no GPU.
 *
 * Memory order, GPU side: a marker word is stored and loaded as one relaxed system-scope vector access. Each 32-bit
 * part of it, for integers and 64-bit elements each 8-byte half, tells by itself whether it has come, so tearing
 * between them does no harm (8-byte accesses are not torn, which NCCL's LL protocol assumes as well).
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
/* Looks at staging memory, a third of a microsecond or more each, after which a warp looks whether it is to leave; how
 * many warps take turns in asking the host, and telling it. Powers of two. */
#define OH_PATIENCE 1024u
#define OH_HOST_TURNS 16u
/* Not 0: one-shot sends all before it waits for anything. */
#define OH_SENDS_FIRST 0

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define OH_NO_FP8 /* no instructions for it, and NCCL takes it from compute capability 9.0 on */
#endif

/*
 * A kernel entry point: name, number of ranks that it is compiled for, type of its parameter, and body, a function of a
 * constant reference to that. Registers are such that the kernels of several communicators fit on a GPU together; where
 * there are more ranks, grids are smaller (oh_plan_grid_threads).
 */
#define OH_KERNEL(name_, ranks_, args_t_, ...)                                                                         \
    extern "C" __global__ void __launch_bounds__(OH_MAX_THREADS, ranks_ > 4 ? 1 : 2)                                   \
        name_(const __grid_constant__ args_t_ args)                                                                    \
    {                                                                                                                  \
        __VA_ARGS__(args);                                                                                             \
    }

struct alignas(16) oh_word16 {
    uint32_t w[4];
};

/*
 * Where a thread may be late without harm to the protocols. In the kernels of `make litmus` it is, at random, so that
 * blocks and ranks run far apart; in the product this is nothing.
 */
OH_DEVICE void oh_hesitate()
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

/* What the compiler may take for granted. */
OH_DEVICE void oh_assume(bool condition)
{
    __builtin_assume(condition);
}

/* Makes the compiler have this value here, and not later when time counts. */
OH_DEVICE void oh_settle(uint32_t *value)
{
    asm volatile("" : "+r"(*value));
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

OH_DEVICE void oh_block_sync()
{
    oh_hesitate();
    __syncthreads();
}

/*
 * Programmatic dependent launch (sm_90): a kernel may start before the previous kernel of its stream has ended.
 * oh_grid_wait waits until that kernel has ended and its writes are visible; what it writes (user data, epochs,
 * staging) must not be touched before. oh_grid_release triggers the launch of the next kernel once all blocks have
 * called it. A kernel calls it when it no longer waits for a peer, or when the next kernel is onehop's and small
 * (oh_kernel_begin), so that kernels that wait never fill the GPU. Both do nothing in a kernel launched without the
 * attribute.
 */
OH_DEVICE void oh_grid_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

OH_DEVICE void oh_grid_release()
{
    oh_hesitate();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

OH_DEVICE void oh_marker_store(char *at, const oh_word16 &data)
{
    oh_hesitate();
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(data.w[0]), "r"(data.w[1]),
                 "r"(data.w[2]), "r"(data.w[3])
                 : "memory");
}

OH_DEVICE void oh_marker_load(const char *at, oh_word16 *data)
{
    oh_hesitate();
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(data->w[0]), "=r"(data->w[1]), "=r"(data->w[2]), "=r"(data->w[3])
                 : "l"(at)
                 : "memory");
}

OH_DEVICE void oh_marker_clear(char *at)
{
    oh_hesitate();
    *reinterpret_cast<uint4 *>(at) = make_uint4(OH_MARKER, OH_MARKER, OH_MARKER, OH_MARKER);
}

/* Escape cells: a byte in a peer's staging memory. */
OH_DEVICE void oh_cell_store(char *at, uint32_t value)
{
    oh_hesitate();
    asm volatile("st.relaxed.sys.global.u8 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

OH_DEVICE uint32_t oh_cell_load(const char *at)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/* Words that only kernels of this GPU and the host touch: epochs, the row word and the abort word. */
OH_DEVICE uint32_t oh_word_load(const void *at)
{
    return *static_cast<const volatile uint32_t *>(at);
}

/* Two words that lie side by side at a multiple of 8 bytes, the first in the lower half. */
OH_DEVICE uint64_t oh_pair_load(const void *at)
{
    return *static_cast<const volatile uint64_t *>(at);
}

OH_DEVICE void oh_word_store(void *at, uint32_t value)
{
    *static_cast<volatile uint32_t *>(at) = value;
}

/* Before an early trigger: the kernel that it launches reads the word, though it has not waited for this kernel. */
OH_DEVICE void oh_word_publish(void *at, uint32_t value)
{
    oh_word_store(at, value);
    __threadfence();
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

/* Between two looks at memory that is not ready. */
OH_DEVICE void oh_spin_pause()
{
}

/* What one of the threads that are here together, in a warp, answers for all of them. */
template <class Ask> OH_DEVICE bool oh_ask_once(Ask ask)
{
    const unsigned together = __activemask();
    const int speaker = __ffs(together) - 1;
    bool answer = false;
    if ((int)(threadIdx.x % warpSize) == speaker) {
        answer = ask();
    }
    return __shfl_sync(together, answer, speaker);
}

/*
 * User buffers. A kernel that sends early has not waited for the previous kernel, so the L1 caches may hold stale
 * lines: its reads bypass L1. Words are read once or twice, so L1 is of no use for them anyway. It is of use for single
 * elements, whose reads bypass it only if bypass_l1 is set.
 */
OH_DEVICE void oh_user_load(const char *at, oh_word16 *data)
{
    uint4 v = __ldcg(reinterpret_cast<const uint4 *>(at));
    *data = {{v.x, v.y, v.z, v.w}};
}

template <class Element> OH_DEVICE Element oh_element_load(const Element *at, bool bypass_l1)
{
    if constexpr (sizeof(Element) == 8) {
        return bypass_l1 ? (Element)__ldcg(reinterpret_cast<const unsigned long long *>(at)) : *at;
    } else {
        return bypass_l1 ? __ldcg(at) : *at;
    }
}

OH_DEVICE void oh_user_store(char *at, const oh_word16 &data)
{
    *reinterpret_cast<uint4 *>(at) = make_uint4(data.w[0], data.w[1], data.w[2], data.w[3]);
}

#endif
#endif
