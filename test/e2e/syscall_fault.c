/* SPDX-License-Identifier: MIT */
/*
 * syscall_fault.c - preloaded behind onehop: its calls of the C library fail on request
 *
 * Takes SIMNODE_FAIL, SIMNODE_TRACE and SIMNODE_CALLER (test/simnode/fault.h), as the simulated libraries do for
 * theirs. Only libonehop.so is led here, by its own table of addresses, which the loader has filled and closed by then;
 * so every other part of the process has its C library as ever. Where NCCL loads it as a plugin, the simulated library
 * tells when (simnode_loaded). At exit one line, "descriptors N", goes to SIMNODE_REPORT's file: those that are open
 * and were not when the process began, and are not memory of the simulated driver's.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interpose/elf.h"
#include "test/simnode/fault.h"

/*
 * X(function, result type, parameters, arguments, result of a failure, errno of a failure). Of a variadic function the
 * parameters are those that it may be called with: whole numbers and pointers lie in the same registers either way, and
 * what was not given is not looked at.
 */
#define FUNCTIONS(X)                                                                                                   \
    X(calloc, void *, (size_t a, size_t b), (a, b), NULL, ENOMEM)                                                      \
    X(malloc, void *, (size_t a), (a), NULL, ENOMEM)                                                                   \
    X(realloc, void *, (void *a, size_t b), (a, b), NULL, ENOMEM)                                                      \
    X(strdup, char *, (const char *a), (a), NULL, ENOMEM)                                                              \
    X(fstat, int, (int a, struct stat *b), (a, b), -1, EOVERFLOW)                                                      \
    X(stat, int, (const char *a, struct stat *b), (a, b), -1, EACCES)                                                  \
    X(flock, int, (int a, int b), (a, b), -1, ENOLCK)                                                                  \
    X(ftruncate, int, (int a, off_t b), (a, b), -1, EIO)                                                               \
    X(posix_fallocate, int, (int a, off_t b, off_t c), (a, b, c), ENOSPC, errno)                                       \
    X(mmap, void *, (void *a, size_t b, int c, int d, int e, off_t f), (a, b, c, d, e, f), MAP_FAILED, ENOMEM)         \
    X(linkat, int, (int a, const char *b, int c, const char *d, int e), (a, b, c, d, e), -1, ENOENT)                   \
    X(unlink, int, (const char *a), (a), -1, EACCES)                                                                   \
    X(opendir, DIR *, (const char *a), (a), NULL, EMFILE)                                                              \
    X(getrandom, ssize_t, (void *a, size_t b, unsigned c), (a, b, c), -1, EAGAIN)                                      \
    X(gethostname, int, (char *a, size_t b), (a, b), -1, EPERM)                                                        \
    X(dlopen, void *, (const char *a, int b), (a, b), NULL, errno)                                                     \
    X(poll, int, (struct pollfd * a, nfds_t b, int c), (a, b, c), -1, ENOMEM)                                          \
    X(memfd_create, int, (const char *a, unsigned b), (a, b), -1, EMFILE)                                              \
    X(fopen, FILE *, (const char *a, const char *b), (a, b), NULL, EMFILE)                                             \
    X(fgets, char *, (char *a, int b, FILE *c), (a, b, c), NULL, EIO)                                                  \
    X(read, ssize_t, (int a, void *b, size_t c), (a, b, c), -1, EIO)                                                   \
    X(pread, ssize_t, (int a, void *b, size_t c, off_t d), (a, b, c, d), -1, EIO)                                      \
    X(readlink, ssize_t, (const char *a, char *b, size_t c), (a, b, c), -1, EACCES)                                    \
    X(fchmod, int, (int a, mode_t b), (a, b), -1, EPERM)                                                               \
    X(mprotect, int, (void *a, size_t b, int c), (a, b, c), -1, ENOMEM)                                                \
    X(getrlimit, int, (__rlimit_resource_t a, struct rlimit * b), (a, b), -1, EPERM)                                   \
    X(open, int, (const char *a, int b, mode_t c), (a, b, c), -1, EMFILE)                                              \
    X(openat, int, (int a, const char *b, int c, mode_t d), (a, b, c, d), -1, EMFILE)                                  \
    X(fcntl, int, (int a, int b, void *c), (a, b, c), -1, EINVAL)                                                      \
    X(syscall, long, (long a, long b, long c, long d, long e, long f, long g), (a, b, c, d, e, f, g), -1, ENOSYS)      \
    X(pthread_cond_init, int, (pthread_cond_t * a, const pthread_condattr_t *b), (a, b), ENOMEM, errno)                \
    X(pthread_attr_init, int, (pthread_attr_t * a), (a), ENOMEM, errno)                                                \
    X(pthread_create, int, (pthread_t * a, const pthread_attr_t *b, void *(*c)(void *), void *d), (a, b, c, d),        \
      EAGAIN, errno)

