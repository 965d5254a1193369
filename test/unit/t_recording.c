/* SPDX-License-Identifier: MIT */
/*
 * t_recording.c - the reader of recordings (topo/json.c) on good, cut, damaged and foreign ones; on hostile ones:
 * test/fuzz/fuzz_recording.c
 */
#include <stdlib.h>
#include <string.h>

#include "test/tap.h"
#include "tools/topo/node.h"

#define LONG "0123456789012345678901234567890123456789"

#define HEAD "{\"schema\": 1, \"driver\": \"580.1\", \"cuda_version\": 13000, "
#define GPU0                                                                                                           \
    "{\"bus_id\": \"0000:19:00.0\", \"compute_major\": 9, \"mig\": false, \"ipc\": true, \"compute_mode\": 0, "        \
    "\"nvlinks\": 18, \"fabric_state\": 3, \"cpus\": \"0-3\", \"numa\": \"0\", \"name\": \"NVIDIA X\"}"
#define GPU1                                                                                                           \
    "{\"bus_id\": \"0000:3b:00.0\", \"compute_major\": 9, \"mig\": null, \"nvlinks\": 17, \"nvlinks_down\": 1, "       \
    "\"name\": \"NVIDIA X\"}"
#define HIDDEN "{\"visible\": false, \"bus_id\": \"0000:4c:00.0\"}"
#define PAIR(a_, ...)                                                                                                  \
    "{\"from\": " #a_ ", \"to\": " #__VA_ARGS__ ", \"nvml_nvlink\": true, \"nvml_read\": true, \"nvml_write\": true, " \
    "\"cuda_access\": true, \"cuda_atomics\": true, \"nvlinks\": 18, \"nvswitch\": true, \"path\": \"SYS\", "          \
    "\"bandwidth_mb_per_s\": 390000, \"latency_ns\": 2200}"
#define GPUS(gpus_) "{\"schema\": 1, \"gpus\": [" gpus_ "]}"
#define PAIRS(pairs_) "{\"schema\": 1, \"gpus\": [{}, {}], \"pairs\": [" pairs_ "]}"

static const char good[] = HEAD "\"comment\": \"any\", \"environment\": {\"CUDA_VISIBLE_DEVICES\": \"4,5\", "
                                "\"NCCL_P2P_LEVEL\": null},\n\"gpus\": [" GPU0 "," GPU1 "," HIDDEN "],\n\"pairs\": "
                                "[" PAIR(0, 1) "," PAIR(1, [ 0, 1 ]) "], \"verdict\": 5}\n";

static bool parse(const char *text, size_t size, struct oh_node *node_p, char why_p[160])
{
    why_p[0] = '\0';
    return oh_node_parse(text, size, node_p, why_p, 160);
}

static char *record(const struct oh_node *node, size_t *size_p)
{
    char *text;
    struct oh_verdict verdict;
    FILE *stream = open_memstream(&text, size_p);
    oh_node_assess(node, &verdict);
    oh_node_json(node, &verdict, stream);
    return fclose(stream) == 0 ? text : NULL;
}

