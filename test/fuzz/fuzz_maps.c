/* SPDX-License-Identifier: MIT */
/*
 * fuzz_maps.c - /proc/N/maps as `onehop doctor --pid` reads it: file names in it are the process's own choice
 *
 * sources: src/tools/doctor/elf_file.c
 */
#include <stdint.h>

#include "src/tools/doctor/process.c"

/* Of doctor_machine.c, live_reader.c and stats.c, which would bring in all of the library; not called here. */
bool oh_doctor_variable_matters(const char *name)
{
    (void)name;
    return false;
}

bool oh_doctor_environment_forbids(char *reason_p, size_t size)
{
    (void)reason_p;
    (void)size;
    return false;
}

enum oh_live_answer oh_live_read(pid_t pid, struct oh_live_view *view_p)
{
    (void)pid;
    (void)view_p;
    return OH_LIVE_NONE;
}

void oh_live_view_free(struct oh_live_view *view)
{
    (void)view;
}

uint64_t oh_stats_served(const struct oh_stats_record *record)
{
    (void)record;
    return 0;
}

uint64_t oh_stats_fallbacks(const struct oh_stats_record *record)
{
    (void)record;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct oh_process_report report = {0};
    char *text = malloc(size + 1), *rest = text, *line;
    if (!text) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    while ((line = strsep(&rest, "\n"))) {
        if (!read_mapping(&report, line)) {
            break;
        }
    }
    for (size_t i = 0; i < report.mappings; i++) {
        if (report.mapping[i].object >= report.objects || report.object[report.mapping[i].object].path[0] != '/') {
            abort();
        }
        object_at(&report, report.mapping[i].start);
    }
    free(report.mapping);
    free(report.object);
    free(text);
    return 0;
}
