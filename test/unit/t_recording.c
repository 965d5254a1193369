/* SPDX-License-Identifier: MIT */
/*
 * t_recording.c - the reader of recordings (topo_parse.c) on good, cut, damaged, foreign and hostile ones
 */
#include "config.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_HWLOC
#include <hwloc.h>
#endif

#include "test/tap.h"
#include "tools/topo/fields.h"
#include "tools/topo/node.h"

#define MUTATIONS 30000

#define HEAD "onehop topology 1\n"
#define GPU0                                                                                                           \
    "gpu 0 bus=0000:19:00.0 cuda=0 major=9 mig=no ipc=yes mode=0 links=18 fabric=3 cpus=0-3 numa=0 name=NVIDIA X\n"
#define GPU1 "gpu 1 bus=0000:3b:00.0 cuda=1 major=9 mig=no ipc=yes mode=0 links=17 down=1 name=NVIDIA X\n"
#define PAIR(a_, b_)                                                                                                   \
    "pair " #a_ " " #b_ " nvlink=yes read=yes write=yes access=yes atomics=yes links=18 switch=1 path=5 mbps=390000 "  \
    "ns=2200\n"
#define XML "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n\t<object/>\n</topology>\n"

static const char good[] = HEAD "# a comment\ndriver 580.1\ncuda 13000\nCUDA_VISIBLE_DEVICES=4,5\n" GPU0 GPU1
                                "hidden 2 bus=0000:4c:00.0 name=NVIDIA X\n" PAIR(0, 1) PAIR(1, 0) "hwloc\n" XML "end\n";

static bool parse(const char *text, size_t size, struct oh_node *node_p, char why_p[160])
{
    /* A copy that ends where the text ends: a sanitizer then sees a look beyond. */
    char *copy = malloc(size ? size : 1);
    if (!copy) {
        exit(1);
    }
    memcpy(copy, text, size);
    why_p[0] = '\0';
    bool parsed = oh_node_parse(copy, size, node_p, why_p, 160);
    free(copy);
    return parsed;
}

static char *record(const struct oh_node *node, size_t *size_p)
{
    char *text;
    FILE *stream = open_memstream(&text, size_p);
    oh_node_record(node, stream);
    fclose(stream);
    return text;
}

static void test_good(void)
{
    struct oh_node node;
    char why[160];
    bool parsed = parse(good, sizeof good - 1, &node, why);
    tap_ok(parsed, "a good recording is read");
    if (!parsed) {
        tap_note("%s", why);
        return;
    }
    const struct oh_node_pair *pair = oh_node_pair_at(&node, 1, 0);
    tap_ok(node.visible == 2 && node.hidden == 1 && strcmp(node.gpu[1].topo.bus_id, "0000:3b:00.0") == 0 &&
               strcmp(node.gpu[0].topo.name, "NVIDIA X") == 0 && node.gpu[0].topo.mig == OH_NO &&
               node.gpu[0].ipc == OH_YES && node.gpu[1].links == 17 && node.gpu[1].links_down == 1 &&
               strcmp(node.gpu[0].place.cpus, "0-3") == 0 && node.gpu[2].topo.cuda_device == -1,
           "what it says of GPUs");
    tap_ok(pair->topo.nvml_nvlink == OH_YES && pair->topo.cuda_atomics == OH_YES && pair->links.active == 18 &&
               pair->links.via_switch && pair->path == OH_PATH_SYS && pair->mb_per_s == 390000 &&
               pair->latency_ns == 2200,
           "what it says of a pair");
    tap_ok(strcmp(node.driver, "580.1") == 0 && node.cuda == 13000 && node.variable[OH_NODE_VISIBLE_DEVICES].set &&
               strcmp(node.variable[OH_NODE_VISIBLE_DEVICES].value, "4,5") == 0 &&
               !node.variable[OH_NODE_P2P_LEVEL].set && node.xml && strcmp(node.xml, XML) == 0,
           "what it says of the machine");
    size_t size, again_size;
    struct oh_node again;
    char *text = record(&node, &size);
    parsed = parse(text, size, &again, why);
    tap_ok(parsed, "what is written is read");
    if (parsed) {
        char *second = record(&again, &again_size);
        tap_ok(size == again_size && memcmp(text, second, size) == 0, "and is the same when written again");
        free(second);
        oh_node_free(&again);
    }
    free(text);
    oh_node_free(&node);
}

