/* SPDX-License-Identifier: MIT */
/*
 * kernels.cpp - the kernels for the CPU as in test/simnode/kernels.cpp, but on a memory as weak as a GPU's
 *
 * A store to staging memory is posted: it lands at a later time, before or after other stores of the same thread. Only
 * this binds the order, as in test/model/memory.pml: a fence and the end of the kernel let all stores of the thread
 * land; stores to one place land in their order, and the thread that made them sees them. A word lands in two halves.
 * Words are stored and loaded relaxed, as the GPU does. Loads are made in the order of the text.
 *
 * Few kernels: sums of fp32, any op of 32-bit integers, and those that move bytes; two and three ranks. t_protocol.sh
 * compiles this file often.
 */
#define OH_SIMNODE 1

/* These are made anew below. */
#define SIMNODE_OTHER_MEMORY
#define oh_spin_pause simnode_spin_pause
#define oh_pair_load simnode_pair_load
#define oh_pair_store simnode_pair_store
#define SIMNODE_KERNEL_END() stores.land_all()
#include "test/simnode/primitives_cpu.h"
#undef oh_spin_pause
#undef oh_pair_load
#undef oh_pair_store

#define MOST_POSTED 48

struct posted_store {
    char *at;
    uint64_t value;
    uint32_t bytes;
    bool late; /* lands much later than others */
};

/* The stores of one thread that have not landed. */
struct posted_stores {
    posted_store store[MOST_POSTED];
    uint32_t count;
    uint64_t state;

    posted_stores() : store(), count(0)
    {
        static uint64_t threads;
        state = (__atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED)) * 0x9e3779b97f4a7c15u;
    }

    uint32_t draw(uint32_t below)
    {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(state >> 33) % below;
    }
    void land(uint32_t i)
    {
        const posted_store landing = store[i];
        store[i] = store[--count];
        if (landing.bytes == 8) {
            __atomic_store_n(reinterpret_cast<uint64_t *>(landing.at), landing.value, __ATOMIC_RELAXED);
        } else if (landing.bytes == 4) {
            __atomic_store_n(reinterpret_cast<uint32_t *>(landing.at), (uint32_t)landing.value, __ATOMIC_RELAXED);
        } else {
            __atomic_store_n(landing.at, (char)landing.value, __ATOMIC_RELAXED);
        }
    }
    void land_all()
    {
        while (count > 0) {
            land(draw(count));
        }
    }
    /* Time passes. */
    void pass()
    {
        for (uint32_t i; count > 0 && draw(8) == 0;) {
            i = draw(count);
            if (!store[i].late || draw(64) == 0) {
                land(i);
            }
        }
    }
    /* One lands that is not late, if there is one. */
    void make_room()
    {
        uint32_t i = draw(count);
        for (uint32_t tried = 0; tried < count && store[i].late; tried++) {
            i = (i + 1) % count;
        }
        land(i);
    }
    /* Before the thread itself touches a place again. */
    void settle(const char *at)
    {
        for (uint32_t i = 0; i < count; i++) {
            if (store[i].at == at) {
                land(i);
                return; /* there is one at most */
            }
        }
    }
    void post(char *at, uint64_t value, uint32_t bytes)
    {
        settle(at);
        if (count == MOST_POSTED) {
            make_room();
        }
        store[count++] = {at, value, bytes, draw(32) == 0};
        pass();
    }
};
static thread_local posted_stores stores;

/* A load may come late. */
static inline void before_load(const char *at)
{
    stores.pass();
    stores.settle(at);
    if (stores.draw(256) == 0) {
        oh_litmus_delay();
    }
}

OH_DEVICE uint64_t oh_half_load(const char *at)
{
    before_load(at);
    return __atomic_load_n(reinterpret_cast<const uint64_t *>(at), __ATOMIC_RELAXED);
}

/*
 * Time passes faster than by loads: what posted late would else be awaited for milliseconds. It passes here, so that
 * pauses must stay short.
 */
OH_DEVICE void oh_spin_pause()
{
    static thread_local unsigned pauses;
    const struct timespec rest = {0, 50000};
    for (int i = 0; i < 4; i++) {
        stores.pass();
    }
    if (++pauses % 8 == 0) {
        nanosleep(&rest, nullptr);
    } else {
        sched_yield();
    }
}

OH_DEVICE void oh_lamport_store(char *at, const oh_word16 &data)
{
    stores.post(at, data.w[0] | (uint64_t)data.w[1] << 32, 8);
    stores.post(at + 8, data.w[2] | (uint64_t)data.w[3] << 32, 8);
}

OH_DEVICE void oh_lamport_send(char *at, const oh_word16 &data, uint32_t held)
{
    if (held == 0) {
        oh_lamport_store(at, data);
    }
}

OH_DEVICE void oh_lamport_load(const char *at, oh_word16 *data)
{
    const uint64_t first = oh_half_load(at), second = oh_half_load(at + 8);
    *data = {{(uint32_t)first, (uint32_t)(first >> 32), (uint32_t)second, (uint32_t)(second >> 32)}};
}

OH_DEVICE void oh_lamport_clear(char *at)
{
    oh_lamport_store(at, {{OH_SENTINEL, OH_SENTINEL, OH_SENTINEL, OH_SENTINEL}});
}

OH_DEVICE void oh_escape_store(char *at, uint32_t value)
{
    stores.post(at, value, 1);
}

OH_DEVICE uint32_t oh_escape_load(const char *at)
{
    before_load(at);
    return (unsigned char)__atomic_load_n(at, __ATOMIC_RELAXED);
}

OH_DEVICE uint32_t oh_word_load(const void *at)
{
    before_load(static_cast<const char *>(at));
    return __atomic_load_n(static_cast<const uint32_t *>(at), __ATOMIC_RELAXED);
}

OH_DEVICE void oh_word_store(void *at, uint32_t value)
{
    stores.post(static_cast<char *>(at), value, 4);
}

/* What is loaded as a pair may have been stored as two words. */
OH_DEVICE uint64_t oh_pair_load(const void *at)
{
    before_load(static_cast<const char *>(at));
    stores.settle(static_cast<const char *>(at) + 4);
    return __atomic_load_n(static_cast<const uint64_t *>(at), __ATOMIC_RELAXED);
}

OH_DEVICE void oh_pair_store(void *at, uint64_t value)
{
    stores.post(static_cast<char *>(at), value, 8);
}

#include "kernels/entry_points.cuh"

#undef OH_SUM_KERNELS
#define OH_SUM_KERNELS(collective_, algorithm_, body_, type_)                                                          \
    OH_SUM_KERNEL(collective_, algorithm_, body_, type_, 2) OH_SUM_KERNEL(collective_, algorithm_, body_, type_, 3)
#undef OH_EACH_RANKS
#define OH_EACH_RANKS(x_, ...) x_(__VA_ARGS__, n2, 2, 2) x_(__VA_ARGS__, n3, 3, 3)
#undef OH_EACH_SUM_TYPE
#define OH_EACH_SUM_TYPE(x_, ...) x_(__VA_ARGS__, f32)
#undef OH_EACH_FLOAT_TYPE
#define OH_EACH_FLOAT_TYPE(x_, ...)
#undef OH_EACH_INTEGER_TYPE
#define OH_EACH_INTEGER_TYPE(x_, ...) x_(__VA_ARGS__, i32)

#include "test/simnode/kernels.cpp"
