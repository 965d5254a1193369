/* SPDX-License-Identifier: MIT */
/*
 * dlsym_user.c - a program that depends on the fine points of dlsym, and prints what it sees
 *
 * Run without and with onehop in front, it must print the same. Names and files only, no addresses. With an argument,
 * opens that object first; its function user_next, if there is one, looks up with RTLD_NEXT from there.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *file_of(void *address)
{
    Dl_info info;
    const char *slash;
    if (!address || !dladdr(address, &info)) {
        return "nowhere";
    }
    slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

/* The file's own name may have a folder in it that differs between runs. */
static void print_error(const char *what)
{
    const char *error = dlerror();
    printf("%s: %s\n", what, error ? error : "no error");
}

/* A definition of the program's own, in front of libc's: RTLD_NEXT must find the latter, RTLD_DEFAULT the former. */
__attribute__((visibility("default"))) int getpagesize(void);
int getpagesize(void)
{
    return 1;
}

static void look_up_specially(void)
{
    printf("next getpagesize: %s\n", file_of(dlsym(RTLD_NEXT, "getpagesize")));
    printf("default getpagesize: %s\n", dlsym(RTLD_DEFAULT, "getpagesize") == (void *)getpagesize ? "own" : "other");
    printf("next main: %s\n", file_of(dlsym(RTLD_NEXT, "main_of_nobody")));
    print_error("next main");
    printf("default malloc and the one called: %s\n",
           dlsym(RTLD_DEFAULT, "malloc") == (void *)malloc ? "same" : "different");
    void *newer = dlvsym(RTLD_DEFAULT, "pthread_cond_wait", "GLIBC_2.3.2");
    void *older = dlvsym(RTLD_DEFAULT, "pthread_cond_wait", "GLIBC_2.2.5");
    printf("versions: %s, %s, %s\n", newer ? "newer" : "none", older ? "older" : "none",
           newer == older ? "same" : "different");
    printf("no version: %s\n", dlvsym(RTLD_DEFAULT, "malloc", "NOSUCH_1") ? "found" : "none");
    print_error("no version");
    printf("next with version: %s\n", file_of(dlvsym(RTLD_NEXT, "pthread_cond_wait", "GLIBC_2.3.2")));
}

static void make_errors(void)
{
    void *program = dlopen(NULL, RTLD_NOW);
    print_error("nothing yet");
    printf("missing: %p\n", dlsym(program, "no_such_name"));
    print_error("missing");
    print_error("again");
    printf("missing nccl: %p\n", dlsym(program, "ncclNoSuchName"));
    printf("then found: %d\n", dlsym(program, "printf") != NULL);
    print_error("after success");
    errno = 77;
    dlsym(program, "printf");
    printf("errno %d\n", errno);
    printf("libm in program: %d\n", dlsym(program, "cos") != NULL);
    void *libm = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
    printf("libm by handle: %s\n", file_of(dlsym(libm, "lgamma")));
    printf("libm by default: %d\n", dlsym(RTLD_DEFAULT, "lgamma") != NULL);
    errno = 78;
    dlsym(libm, "sin"); /* the first after an object was loaded */
    printf("errno %d\n", errno);
    dlclose(libm);
}

static void *many(void *unused)
{
    (void)unused;
    for (int i = 0; i < 2000; i++) {
        void *libm = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
        if (!dlsym(libm, "cos") || dlsym(libm, "nothing_like_this")) {
            abort();
        }
        dlclose(libm);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread[4];
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc > 1) {
        void *object = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        void *(*next)(void) = object ? (void *(*)(void))dlsym(object, "user_next") : NULL;
        printf("object: %s\n", object ? "open" : dlerror());
        printf("next from there: %s\n", next ? file_of(next()) : "not asked");
    }
    look_up_specially();
    make_errors();
    for (int i = 0; i < 4; i++) {
        pthread_create(&thread[i], NULL, many, NULL);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
    }
    puts("done");
    return 0;
}