static void test_good(void)
{
    struct oh_node node, again;
    char why[160];
    size_t size, again_size;
    bool parsed = parse(good, sizeof good - 1, &node, why);
    tap_ok(parsed, "a good recording is read");
    if (!parsed) {
        tap_note("%s", why);
        return;
    }
    const struct oh_node_pair *pair = oh_node_pair_at(&node, 1, 0);
    tap_ok(node.visible == 2 && node.hidden == 1 && strcmp(node.gpu[1].topo.bus_id, "0000:3b:00.0") == 0 &&
               strcmp(node.gpu[0].topo.name, "NVIDIA X") == 0 && node.gpu[0].topo.mig == OH_NO &&
               node.gpu[1].topo.mig == OH_UNKNOWN && node.gpu[0].ipc == OH_YES && node.gpu[1].links == 17 &&
               node.gpu[1].links_down == 1 && strcmp(node.gpu[0].cpus, "0-3") == 0 &&
               node.gpu[1].topo.cuda_device == 1 && node.gpu[2].topo.cuda_device == -1,
           "its GPUs");
    tap_ok(pair->topo.nvml_nvlink == OH_YES && pair->topo.cuda_atomics == OH_YES && pair->links == 18 &&
               pair->via_switch && strcmp(pair->path, "SYS") == 0 && pair->mb_per_s == 390000 &&
               pair->latency_ns == 2200 && oh_node_pair_at(&node, 1, 1)->links == -1,
           "its pairs, also as a range");
    tap_ok(strcmp(node.driver, "580.1") == 0 && node.cuda == 13000 && node.variable[OH_NODE_VISIBLE_DEVICES].set &&
               strcmp(node.variable[OH_NODE_VISIBLE_DEVICES].value, "4,5") == 0 &&
               !node.variable[OH_NODE_P2P_LEVEL].set && !node.variable[OH_NODE_P2P_DISABLE].set,
           "its versions and variables");
    char *text = record(&node, &size);
    parsed = text && parse(text, size, &again, why);
    tap_ok(parsed, "what is written is read");
    if (parsed) {
        char *second = record(&again, &again_size);
        tap_ok(second && size == again_size && memcmp(text, second, size) == 0, "and is the same when written again");
        free(second);
        oh_node_free(&again);
    }
    free(text);
    oh_node_free(&node);
}

static void test_cut(void)
{
    struct oh_node node;
    char why[160];
    bool all = true;
    for (size_t size = 0; size < sizeof good - 2; size++) {
        if (parse(good, size, &node, why)) {
            tap_note("cut after %zu bytes: read", size);
            oh_node_free(&node);
            all = false;
        } else if (!why[0]) {
            tap_note("cut after %zu bytes: no reason", size);
            all = false;
        }
    }
    tap_ok(all, "a recording that is cut off anywhere is refused, with a reason");
}