/* With the ends of lines that other systems write. */
static void test_line_ends(void)
{
    char text[2 * sizeof good], why[160];
    size_t size = 0;
    struct oh_node node;
    for (const char *at = good; *at; at++) {
        if (*at == '\n') {
            text[size++] = '\r';
        }
        text[size++] = *at;
    }
    bool parsed = parse(text, size, &node, why);
    tap_ok(parsed && strcmp(node.gpu[0].topo.name, "NVIDIA X") == 0, "lines may end in CR LF");
    if (parsed) {
        oh_node_free(&node);
    }
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
        {"", "this is no recording of onehop topo", "an empty file"},
        {"\x7f"
         "ELF\n",
         "this is no recording of onehop topo", "another file"},
        {"onehop topology\n", "this is no recording of onehop topo", "a head without version"},
        {"onehop topology 2\nend\n", "the recording has version 2, and this onehop reads version 1", "the future"},
        {"onehop topology 1x\nend\n", "the recording is damaged at line 1", "a version that is none"},
        {"onehop topology 99999999999999999999\nend\n", "the recording is damaged at line 1", "a huge version"},
        {HEAD "end\n", "the recording is damaged: it has no GPU and does not say why", "nothing in it"},
        {HEAD GPU0 "problem none\nend\n", "the recording is damaged: it has GPUs and says that there are none", "both"},
        {HEAD GPU0 "end\nend\n", "the recording is damaged: something follows its end", "more than the end"},
        {HEAD GPU0 "wonder\nend\n", "the recording is damaged at line 3", "an unknown word"},
        {HEAD GPU0 "HOME=/root\nend\n", "the recording is damaged at line 3", "an unknown variable"},
        {HEAD GPU1 "end\n", "the recording is damaged at line 2", "a GPU out of turn"},
        {HEAD "gpu -1 name=x\nend\n", "the recording is damaged at line 2", "a negative GPU"},
        {HEAD "gpu\nend\n", "the recording is damaged at line 2", "a GPU without anything"},
        {HEAD "gpu 0 wheels=4\nend\n", "the recording is damaged at line 2", "an unknown key"},
        {HEAD "gpu 0 mig\nend\n", "the recording is damaged at line 2", "a key without value"},
        {HEAD "gpu 0 mig=perhaps\nend\n", "the recording is damaged at line 2", "a fact that is none"},
        {HEAD "gpu 0 links=1000000000000\nend\n", "the recording is damaged at line 2", "a number out of bounds"},
        {HEAD "gpu 0 bus=0123456789012345678901234567890123456789\nend\n", "the recording is damaged at line 2",
         "a text that is too long"},
        {HEAD "gpu 0 name=\033[31m\nend\n", "the recording is damaged at line 2", "an escape sequence"},
        {HEAD "gpu 0 name=\xc3\xa4\nend\n", "the recording is damaged at line 2", "what is not ASCII"},
        {HEAD GPU0 "pair 0 1\nend\n", "the recording is damaged at line 3", "a pair beyond the GPUs"},
        {HEAD GPU0 GPU1 "pair 0 1-99999999\nend\n", "the recording is damaged at line 4", "a range beyond the GPUs"},
        {HEAD GPU0 GPU1 "pair 0 1-0\nend\n", "the recording is damaged at line 4", "a range backwards"},
        {HEAD GPU0 GPU1 "pair 0\nend\n", "the recording is damaged at line 4", "half a pair"},
        {HEAD GPU0 GPU1 "pair 0 1 path=6\nend\n", "the recording is damaged at line 4", "a path that is none"},
        {HEAD GPU0 GPU1 PAIR(0, 1) "gpu 2 name=x\nend\n", "the recording is damaged at line 5", "a GPU after pairs"},
        {HEAD GPU0 "hidden 1 name=x\ngpu 2 name=x\nend\n", "the recording is damaged at line 4",
         "a visible GPU after hidden ones"},
        {HEAD GPU0 "hwloc\n" XML "hwloc\n" XML "end\n", "the recording is damaged at line 8", "two machines"},
        {HEAD GPU0 "hwloc\n\001\n</topology>\nend\n", "the recording is damaged at line 4", "XML that is not text"},
        {HEAD GPU0 "hwloc\n<topology>\nend\n", "the recording is cut off", "XML without end"},
        {HEAD GPU0 "hwloc\n<topology>\n</topology>", "the recording is cut off", "no end after the XML"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct oh_node node;
        char why[160];
        bool parsed = parse(cases[i].text, strlen(cases[i].text), &node, why);
        tap_ok(!parsed && strcmp(why, cases[i].why) == 0, "refused: %s", cases[i].name);
        if (parsed) {
            oh_node_free(&node);
        } else if (strcmp(why, cases[i].why) != 0) {
            tap_note("got: %s", why);
        }
    }
}

