/* SPDX-License-Identifier: MIT */
/*
 * nvtx_tool.c - a profiler of a kind: writes down the domains, strings, schemas and ranges that a program makes by NVTX
 *
 * NVTX loads it where NVTX_INJECTION64_PATH names it. The lines go to the file that NVTX_TOOL_OUT names, with the
 * process id behind it. Of domains that are not onehop's (NCCL has one) only the ranges' beginnings. With
 * NVTX_TOOL_PLAIN=1 it knows nothing of payloads by schema.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>

#define EXPORT __attribute__((visibility("default")))
#define FIELDS_MAX 16

static char domain, elsewhere; /* their addresses are the only handles there are */
static struct {
    char name[FIELDS_MAX][32];
    size_t offset[FIELDS_MAX];
    size_t count;
    size_t bytes;
} schema;
static __thread int depth;

static void __attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
    char path[512];
    const char *start = getenv("NVTX_TOOL_OUT");
    va_list args;
    snprintf(path, sizeof path, "%s.%d", start ? start : "/dev/null", (int)getpid());
    FILE *file = fopen(path, "ae");
    if (file) {
        va_start(args, format);
        vfprintf(file, format, args);
        va_end(args);
        fclose(file);
    }
}

static nvtxDomainHandle_t create(const char *name)
{
    say("domain %s\n", name);
    return (nvtxDomainHandle_t)(void *)(strcmp(name, "onehop") == 0 ? &domain : &elsewhere);
}

static bool is_ours(nvtxDomainHandle_t handle)
{
    return handle == (nvtxDomainHandle_t)(void *)&domain;
}

static nvtxStringHandle_t keep(nvtxDomainHandle_t handle, const char *text)
{
    (void)handle;
    return (nvtxStringHandle_t)(void *)strdup(text);
}

static uint64_t keep_schema(nvtxDomainHandle_t handle, const nvtxPayloadSchemaAttr_t *attributes)
{
    if (!is_ours(handle)) {
        return 4712;
    }
    for (size_t i = 0; i < attributes->numEntries && i < FIELDS_MAX; i++) {
        snprintf(schema.name[i], sizeof schema.name[i], "%s", attributes->entries[i].name);
        schema.offset[i] = attributes->entries[i].offset;
        schema.count++;
    }
    schema.bytes = attributes->payloadStaticSize;
    say("schema %s\n", attributes->name);
    return 4711;
}

/* " NAME=NUMBER" for each field. */
static void describe_payload(const nvtxPayloadData_t *data, char *text_p, size_t size)
{
    size_t used = 0;
    if (data->schemaId != 4711 || data->size != schema.bytes) {
        snprintf(text_p, size, " a payload of another kind");
        return;
    }
    for (size_t i = 0; i < schema.count && used < size; i++) {
        uint64_t number;
        memcpy(&number, (const char *)data->payload + schema.offset[i], sizeof number);
        used += (size_t)snprintf(text_p + used, size - used, " %s=%llu", schema.name[i], (unsigned long long)number);
    }
}

/* One line at a time: other threads have lines, too. */
static int push(nvtxDomainHandle_t handle, const nvtxEventAttributes_t *event)
{
    char payload[512] = "";
    if (!is_ours(handle)) {
        say("push elsewhere\n");
        return 0;
    }
    if (event->payloadType == NVTX_PAYLOAD_TYPE_EXT && event->reserved0 == 1) {
        describe_payload((const nvtxPayloadData_t *)(uintptr_t)event->payload.ullValue, payload, sizeof payload);
    } else if (event->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64) {
        snprintf(payload, sizeof payload, " %llu", (unsigned long long)event->payload.ullValue);
    }
    say("push %s%s\n",
        event->messageType == NVTX_MESSAGE_TYPE_REGISTERED ? (const char *)(const void *)event->message.registered
                                                           : "?",
        payload);
    return depth++;
}

static int pop(nvtxDomainHandle_t handle)
{
    if (!is_ours(handle)) {
        return 0;
    }
    say("pop %d\n", --depth);
    return depth;
}

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) ||
        size <= NVTX_CBID_CORE2_DomainCreateA) {
        return 0;
    }
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
    *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)keep;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return 1;
}

EXPORT int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *info);
EXPORT int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *info)
{
    if (info->moduleId != NVTX_EXT_PAYLOAD_MODULEID || getenv("NVTX_TOOL_PLAIN")) {
        return 0;
    }
    info->segments->functionSlots[NVTX3EXT_CBID_nvtxPayloadSchemaRegister] = (intptr_t)keep_schema;
    return 1;
}
