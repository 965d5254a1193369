/* SPDX-License-Identifier: MIT */
/*
 * cuda_module.c - the simulated driver's libraries and kernels
 *
 * A library's data is not looked at: its kernels are those of simnode_kernel_find. A CUfunction is the CUkernel. The
 * blocks of a grid run one after the other on the stream's thread, or with SIMNODE_BLOCK_THREADS=1 in a thread each.
 * SIMNODE_DELAY_US=n sleeps up to n microseconds before a kernel and between its blocks.
 */
#include "test/simnode/cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

CUresult cuLibraryLoadData(CUlibrary *library_p, const void *code, CUjit_option *jit_options, void **jit_values,
                           unsigned jit_count, CUlibraryOption *options, void **values, unsigned count)
{
    SIMCUDA_LOCK();
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    SIMCUDA_FAIL_IF(!code, CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_TRY(simcuda_capture_check());
    CUlibrary library = simnode_new(sizeof *library);
    simcuda_add(SIMCUDA_LIBRARY, &library->object);
    *library_p = library;
    return CUDA_SUCCESS;
}

/* The library's kernel, made when it is first asked for. */
static CUkernel kernel_get(CUlibrary library, const struct simnode_kernel *code)
{
    CUkernel kernel = library->kernels;
    while (kernel && kernel->code != code) {
        kernel = kernel->next;
    }
    if (!kernel) {
        kernel = simnode_new(sizeof *kernel);
        kernel->code = code;
        kernel->next = library->kernels;
        library->kernels = kernel;
    }
    return kernel;
}

CUresult cuLibraryGetKernel(CUkernel *kernel_p, CUlibrary library, const char *name)
{
    SIMCUDA_LOCK();
    const struct simnode_kernel *code = name ? simnode_kernel_find(name) : NULL;
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_LIBRARY, library), CUDA_ERROR_INVALID_HANDLE);
    SIMCUDA_FAIL_IF(!code, CUDA_ERROR_NOT_FOUND);
    *kernel_p = kernel_get(library, code);
    return CUDA_SUCCESS;
}

/* The kernel behind a handle of either type; NULL: none. */
static CUkernel kernel_find(const void *handle)
{
    for (struct simcuda_object *object = simcuda.objects[SIMCUDA_LIBRARY]; object; object = object->next) {
        for (CUkernel kernel = ((CUlibrary)object)->kernels; kernel; kernel = kernel->next) {
            if (kernel == handle) {
                return kernel;
            }
        }
    }
    return NULL;
}

CUresult cuKernelGetFunction(CUfunction *function_p, CUkernel kernel)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_current(), CUDA_ERROR_INVALID_CONTEXT);
    SIMCUDA_FAIL_IF(!kernel_find(kernel), CUDA_ERROR_INVALID_HANDLE);
    *function_p = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

/* As of a GPU on which 32 registers of a thread let all threads of a multiprocessor in. */
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks_p, CUfunction function, int threads, size_t shared)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!kernel_find(function), CUDA_ERROR_INVALID_HANDLE);
    SIMCUDA_FAIL_IF(threads < 1 || threads > SIMCUDA_MAX_THREADS || shared != 0, CUDA_ERROR_INVALID_VALUE);
    *blocks_p = SIMCUDA_SM_THREADS / threads;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value_p, CUfunction_attribute attribute, CUfunction function)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!kernel_find(function), CUDA_ERROR_INVALID_HANDLE);
    SIMCUDA_FAIL_IF(attribute != CU_FUNC_ATTRIBUTE_PTX_VERSION, CUDA_ERROR_NOT_SUPPORTED);
    *value_p = 90; /* so that programs launch with programmatic stream serialization */
    return CUDA_SUCCESS;
}

/* A GPU would fault on such a pointer; here it would work, so it is looked for. */
static bool reachable(CUcontext ctx, const char *what, const void *address)
{
    if (!address || simcuda_reaches(ctx, address, 1)) {
        return true;
    }
    fprintf(stderr, "simnode: kernel argument %s %p is not memory that device %d can reach\n", what, address,
            ctx->device);
    return false;
}

