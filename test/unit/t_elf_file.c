/* SPDX-License-Identifier: MIT */
/*
 * t_elf_file.c - the reader of ELF files: what it finds, and files that are cut short or have wrong bits
 *
 *   t_elf_file [SEED [ROUNDS]]
 */
#include "tools/doctor/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "test/tap.h"

/* A small xorshift generator: the same bits for the same seed everywhere. */
static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

struct bytes {
    unsigned char *at;
    size_t size;
};

static struct bytes read_file(const char *path)
{
    struct stat status;
    struct bytes bytes = {NULL, 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &status) == 0 && (bytes.at = malloc((size_t)status.st_size + 1))) {
        ssize_t got = read(fd, bytes.at, (size_t)status.st_size);
        bytes.size = got > 0 ? (size_t)got : 0;
    }
    close(fd);
    return bytes;
}

static int memory_file(const unsigned char *at, size_t size)
{
    int fd = memfd_create("t_elf_file", MFD_CLOEXEC);
    if (fd < 0 || write(fd, at, size) != (ssize_t)size) {
        tap_skip_all("no files in memory here");
    }
    return fd;
}

static enum oh_elf_file_status read_bytes(const unsigned char *at, size_t size, struct oh_elf_file *elf_p)
{
    char version[OH_ELF_VERSION];
    int fd = memory_file(at, size);
    enum oh_elf_file_status status = oh_elf_file_read(fd, elf_p);
    if (oh_elf_file_nccl_version(fd, version) && strlen(version) >= sizeof version) {
        status = (enum oh_elf_file_status)99;
    }
    close(fd);
    return status;
}

static bool is_known(enum oh_elf_file_status status, const struct oh_elf_file *elf)
{
    return status >= OH_ELF_OK && status <= OH_ELF_UNREADABLE && elf->slots >= 0 && elf->slots <= OH_ELF_SLOTS;
}

static void test_found(const char *plugin, const char *nccl)
{
    struct oh_elf_file elf = {0};
    struct bytes bytes = read_file(plugin);
    enum oh_elf_file_status status = read_bytes(bytes.at, bytes.size, &elf);
    tap_ok(status == OH_ELF_OK && elf.exports_onehop && elf.exports_call && !elf.exports_pcall && !elf.needs_nccl,
           "libonehop.so is known by its symbols, status %d", (int)status);
    free(bytes.at);

    bytes = read_file(nccl);
    status = read_bytes(bytes.at, bytes.size, &elf);
    tap_ok(status == OH_ELF_OK && elf.exports_call && elf.exports_pcall && !elf.exports_onehop && elf.call_field > 0,
           "libnccl.so.2 is known by its symbols");
    uint64_t call_field = elf.call_field;

    /* Without section headers, as after sstrip: what the linker sees is still found. */
    memset(bytes.at + offsetof(Elf64_Ehdr, e_shoff), 0, 8);
    status = read_bytes(bytes.at, bytes.size, &elf);
    tap_ok(status == OH_ELF_OK && elf.exports_pcall && elf.stripped && elf.call_field == call_field,
           "so it is without section headers");
    free(bytes.at);
}

static void test_refused(const struct bytes *good)
{
    struct oh_elf_file elf = {0};
    unsigned char *bytes = malloc(good->size);
    if (!bytes || !good->at) {
        exit(1);
    }
    memcpy(bytes, good->at, good->size);
    tap_ok(read_bytes(bytes, 0, &elf) == OH_ELF_NOT_ELF, "an empty file");
    tap_ok(read_bytes((const unsigned char *)"#!/bin/sh\nexit 0\n", 17, &elf) == OH_ELF_NOT_ELF, "a script");
    tap_ok(read_bytes(bytes, 40, &elf) == OH_ELF_DAMAGED, "half a header");
    tap_ok(read_bytes(bytes, 100, &elf) == OH_ELF_DAMAGED, "a header and nothing after it");
    bytes[EI_CLASS] = ELFCLASS32;
    tap_ok(read_bytes(bytes, good->size, &elf) == OH_ELF_FOREIGN, "32 bits");
    bytes[EI_CLASS] = ELFCLASS64;
    bytes[offsetof(Elf64_Ehdr, e_machine)] ^= 0xff;
    tap_ok(read_bytes(bytes, good->size, &elf) == OH_ELF_FOREIGN, "another processor");
    free(bytes);
    int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    tap_ok(oh_elf_file_read(fd, &elf) != OH_ELF_OK, "a folder");
    close(fd);
}

/* Flips bits where they hurt: half of them in the headers, the dynamic section and the tables before the code. */
static void test_damaged(const char *what, const struct bytes *good, long rounds)
{
    unsigned char *bytes = malloc(good->size);
    long bad = 0, refused = 0;
    if (!bytes) {
        exit(1);
    }
    for (long i = 0; i < rounds; i++) {
        struct oh_elf_file elf = {0};
        size_t size = good->size;
        memcpy(bytes, good->at, size);
        if (draw(3) == 0) {
            size = draw(size);
        }
        for (uint64_t flips = draw(8); flips > 0 && size > 0; flips--) {
            size_t within = draw(2) && size > 8192 ? 8192 : size;
            within = draw(3) == 0 && size > 1024 ? 1024 : within;
            bytes[draw(within)] ^= (unsigned char)(1u << draw(8));
        }
        enum oh_elf_file_status status = read_bytes(bytes, size, &elf);
        bad += !is_known(status, &elf);
        refused += status != OH_ELF_OK;
    }
    tap_ok(bad == 0 && refused > 0, "%s: %ld damaged copies read, %ld refused, %ld wrong answers", what, rounds,
           refused, bad);
    free(bytes);
}

int main(int argc, char **argv)
{
    char plugin[4096], nccl[4096];
    const char *top = getenv("abs_top_builddir");
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    long rounds = argc > 2 ? strtol(argv[2], NULL, 0) : 1000;
    if (!top) {
        tap_skip_all("abs_top_builddir is not set: run it by make check");
    }
    tap_note("seed %llu", (unsigned long long)seed);
    state = seed * 2 + 1;
    snprintf(plugin, sizeof plugin, "%s/.libs/libonehop.so", top);
    snprintf(nccl, sizeof nccl, "%s/test/simnode/.libs/libnccl.so.2", top);
    test_found(plugin, nccl);

    struct bytes good = read_file(nccl), own = read_file("/proc/self/exe");
    test_refused(&good);
    test_damaged("libnccl.so.2", &good, rounds);
    test_damaged("a program", &own, rounds);
    free(good.at);
    free(own.at);
    return tap_done();
}
