/* SPDX-License-Identifier: MIT */
/*
 * doctor/elf_file.h - what an ELF file has to do with NCCL, read from the file without executing it
 *
 * The file may be anything: every offset and size in it is checked against its length, every loop has a bound, and no
 * more memory is taken than the file is long. 64-bit files of this machine's kind only. No state.
 */
#ifndef OH_TOOLS_DOCTOR_ELF_FILE_H_
#define OH_TOOLS_DOCTOR_ELF_FILE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OH_ELF_SLOTS 16
#define OH_ELF_VERSION 48

enum oh_elf_file_status {
    OH_ELF_OK,
    OH_ELF_NOT_ELF,
    OH_ELF_FOREIGN,    /* 32 bits, or another processor's */
    OH_ELF_DAMAGED,    /* cut short, or contradicts itself */
    OH_ELF_UNREADABLE, /* the system said no: errno */
};

struct oh_elf_file {
    bool needs_nccl;     /* names an NCCL library as needed */
    bool needs_onehop;   /* names libonehop.so as needed */
    bool exports_call;   /* other objects can bind to its ncclAllReduce */
    bool exports_pcall;  /* to its pncclAllReduce: it is an NCCL */
    bool exports_onehop; /* it is libonehop.so, under whatever name */
    bool exports_dlsym;  /* it answers dlsym for others */
    bool hides_call;     /* has ncclAllReduce inside, where nothing can be bound to it: statically linked NCCL */
    bool stripped;       /* has no table of such symbols, so that hides_call may be wrong */
    uint64_t base;       /* lowest address that it asks for, rounded down to a page */
    uint64_t call_field; /* address of the value of its exported ncclAllReduce in its table of symbols; 0: none */
    uint64_t slot[OH_ELF_SLOTS]; /* addresses of the words through which it calls ncclAllReduce */
    int slots;
};

/* Reads the open file. *elf_p is set only for OH_ELF_OK. */
enum oh_elf_file_status oh_elf_file_read(int fd, struct oh_elf_file *elf_p);

/* What a status says of a file, as a clause ("is not an ELF file"). Static storage. */
const char *oh_elf_file_complaint(enum oh_elf_file_status status);

/* The version that an NCCL in this file would say ("2.28.9+cuda13.0"). False when there is none to be found. */
bool oh_elf_file_nccl_version(int fd, char version_p[OH_ELF_VERSION]);

#endif