static bool arguments_reachable(CUcontext ctx, const struct oh_kernel_args *args)
{
    for (int i = 0; i < OH_MAX_RANKS; i++) {
        if (!reachable(ctx, "staging", args->staging[i])) {
            return false;
        }
    }
    return reachable(ctx, "abort_flag", args->abort_flag) && reachable(ctx, "control", args->control) &&
           reachable(ctx, "scalar", args->scalar);
}

static bool buffers_reachable(CUcontext ctx, const void *sendbuff, const void *recvbuff)
{
    return reachable(ctx, "sendbuff", sendbuff) && reachable(ctx, "recvbuff", recvbuff);
}

/* Copies a kernel's parameter into the operation, when all that it points to can be reached. */
static CUresult take_arguments(CUcontext ctx, const struct CUkern_st *kernel, const void *parameter,
                               struct simcuda_op *op)
{
    const struct oh_kernel_list_args *args = &op->kernel.args;
    memcpy(&op->kernel.args, parameter, kernel->code->args_bytes);
    bool right = arguments_reachable(ctx, &args->base);
    if (kernel->code->args_bytes == sizeof args->base) {
        right = right && buffers_reachable(ctx, args->base.sendbuff, args->base.recvbuff);
    } else if (kernel->code->args_bytes == sizeof(struct oh_verify_args)) {
        const struct oh_verify_args *verify = (const void *)args;
        right = right && buffers_reachable(ctx, args->base.sendbuff, args->base.recvbuff) &&
                buffers_reachable(ctx, verify->reference, verify->magnitudes);
    } else {
        right = right && args->calls > 0 && args->calls <= OH_LIST_CALLS;
        for (uint32_t i = 0; right && i < args->calls; i++) {
            right = buffers_reachable(ctx, args->item[i].sendbuff, args->item[i].recvbuff);
        }
    }
    return right ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* A block may have as many threads as the kernel was compiled for. */
static CUresult check_shape(const CUlaunchConfig *config, const struct simnode_kernel *code)
{
    bool right = config->gridDimX > 0 && config->gridDimX <= OH_MAX_BLOCKS && config->gridDimY == 1 &&
                 config->gridDimZ == 1 && config->blockDimX > 0 && config->blockDimX <= code->threads &&
                 config->blockDimY == 1 && config->blockDimZ == 1 && (config->numAttrs == 0 || config->attrs);
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void put_kernel(struct simcuda_op *op, CUkernel kernel, const CUlaunchConfig *config)
{
    op->kernel.run = kernel->code->run;
    op->kernel.kernel = kernel;
    op->kernel.blocks = config->gridDimX;
    op->kernel.threads = config->blockDimX;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    SIMCUDA_LOCK();
    CUstream stream;
    struct simcuda_op op = {.kind = SIMCUDA_OP_KERNEL};
    SIMCUDA_FAIL_IF(!config || !parameters || !parameters[0] || extra, CUDA_ERROR_INVALID_VALUE);
    CUcontext ctx = simcuda_current();
    SIMCUDA_FAIL_IF(!ctx, CUDA_ERROR_INVALID_CONTEXT);
    CUkernel kernel = kernel_find(function);
    SIMCUDA_FAIL_IF(!kernel, CUDA_ERROR_INVALID_HANDLE);
    SIMCUDA_TRY(check_shape(config, kernel->code));
    SIMCUDA_TRY(simcuda_stream_find(config->hStream, &stream));
    SIMCUDA_FAIL_IF(stream->ctx != ctx, CUDA_ERROR_INVALID_HANDLE);
    put_kernel(&op, kernel, config);
    for (unsigned i = 0; i < config->numAttrs; i++) {
        op.kernel.programmatic |= config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                                  config->attrs[i].value.programmaticStreamSerializationAllowed;
    }
    SIMCUDA_TRY(take_arguments(ctx, kernel, parameters[0], &op));
    return simcuda_submit(stream, &op);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params_p)
{
    SIMCUDA_ENTER();
    SIMCUDA_FAIL_IF(node->op.kind != SIMCUDA_OP_KERNEL, CUDA_ERROR_INVALID_VALUE);
    node->parameters[0] = &node->op.kernel.args;
    *params_p = (CUDA_KERNEL_NODE_PARAMS){
        .func = (CUfunction)node->op.kernel.kernel,
        .gridDimX = node->op.kernel.blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = node->op.kernel.threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .kernelParams = node->parameters,
        .ctx = node->ctx,
    };
    return CUDA_SUCCESS;
}

/* Nothing is cooperative, and all streams have one priority. */
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUlaunchAttributeID id, CUlaunchAttributeValue *value_p)
{
    SIMCUDA_ENTER();
    SIMCUDA_FAIL_IF(node->op.kind != SIMCUDA_OP_KERNEL ||
                        (id != CU_LAUNCH_ATTRIBUTE_COOPERATIVE && id != CU_LAUNCH_ATTRIBUTE_PRIORITY),
                    CUDA_ERROR_INVALID_VALUE);
    memset(value_p, 0, sizeof *value_p);
    return CUDA_SUCCESS;
}

/* Allowed while the graph is captured. Edges stay what they are; an executable graph has what it was made with. */
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
    SIMCUDA_LOCK();
    const CUlaunchConfig config = {
        .gridDimX = params->gridDimX,
        .gridDimY = params->gridDimY,
        .gridDimZ = params->gridDimZ,
        .blockDimX = params->blockDimX,
        .blockDimY = params->blockDimY,
        .blockDimZ = params->blockDimZ,
    };
    CUkernel kernel = kernel_find(params->func);
    SIMCUDA_FAIL_IF(node->op.kind != SIMCUDA_OP_KERNEL || !kernel || !params->kernelParams || !params->kernelParams[0],
                    CUDA_ERROR_INVALID_VALUE);
    struct simcuda_op op = node->op;
    put_kernel(&op, kernel, &config);
    SIMCUDA_TRY(check_shape(&config, kernel->code));
    SIMCUDA_TRY(take_arguments(node->ctx, kernel, params->kernelParams[0], &op));
    node->op = op;
    return CUDA_SUCCESS;
}