#define DEFINE(function_, type_, parameters_, arguments_, result_, error_)                                             \
    static type_(*real_##function_) parameters_;                                                                       \
    static type_ faulty_##function_ parameters_                                                                        \
    {                                                                                                                  \
        if (simnode_call(#function_, __builtin_return_address(0))) {                                                   \
            errno = error_;                                                                                            \
            return result_;                                                                                            \
        }                                                                                                              \
        return real_##function_ arguments_;                                                                            \
    }
FUNCTIONS(DEFINE)

static const struct {
    const char *name;
    void *faulty;
    void *real_p; /* where the real address goes */
} functions[] = {
#define ROW(function_, type_, parameters_, arguments_, result_, error_)                                                \
    {#function_, (void *)faulty_##function_, &real_##function_},
    FUNCTIONS(ROW)};

static unsigned led; /* functions that come here */

static void lead(void **slot, const char *name)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (strcmp(functions[i].name, name) == 0 && *slot != functions[i].faulty) {
            uintptr_t page = (uintptr_t)slot & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
            memcpy(functions[i].real_p, slot, sizeof *slot);
            mprotect((void *)page, (uintptr_t)(slot + 1) - page, PROT_READ | PROT_WRITE);
            *slot = functions[i].faulty;
            led++;
        }
    }
}

static void lead_all(const struct oh_elf *elf)
{
    const ElfW(Rela) * relocation;
    for (size_t i = 0; (relocation = oh_elf_relocation(elf, i)); i++) {
        const ElfW(Sym) *symbol = oh_elf_symbol_at(elf, relocation);
        if (symbol) {
            lead((void **)(elf->base + relocation->r_offset), elf->strings + symbol->st_name);
        }
    }
}

static int look_at(struct dl_phdr_info *info, size_t size, void *unused)
{
    const char *slash = strrchr(info->dlpi_name, '/');
    struct oh_elf elf;
    (void)size;
    (void)unused;
    if (!slash || strcmp(slash + 1, "libonehop.so") != 0) {
        return 0;
    }
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const struct link_map object = {.l_addr = info->dlpi_addr,
                                        .l_ld = (ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr)};
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC && oh_elf_read(&object, &elf)) {
            lead_all(&elf);
        }
    }
    return 0;
}

/* Files of the tests' folder for shared memory. The build's own folder may have onehop's name, too. */
static int count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char target[256] = "";
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        int fd = atoi(entry->d_name);
        count += length > 0 && fd != dirfd(folder) && strncmp(target, "/dev/shm/onehop-", 16) == 0;
    }
    if (folder) {
        closedir(folder);
    }
    return count;
}

/* nccl_plugin.c calls it when it has loaded something. */
__attribute__((visibility("default"))) void simnode_loaded(void);
void simnode_loaded(void)
{
    dl_iterate_phdr(look_at, NULL);
}

int __cxa_atexit(void (*run)(void *), void *argument, void *object);

static void report(void *unused)
{
    (void)unused;
    const char *prefix = getenv("SIMNODE_REPORT");
    char path[4096];
    if (prefix) {
        snprintf(path, sizeof path, "%s.%ld", prefix, (long)getpid());
        FILE *file = fopen(path, "ae");
        if (file) {
            fprintf(file, "descriptors %d\n", count_descriptors());
            fclose(file);
        }
    }
}

__attribute__((constructor)) static void start(void)
{
    dl_iterate_phdr(look_at, NULL);
    if (led == 0 && !getenv("NCCL_NET_PLUGIN")) {
        fprintf(stderr, "syscall_fault: libonehop.so is not there, or calls nothing\n");
        _exit(1);
    }
    /* Of no object, and before the loader's own: it runs when all objects, onehop among them, have had their ends. */
    __cxa_atexit(report, NULL, NULL);
}