static void test_zero_byte(void)
{
    char text[sizeof good], why[160];
    struct oh_node node;
    memcpy(text, good, sizeof good);
    *strstr(text, "580.1") = '\0';
    bool parsed = parse(text, sizeof good - 1, &node, why);
    tap_ok(!parsed && strcmp(why, "the recording is damaged at line 3") == 0, "refused: a zero byte");
}

/* The most GPUs that there may be, and one more. */
static void test_many(void)
{
    char text[16384] = HEAD, why[160];
    struct oh_node node;
    size_t size = strlen(text);
    for (int i = 0; i < OH_NODE_GPUS; i++) {
        size += (size_t)snprintf(text + size, sizeof text - size, "gpu %d bus=0000:%02x:00.0 name=x\n", i, i);
    }
    snprintf(text + size, sizeof text - size, "pair 0 0-%d nvlink=no\nend\n", OH_NODE_GPUS - 1);
    bool parsed = parse(text, strlen(text), &node, why);
    tap_ok(parsed && node.visible == OH_NODE_GPUS &&
               oh_node_pair_at(&node, 0, OH_NODE_GPUS - 1)->topo.nvml_nvlink == OH_NO,
           "as many GPUs as there may be");
    if (parsed) {
        oh_node_free(&node);
    }
    snprintf(text + size, sizeof text - size, "gpu %d name=x\nend\n", OH_NODE_GPUS);
    parsed = parse(text, strlen(text), &node, why);
    tap_ok(!parsed && strcmp(why, "the recording has more than 128 GPUs") == 0, "one more is refused");
}

static void test_long_line(void)
{
    size_t size = 100000;
    char *text = malloc(size), why[160];
    struct oh_node node;
    if (!text) {
        exit(1);
    }
    memset(text, 'x', size);
    memcpy(text, HEAD, strlen(HEAD));
    tap_ok(!parse(text, size, &node, why) && strcmp(why, "the recording is damaged at line 2") == 0,
           "refused: a line without end");
    free(text);
}

