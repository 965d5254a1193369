/* SPDX-License-Identifier: MIT */
/*
 * fuzz_elf_file.c - files that `onehop doctor` looks at: anything may be in them
 *
 * sources: src/tools/doctor/elf_file.c
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/doctor/elf_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    struct oh_elf_file elf;
    char version[OH_ELF_VERSION];
    if (fd < 0) {
        fd = memfd_create("elf", MFD_CLOEXEC);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) {
        abort();
    }
    if (oh_elf_file_read(fd, &elf) == OH_ELF_OK && (elf.slots < 0 || elf.slots > OH_ELF_SLOTS)) {
        abort();
    }
    if (oh_elf_file_nccl_version(fd, version) && strnlen(version, sizeof version) == sizeof version) {
        abort();
    }
    return 0;
}