static void delay(uint32_t *random)
{
    if (simcuda.delay_us > 0) {
        *random = *random * 1664525u + 1013904223u;
        usleep((*random >> 8) % (simcuda.delay_us + 1));
    }
}

static __thread CUcontext running; /* of the kernel that this thread runs */

static void trap(void)
{
    atomic_store(&running->trapped, true);
}

__attribute__((constructor)) static void set_trap(void)
{
    simnode_trap = trap;
}

/* One block of a grid, for a thread of its own. */
struct block {
    CUcontext ctx;
    const struct simcuda_op *op;
    unsigned index;
    uint32_t random;
    pthread_t thread;
};

static void *block_main(void *argument)
{
    struct block *block = argument;
    running = block->ctx;
    delay(&block->random);
    block->op->kernel.run(&block->op->kernel.args, block->index, block->op->kernel.blocks);
    return NULL;
}

static void run_threads(CUcontext ctx, const struct simcuda_op *op, uint32_t random)
{
    struct block block[OH_MAX_BLOCKS];
    for (unsigned i = 0; i < op->kernel.blocks; i++) {
        block[i] = (struct block){.ctx = ctx, .op = op, .index = i, .random = random + i * 2654435761u};
        if (pthread_create(&block[i].thread, NULL, block_main, &block[i]) != 0) {
            fprintf(stderr, "simnode: no thread for a block\n");
            abort();
        }
    }
    for (unsigned i = 0; i < op->kernel.blocks; i++) {
        pthread_join(block[i].thread, NULL);
    }
}

void simcuda_kernel_run(CUcontext ctx, const struct simcuda_op *op, uint32_t *random)
{
    if (atomic_load(&ctx->trapped)) {
        return;
    }
    running = ctx;
    simcuda.kernels_launched++;
    delay(random);
    if (simcuda.block_threads) {
        run_threads(ctx, op, *random);
        return;
    }
    for (unsigned i = 0; i < op->kernel.blocks; i++) {
        if (i > 0) {
            delay(random);
        }
        op->kernel.run(&op->kernel.args, i, op->kernel.blocks);
    }
}
