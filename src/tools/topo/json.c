/* SPDX-License-Identifier: MIT */
/*
 * topo/json.c - a node and its verdict as JSON; the fields are described in doc/tools.md
 */
#include "tools/shared/json.h"
#include "tools/topo/node.h"

static void put_fact(struct oh_json *json, const char *key, enum oh_fact fact)
{
    if (fact == OH_UNKNOWN) {
        oh_json_null(json, key);
    } else {
        oh_json_flag(json, key, fact == OH_YES);
    }
}

static void put_text(struct oh_json *json, const char *key, const char *text)
{
    oh_json_text(json, key, text && text[0] ? text : NULL);
}

/* A number, or null below `least`. */
static void put_number(struct oh_json *json, const char *key, int number, int least)
{
    if (number < least) {
        oh_json_null(json, key);
    } else {
        oh_json_number(json, key, number);
    }
}

static void put_gpu(struct oh_json *json, const struct oh_node *node, int index)
{
    const struct oh_node_gpu *gpu = &node->gpu[index];
    oh_json_open(json, NULL, '{');
    put_number(json, "index", index < node->visible ? index : -1, 0);
    put_text(json, "bus_id", gpu->topo.bus_id);
    put_text(json, "name", gpu->topo.name);
    oh_json_flag(json, "visible", index < node->visible);
    put_number(json, "compute_major", gpu->topo.compute_major, 1);
    put_number(json, "compute_minor", gpu->topo.compute_major > 0 ? gpu->compute_minor : -1, 0);
    put_fact(json, "mig", gpu->topo.mig);
    put_fact(json, "ipc", gpu->ipc);
    put_number(json, "compute_mode", gpu->compute_mode, 0);
    put_number(json, "nvlinks", gpu->links, 0);
    put_number(json, "nvlinks_down", gpu->links < 0 ? -1 : gpu->links_down, 0);
    put_number(json, "fabric_state", gpu->fabric, 0);
    oh_json_text(json, "fabric", oh_node_fabric(gpu));
    put_text(json, "fabric_cluster", gpu->cluster);
    put_number(json, "fabric_clique", gpu->cluster[0] ? gpu->clique : -1, 0);
    put_text(json, "cpus", gpu->place.cpus);
    put_text(json, "numa", gpu->place.numa);
    put_text(json, "root_port", gpu->place.root);
    oh_json_close(json, '}');
}

static void put_pair(struct oh_json *json, const struct oh_node *node, int row, int column)
{
    const struct oh_node_pair *pair = oh_node_pair_at(node, row, column);
    char cell[16];
    oh_node_cell(pair, cell, sizeof cell);
    oh_json_open(json, NULL, '{');
    oh_json_number(json, "from", row);
    oh_json_number(json, "to", column);
    oh_json_text(json, "link", cell);
    put_number(json, "nvlinks", pair->links.active, 0);
    oh_json_flag(json, "nvswitch", pair->links.via_switch);
    put_text(json, "path", oh_path_name(pair->path));
    put_fact(json, "nvml_nvlink", pair->topo.nvml_nvlink);
    put_fact(json, "nvml_read", pair->topo.nvml_read);
    put_fact(json, "nvml_write", pair->topo.nvml_write);
    put_fact(json, "cuda_access", pair->topo.cuda_access);
    put_fact(json, "cuda_atomics", pair->topo.cuda_atomics);
    put_number(json, "bandwidth_mb_per_s", pair->mb_per_s, 1);
    put_number(json, "latency_ns", pair->latency_ns, 1);
    oh_json_close(json, '}');
}

static void put_verdict(struct oh_json *json, const struct oh_verdict *verdict)
{
    oh_json_open(json, "verdict", '{');
    oh_json_flag(json, "served", verdict->served);
    put_text(json, "reason", verdict->reason);
    put_text(json, "pair_reason", verdict->pair_reason);
    put_number(json, "from", verdict->row, 0);
    put_number(json, "to", verdict->column, 0);
    oh_json_number(json, "pairs_refused", verdict->refused);
    put_text(json, "remedy", verdict->remedy);
    oh_json_open(json, "served_group", '[');
    for (int i = 0; i < verdict->group_size; i++) {
        oh_json_number(json, NULL, verdict->group[i]);
    }
    oh_json_close(json, ']');
    put_text(json, "cuda_visible_devices", verdict->select);
    oh_json_close(json, '}');
}

void oh_node_json(const struct oh_node *node, const struct oh_verdict *verdict, FILE *stream)
{
    struct oh_json json = {.stream = stream};
    oh_json_open(&json, NULL, '{');
    oh_json_flag(&json, "simulated", oh_node_is_simulated(node));
    oh_json_flag(&json, "made_by_hand", node->by_hand);
    put_text(&json, "driver", node->driver);
    put_number(&json, "cuda_version", node->cuda, 1);
    oh_json_open(&json, "environment", '{');
    for (int v = 0; v < OH_NODE_VARIABLES; v++) {
        oh_json_text(&json, oh_node_variable_names[v], node->variable[v].set ? node->variable[v].value : NULL);
    }
    oh_json_close(&json, '}');
    oh_json_open(&json, "gpus", '[');
    for (int i = 0; i < node->visible + node->hidden; i++) {
        put_gpu(&json, node, i);
    }
    oh_json_close(&json, ']');
    oh_json_open(&json, "pairs", '[');
    for (int i = 0; i < node->visible * node->visible; i++) {
        if (i / node->visible != i % node->visible) {
            put_pair(&json, node, i / node->visible, i % node->visible);
        }
    }
    oh_json_close(&json, ']');
    put_verdict(&json, verdict);
    oh_json_close(&json, '}');
}
