/* SPDX-License-Identifier: MIT */
/*
 * nvtx.c - NVTX ranges, without linking NVTX
 *
 * Does: Registers the domain, its strings and the schema of the payload.
 * Threads: any.
 * Owns: the domain.
 */
#include "util/nvtx.h"

#ifdef HAVE_NVTX

#include <sys/auxv.h>

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>

#include "util/env.h"

#define MOST_MESSAGES 16

atomic_bool oh_nvtx_active;

static nvtxDomainHandle_t domain; /* these three: published by oh_nvtx_active */
static nvtxStringHandle_t handles[MOST_MESSAGES];
static uint64_t schema;

static void register_schema(void)
{
#define ENTRY(name_)                                                                                                   \
    {                                                                                                                  \
        .type = NVTX_PAYLOAD_ENTRY_TYPE_UINT64, .name = #name_, .offset = offsetof(struct oh_nvtx_payload, name_)      \
    }
    static const nvtxPayloadSchemaEntry_t entries[] = {ENTRY(comm),      ENTRY(sequence), ENTRY(bytes),
                                                       ENTRY(algorithm), ENTRY(calls),    ENTRY(collective)};
    const nvtxPayloadSchemaAttr_t attributes = {
        .fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE |
                     NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES |
                     NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE,
        .name = "onehop call",
        .type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC,
        .entries = entries,
        .numEntries = sizeof entries / sizeof *entries,
        .payloadStaticSize = sizeof(struct oh_nvtx_payload),
    };
    schema = nvtxPayloadSchemaRegister(domain, &attributes);
}

void oh_nvtx_start(const char *const *messages, int count)
{
    static atomic_flag begun = ATOMIC_FLAG_INIT;
    /* NVTX loads what the environment names: not in a set-user-ID program. */
    if (atomic_flag_test_and_set(&begun) || getauxval(AT_SECURE) || !oh_env_flag(OH_ENV_NVTX, true)) {
        return;
    }
    domain = nvtxDomainCreateA("onehop");
    if (!domain) {
        return; /* no profiler */
    }
    for (int m = 0; m < count && m < MOST_MESSAGES; m++) {
        handles[m] = messages[m] ? nvtxDomainRegisterStringA(domain, messages[m]) : NULL;
    }
    register_schema();
    /* release: publishes domain, handles, schema. Pairs with the acquire load in oh_nvtx_on(). */
    atomic_store_explicit(&oh_nvtx_active, true, memory_order_release);
}

void oh_nvtx_push(int message, const struct oh_nvtx_payload *payload)
{
    const nvtxPayloadData_t data = {schema, sizeof *payload, payload};
    nvtxEventAttributes_t event = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .messageType = NVTX_MESSAGE_TYPE_REGISTERED,
        .message = {.registered = handles[message]},
    };
    if (schema != 0) { /* 0: the profiler does not take payloads of that kind */
        event.payloadType = NVTX_PAYLOAD_TYPE_EXT;
        event.reserved0 = 1; /* payloads that follow */
        event.payload.ullValue = (uint64_t)(uintptr_t)&data;
    } else {
        event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
        event.payload.ullValue = payload->bytes;
    }
    nvtxDomainRangePushEx(domain, &event);
}

void oh_nvtx_pop(void)
{
    nvtxDomainRangePop(domain);
}

#endif
