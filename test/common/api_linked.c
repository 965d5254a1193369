/* SPDX-License-Identifier: MIT */
/*
 * api_linked.c - the tables of a program that is linked with CUDA and NCCL
 *
 * The dynamic linker fills them, so that they have what any such program calls, by whatever way onehop is loaded
 * (NCCL_NET_PLUGIN changes these addresses, too). What older libraries lack is weak.
 */
#define ONEHOP_WEAK
#include "test/common/api.h"

#define CF_DECLARE(name_, parameters_) __attribute__((weak)) ncclResult_t nccl##name_ parameters_;
CF_NCCL_OPTIONAL(CF_DECLARE)
#undef CF_DECLARE

struct cf_cuda cu = {
#define CF_ENTRY(field_, symbol_, parameters_) .field_ = symbol_,
    CF_CUDA_REQUIRED(CF_ENTRY)
#undef CF_ENTRY
};

struct cf_nccl nccl = {
#define CF_ENTRY(name_, parameters_) .name_ = nccl##name_,
    CF_NCCL_REQUIRED(CF_ENTRY) CF_NCCL_OPTIONAL(CF_ENTRY)
#undef CF_ENTRY
        .onehop_version = onehopVersion,
    .onehop_comm_info = onehopCommInfo,
};

const char *cf_api_open(void)
{
    return NULL;
}

const char *cf_api_open_cuda(void)
{
    return NULL;
}