/* Everything that is done with a node that was read; the results do not matter, but that they are there. */
static bool use(const struct oh_node *node)
{
    struct oh_verdict verdict;
    char *text, why[160];
    size_t size;
    struct oh_node again;
    oh_node_assess(node, &verdict);
    FILE *stream = open_memstream(&text, &size);
    oh_node_print(node, &verdict, true, stream);
    oh_node_json(node, &verdict, stream);
    oh_node_dot(node, &verdict, stream);
    fclose(stream);
    free(text);
    text = record(node, &size);
    bool read = parse(text, size, &again, why);
    if (read) {
        oh_node_free(&again);
    } else {
        tap_note("%s", why);
    }
    free(text);
    return read && (verdict.served || verdict.reason[0]);
}

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void test_mutations(void)
{
    static const char likely[] = "0123456789 =-,.\nabgh<>/\r\t";
    uint32_t state = 1;
    int read = 0;
    bool well = true;
    for (int i = 0; i < MUTATIONS; i++) {
        char text[sizeof good], why[160];
        struct oh_node node;
        memcpy(text, good, sizeof good);
        for (uint32_t changes = 1 + draw(&state) % 4; changes > 0; changes--) {
            size_t at = strlen(HEAD) + draw(&state) % (sizeof good - 1 - strlen(HEAD));
            text[at] = draw(&state) % 3 ? likely[draw(&state) % (sizeof likely - 1)] : (char)draw(&state);
        }
        if (parse(text, sizeof good - 1, &node, why)) {
            read++;
            well = use(&node) && well;
            oh_node_free(&node);
        } else {
            well = well && why[0];
        }
    }
    tap_ok(well && read > MUTATIONS / 100 && read < MUTATIONS, "%d damaged recordings are read or refused", MUTATIONS);
    tap_note("%d of them could be read", read);
}

/* Breaking lines: never within a word, nothing lost, cut where there is no room. */
static void test_wrap(void)
{
    char text[64];
    oh_node_wrap("one two three four", 9, "|", text, sizeof text);
    tap_ok(strcmp(text, "one two|three|four") == 0, "lines are broken between words");
    oh_node_wrap("incomprehensible it is", 5, "|", text, sizeof text);
    tap_ok(strcmp(text, "incomprehensible|it is") == 0, "a word longer than a line stays whole");
    oh_node_wrap("one two three", 80, "|", text, 6);
    tap_ok(strcmp(text, "one t") == 0, "a text that does not fit is cut");
}

#ifdef HAVE_HWLOC
/* libpciaccess, below hwloc, keeps a little memory: a leak checker, where there is one, looks away for that call. */
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

static struct oh_hwloc *open_machine(void)
{
    if (__lsan_disable) {
        __lsan_disable();
    }
    struct oh_hwloc *machine = oh_hwloc_open();
    if (__lsan_enable) {
        __lsan_enable();
    }
    return machine;
}

/* What hwloc writes must pass through whole, and be read by hwloc. */
static void test_hwloc(void)
{
    struct oh_hwloc *machine = open_machine();
    struct oh_node node = {.gpu = NULL}, again;
    char why[160];
    size_t size;
    node.xml = oh_hwloc_xml(machine, &node.xml_size);
    snprintf(node.problem, sizeof node.problem, "none here");
    char *text = record(&node, &size);
    bool parsed = parse(text, size, &again, why);
    tap_ok(node.xml && parsed && again.xml && strcmp(node.xml, again.xml) == 0, "hwloc's XML passes through whole");
    hwloc_topology_t topology;
    bool loaded = parsed && again.xml && hwloc_topology_init(&topology) == 0;
    if (loaded) {
        loaded = hwloc_topology_set_xmlbuffer(topology, again.xml, (int)again.xml_size + 1) == 0 &&
                 hwloc_topology_load(topology) == 0 && hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU) > 0;
        hwloc_topology_destroy(topology);
    }
    tap_ok(loaded, "hwloc reads it");
    free(text);
    if (parsed) {
        oh_node_free(&again);
    }
    oh_node_free(&node);
    oh_hwloc_close(machine);
}
#else
static void test_hwloc(void)
{
    tap_note("built without hwloc");
}
#endif

int main(void)
{
    test_good();
    test_line_ends();
    test_cut();
    test_refused();
    test_zero_byte();
    test_many();
    test_long_line();
    test_mutations();
    test_wrap();
    test_hwloc();
    return tap_done();
}
