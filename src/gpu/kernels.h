/* SPDX-License-Identifier: MIT */
/*
 * kernels.h - the device code: loading kernels, launching them, and edges between captured ones
 *
 * Does: Loads the images of images.S once per process, and all functions for a number of ranks into a context when its
 *    first communicator of that number attaches: later, loading could wait for a kernel that waits for a peer.
 * Threads: any.
 * Owns: the kernels, for the life of the process.
 */
#ifndef OH_GPU_KERNELS_H_
#define OH_GPU_KERNELS_H_

#include <nccl.h>
#include <stdbool.h>

#include "gpu/context.h"
#include "kernels/abi.h"
#include "plan/plan.h"

/* The targets of nvcc with blanks between, "sm_80 sm_90 compute_90"; "any": not known; "": the build has no kernels. */
extern const char oh_architectures[] __attribute__((visibility("hidden")));

/*
 * Returns whether a GPU can run code of one of the targets: sm_XY runs on X.Z with Z >= Y, and the driver compiles
 * compute_XY for X.Y and later. A target with a letter is for its own X.Y alone.
 */
bool oh_architectures_include(const char *architectures, int major, int minor);

/* An image has the functions of a collective and an algorithm. */
#define OH_KERNEL_IMAGES (ONEHOP_ALGORITHM_COUNT + ONEHOP_COLLECTIVE_COUNT - 1)
/*
 * Of an image: by type a function for any op and a list of calls, then by the first types one for a sum. A collective
 * that moves bytes has the first of each: for a list of calls, and for one call.
 */
#define OH_KERNEL_FUNCTIONS (OH_KERNEL_TYPES + OH_SUM_TYPES)

/* The kernels for one number of ranks in one context. */
struct oh_kernel_set {
    CUfunction function[OH_KERNEL_IMAGES][OH_KERNEL_FUNCTIONS]; /* NULL: there is none */
    bool programmatic; /* device and code know programmatic stream serialization (compute capability 9.0) */
};

/*
 * Gets the kernels for nranks in the current context, which is one of `device`. For attach only: allocates and may
 * synchronise. One thread at a time. Returns the driver's result (a failure is logged at INFO), as does oh_room_query.
 */
CUresult oh_kernel_set_get(CUdevice device, uint32_t nranks, const struct oh_kernel_set **set_p);

/* What a kernel of a set is. */
struct oh_kernel_kind {
    enum onehop_collective collective;
    size_t args_bytes; /* of its parameter */
};

/* Finds a kernel by its function. Returns false if the set has none. */
bool oh_kernel_find(const struct oh_kernel_set *set, CUfunction function, struct oh_kernel_kind *kind_p);

/* Returns whether the function is of any set. */
bool oh_kernel_is_ours(CUfunction function);

/* What every call of a launch has in common. `plan` and `op` must be such as oh_plan_choose and oh_op_... gave. */
struct oh_launch {
    const struct oh_kernel_set *set;
    const struct oh_plan *plan;
    const struct oh_op *op;
    ncclDataType_t type;
    CUstream stream;
    bool serial; /* without programmatic stream serialization, even where the device has it */
};

/*
 * Launches one kernel in the current context; allowed under stream capture. args: all but the op, which is set here.
 * Returns the driver's result.
 */
CUresult oh_kernel_launch(const struct oh_launch *launch, const struct oh_kernel_args *args);

/* The same for several calls in one launch. */
CUresult oh_kernel_launch_list(const struct oh_launch *launch, struct oh_kernel_list_args *args);

/* The kernels of ONEHOP_VERIFY in one context. */
struct oh_verify_kernels {
    CUfunction magnitudes, compare;
};

/* Gets them for the current context, as oh_kernel_set_get. */
CUresult oh_kernels_get_verify(struct oh_verify_kernels *kernels_p);

/* Launches one of them, for so many elements, in the current context. Returns the driver's result. */
CUresult oh_kernel_launch_verify(CUfunction function, const struct oh_verify_args *args, uint64_t elements,
                                 CUstream stream);

/*
 * Finds the room that the current context, which is `context` on `device`, has for all kernels of a set with the grids
 * of the table. A green context and a share of MPS have fewer multiprocessors than the device. Kernels of others are
 * not counted, because they end.
 */
CUresult oh_room_query(CUdevice device, const struct oh_context *context, const struct oh_kernel_set *set,
                       const struct oh_plan_table *table, struct oh_plan_room *room_p);

/* --- edge.c: edges between captured kernels, the later of which starts before the earlier has ended --------------- */

/*
 * A kernel of onehop triggers the launch of the next kernel, or starts while a kernel of the program runs. Each
 * waits (griddepcontrol.wait) before it reads or sends data. The capture belongs to the caller.
 */

/* Returns the most blocks of a kernel that waits while the program's kernel runs: on less than half of `sms` SMs. */
uint32_t oh_edge_early_blocks(uint32_t sms);

/*
 * Has `first` trigger the launch of `next`, if both are kernels of the set: early, right after its own wait, if their
 * grids may wait at the same time (oh_plan_pair_blocks); else late. `next` depends on `first` alone, and no node of
 * the program does. Returns the driver's result; after a failure `first` is unchanged.
 */
CUresult oh_edge_trigger(const struct oh_kernel_set *set, const struct oh_plan_room *room, CUgraphNode first,
                         CUgraphNode next);

/* An edge of a graph under capture. */
struct oh_edge {
    CUgraph graph;
    CUgraphNode from, to;
    struct oh_edge_data data;
    uint32_t early_blocks; /* oh_edge_early_blocks */
};

/*
 * Launches the kernel `to`, of onehop, when all blocks of the kernel `from` have started. The edge, the only one into
 * `to`, gets the launch order port (CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER). It stays programmatic, so `to` waits for
 * `from` to complete as before. Only if
 *
 *   `to` has at most early_blocks blocks: while `from` runs, they keep kernels of other branches that need whole SMs
 * off theirs; `from` is not a kernel of onehop, and not cooperative; all edges into `from` are of the default type, so
 * that at most one kernel of a branch waits in this way, and the epoch of `to` is final; `to` has no higher priority
 * than `from`, all of whose blocks must be scheduled first.
 *
 * Returns CUDA_SUCCESS, also if the edge is unchanged, or the driver's error: then the order of the two is lost.
 */
CUresult oh_edge_launch_early(const struct oh_edge *edge);

#endif
