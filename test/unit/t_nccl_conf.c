/* SPDX-License-Identifier: MIT */
/*
 * t_nccl_conf.c - NCCL's variables from the environment and from nccl.conf, in NCCL's order; which values of NCCL_ALGO
 * leave one algorithm: programs' own, every list of NCCL's names, and the syntax of functions, against a reader of its
 * own
 */
#include "util/nccl_conf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/tap.h"

#define NAMES 7

static const char *const names[NAMES] = {"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
static const unsigned on_one_host = 1 << 0 | 1 << 1 | 1 << 4;

static void test_values(void)
{
    static const struct {
        const char *value;
        bool pins;
    } values[] = {
        {NULL, false},
        {"", false},
        {"allreduce:tree", true}, /* vLLM, SGLang, torchtitan */
        {"Tree", true},           /* Megatron-LM's five */
        {"Ring", true},
        {"CollnetDirect", true},
        {"CollnetChain", true},
        {"^NVLS", false},
        {"RING", true},
        {"tree,ring", false},
        {"NVLS,NVLSTree", true},
        {"^Tree,NVLS", true},
        {"^nvls,ring", true},
        {"broadcast:ring", false},
        {"allgather:ring", false},
        {"allgather:ring;reducescatter:ring", true},
        {"ReduceScatter:^NVLS", false},
        {"reducescatter:ring;reducescatter:ring,nvls", false},
        {"ring;allreduce:tree,ring", true}, /* a reduce-scatter has the ring */
        {"ring;allreduce:tree,ring;reducescatter:^ring", false},
        {"tree,ring;allreduce:^nvls,tree", true},
        {"ring;broadcast:^ring", true},
        {"broadcast:ring;allreduce:tree", true},
        {"allreduce:tree;allreduce:tree,ring", false},
        {"ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring", true}, /* NCCL's own example */
        {"ring,collnetdirect;allreduce:^tree;broadcast:ring", true},
        {"ring,nvls;allreduce:^tree;broadcast:ring", false},
        {";;allreduce:,,tree,;", true},
        {"^", false},
        {"newer", true},
        {"newer,tree", false},
        {"^newer", false},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        tap_ok(oh_nccl_algo_is_pinned(values[i].value) == values[i].pins, "%s pins: %s",
               values[i].value ? values[i].value : "not set", values[i].pins ? "yes" : "no");
    }
}

/* Writes the names of a set, in an order and in letters by chance. */
static void write_list(unsigned set, bool inverse, char *text)
{
    const int first = rand() % NAMES;
    text += sprintf(text, "%s", inverse ? "^" : "");
    for (int i = 0, written = 0; i < NAMES; i++) {
        const int name = (first + i) % NAMES;
        if (set & 1u << name) {
            text += sprintf(text, "%s%s", written++ ? "," : "", names[name]);
            text[-1] ^= (char)(rand() % 2 ? 0x20 : 0);
        }
    }
}

static void test_lists(void)
{
    unsigned wrong = 0;
    for (unsigned set = 1; set < 1 << NAMES; set++) {
        for (int way = 0; way < 8; way++) {
            const bool inverse = way & 1;
            char list[128], value[400];
            const unsigned left = (inverse ? ~set : set) & on_one_host;
            write_list(set, inverse, list);
            const bool later = way & 4;
            snprintf(value, sizeof value, "%s%s%s%s", later ? "tree,ring;reduce:^ring;" : "",
                     later || way & 2 ? "AllReduce:" : "", list, way & 2 ? ";broadcast:ring" : "");
            const bool right = oh_nccl_algo_is_pinned(value) == (__builtin_popcount(left) <= 1);
            wrong += !right;
            if (!right) {
                tap_note("%s", value);
            }
        }
    }
    tap_ok(wrong == 0, "every list of NCCL's names, inverse or not, alone, for allreduce and replaced");
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static bool is(const char *name, const char *expected)
{
    const char *value = oh_nccl_variable(name);
    return expected ? value && strcmp(value, expected) == 0 : !value;
}

static void test_file(void)
{
    char path[] = "/tmp/onehop-conf.XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    if (!file) {
        tap_ok(false, "%s can be written", path);
        return;
    }
    fputs("# NCCL_OUT=1\n\nNCCL_NO_VALUE\nNCCL_A=first\nNCCL_A=second\nNCCL_SET=file\nNCCL_EMPTY=\nNCCL_B=x=y #z\n"
          " NCCL_BLANK=1\nNCCL_DOS=1\r\nNCCL_LAST=8",
          file);
    fclose(file);
    setenv("NCCL_CONF_FILE", path, 1);
    setenv("NCCL_SET", "environment", 1);
    errno = 4711;
    tap_ok(is("NCCL_A", "first"), "of two lines the first counts");
    tap_ok(errno == 4711, "errno stays");
    unlink(path);
    tap_ok(is("NCCL_SET", "environment"), "the environment goes before the file");
    tap_ok(is("NCCL_EMPTY", "") && is("NCCL_B", "x=y #z") && is("NCCL_LAST", "8") && is("NCCL_DOS", "1"),
           "values as they are written");
    tap_ok(is("NCCL_OUT", NULL) && is("NCCL_NO_VALUE", NULL) && is("NCCL_BLANK", NULL) && is("NCCL", NULL),
           "comments, lines without a value, names behind a blank, parts of names: not set");
    tap_ok(!getenv("NCCL_A"), "the program's environment is as it was");
    tap_ok(oh_nccl_number("0x10", -1) == 16 && oh_nccl_number("12", -1) == 12 && oh_nccl_number("0", -1) == 0 &&
               oh_nccl_number("", -1) == -1 && oh_nccl_number(NULL, -1) == -1 && oh_nccl_number("1x", -1) == -1 &&
               oh_nccl_number("-5", -1) == -1 && oh_nccl_number("99999999999", -1) == -1,
           "whole numbers, and what is none");
}

int main(void)
{
    srand(4711); /* letters and order of names only */
    test_file();
    test_values();
    test_lists();
    return tap_done();
}