static void test_refused(void)
{
    static const struct {
        const char *text, *why, *name;
    } cases[] = {
        {"", "not a recording of onehop topo: line 1: ", "an empty file"},
        {"\x7f"
         "ELF\n",
         "not a recording of onehop topo: line 1: ", "another file"},
        {"onehop topology 1\nend\n", "not a recording of onehop topo: line 1: ", "a recording of an older onehop"},
        {"{\"schema\": 1, \033[31m", "not a recording of onehop topo: line 1: ", "JSON with an escape sequence"},
        {"[1]", "not a recording of onehop topo", "other JSON"},
        {"{\"gpus\": []}", "not a recording of onehop topo", "an object without version"},
        {"{\"schema\": 2, \"gpus\": []}", "schema: expected a number from 1 to 1", "the future"},
        {"{\"schema\": 1, \"gpus\": []}", "problem: expected a text if no GPU is visible", "nothing in it"},
        {HEAD "\"problem\": \"none\", \"gpus\": [" GPU0 "]}", "problem: expected a text if no GPU is visible", "both"},
        {GPUS(GPU0) "x", "not a recording of onehop topo: line 1: ", "more than the end"},
        {"{\"schema\": 1, \"schema\": 1, \"gpus\": [{}]}", "not a recording of onehop topo: line 1: ", "a key twice"},
        {GPUS("5"), "gpus[0]: expected an object", "a GPU that is a number"},
        {GPUS("{\"mig\": \"perhaps\"}"), "gpus[0].mig: expected true or false", "a fact that is none"},
        {GPUS("{}, {\"nvlinks\": 1000000000000}"), "gpus[1].nvlinks: expected a number from 0 to 999",
         "a number out of bounds"},
        {GPUS("{\"nvlinks\": 1.5}"), "gpus[0].nvlinks: expected a number from 0 to 999", "a number that is not whole"},
        {GPUS("{\"bus_id\": \"" LONG "\"}"), "gpus[0].bus_id: expected null or at most ", "a text that is too long"},
        {GPUS("{\"name\": \"\\u001b[31m\"}"), "gpus[0].name: expected null or at most ", "an escape sequence"},
        {GPUS("{\"name\": \"\xc3\xa4\"}"), "gpus[0].name: expected null or at most ", "what is not ASCII"},
        {GPUS("{\"name\": \"\\u0000\"}"), "not a recording of onehop topo: line 1: ", "a zero byte"},
        {"{\"schema\": 1, \"gpus\": [{}], \"environment\": {\"NCCL_P2P_LEVEL\": 5}}",
         "NCCL_P2P_LEVEL: expected null or at most ", "a variable that is a number"},
        {"{\"schema\": 1, \"gpus\": [{}], \"pairs\": [{\"from\": 0, \"to\": 1}]}",
         "pairs[0].to: expected a number from 0 to 0", "a pair beyond the GPUs"},
        {PAIRS("{\"from\": 0, \"to\": [1, 99999999]}"), "pairs[0].to: expected a number from 1 to 1", "a range beyond"},
        {PAIRS("{\"from\": 0, \"to\": [1, 0]}"), "pairs[0].to: expected a number from 1 to 1", "a range backwards"},
        {PAIRS("{\"from\": 0, \"to\": [1]}"), "pairs[0].to: expected a number from 1 to 1", "half a range"},
        {PAIRS("{\"from\": -1, \"to\": 1}"), "pairs[0].from: expected a number from 0 to 1", "a negative GPU"},
        {PAIRS("{\"from\": 0}"), "pairs[0].to: expected a number from 0 to 1", "half a pair"},
        {PAIRS("{\"from\": 0, \"to\": [0, 1, 1]}"), "pairs[0].to: expected a number, or ", "a range of three"},
        {"{\"schema\": 1, \"gpus\": {}}", "gpus: expected an array", "GPUs that are an object"},
        {"{\"schema\": 1, \"gpus\": [{}], \"pairs\": {}}", "pairs: expected an array", "pairs that are an object"},
        {"{\"schema\": 1, \"gpus\": [{}], \"environment\": []}", "environment: expected an object",
         "an environment that is an array"},
        {GPUS("{\"visible\": 1}"), "gpus[0].visible: expected true or false", "a flag that is a number"},
        {PAIRS("{\"from\": 0, \"to\": 1, \"path\": 5}"), "pairs[0].path: expected null or at most 7 ",
         "a path that is a number"},
        {GPUS(HIDDEN "," GPU0), "gpus[1].visible: expected false after ", "a visible GPU after hidden ones"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct oh_node node;
        char why[160];
        bool parsed = parse(cases[i].text, strlen(cases[i].text), &node, why);
        bool right = !parsed && strncmp(why, cases[i].why, strlen(cases[i].why)) == 0;
        for (const char *at = why; *at && right; at++) {
            right = *at >= ' ' && *at <= '~';
        }
        tap_ok(right, "refused: %s", cases[i].name);
        if (!right) {
            tap_note("got: %s", parsed ? "a node" : why);
        }
        if (parsed) {
            oh_node_free(&node);
        }
    }
}

/* The most GPUs that there may be, and one more. */
static void test_many(void)
{
    char text[16384] = "{\"schema\": 1, \"gpus\": [{}", why[160];
    struct oh_node node;
    size_t size = strlen(text);
    for (int i = 1; i < OH_NODE_GPUS; i++) {
        size += (size_t)snprintf(text + size, sizeof text - size, ", {}");
    }
    snprintf(text + size, sizeof text - size, "], \"pairs\": [{\"from\": 0, \"to\": [0, %d], \"nvml_nvlink\": false}]}",
             OH_NODE_GPUS - 1);
    bool parsed = parse(text, strlen(text), &node, why);
    tap_ok(parsed && node.visible == OH_NODE_GPUS &&
               oh_node_pair_at(&node, 0, OH_NODE_GPUS - 1)->topo.nvml_nvlink == OH_NO,
           "as many GPUs as there may be");
    if (parsed) {
        oh_node_free(&node);
    }
    snprintf(text + size, sizeof text - size, ", {}]}");
    parsed = parse(text, strlen(text), &node, why);
    tap_ok(!parsed && strcmp(why, "gpus: 129 of them; expected at most 128") == 0, "one more is refused");
}

int main(void)
{
    test_good();
    test_cut();
    test_refused();
    test_many();
    return tap_done();
}
