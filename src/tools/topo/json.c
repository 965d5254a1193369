/* SPDX-License-Identifier: MIT */
/*
 * topo/json.c - a node and its verdict as JSON; the fields are described in doc/tools.md
 */
#include "tools/shared/json.h"
#include "tools/topo/node.h"

static json_t *fact(enum oh_fact fact)
{
    return fact == OH_UNKNOWN ? json_null() : json_boolean(fact == OH_YES);
}

static json_t *text(const char *text)
{
    return oh_json_text(text && text[0] ? text : NULL);
}

/* A number, or null below `least`. */
static json_t *number(int number, int least)
{
    return number < least ? json_null() : json_integer(number);
}

static json_t *make_gpu(const struct oh_node *node, int index)
{
    const struct oh_node_gpu *gpu = &node->gpu[index];
    json_t *object = json_object();
    oh_json_set(&object, "index", number(index < node->visible ? index : -1, 0));
    oh_json_set(&object, "bus_id", text(gpu->topo.bus_id));
    oh_json_set(&object, "name", text(gpu->topo.name));
    oh_json_set(&object, "visible", json_boolean(index < node->visible));
    oh_json_set(&object, "compute_major", number(gpu->topo.compute_major, 1));
    oh_json_set(&object, "compute_minor", number(gpu->topo.compute_major > 0 ? gpu->compute_minor : -1, 0));
    oh_json_set(&object, "mig", fact(gpu->topo.mig));
    oh_json_set(&object, "ipc", fact(gpu->ipc));
    oh_json_set(&object, "compute_mode", number(gpu->compute_mode, 0));
    oh_json_set(&object, "nvlinks", number(gpu->links, 0));
    oh_json_set(&object, "nvlinks_down", number(gpu->links < 0 ? -1 : gpu->links_down, 0));
    oh_json_set(&object, "fabric_state", number(gpu->fabric, 0));
    oh_json_set(&object, "fabric", oh_json_text(oh_node_fabric(gpu)));
    oh_json_set(&object, "fabric_cluster", text(gpu->cluster));
    oh_json_set(&object, "fabric_clique", number(gpu->cluster[0] ? gpu->clique : -1, 0));
    oh_json_set(&object, "cpus", text(gpu->place.cpus));
    oh_json_set(&object, "numa", text(gpu->place.numa));
    oh_json_set(&object, "root_port", text(gpu->place.root));
    return object;
}

static json_t *make_pair(const struct oh_node *node, int row, int column)
{
    const struct oh_node_pair *pair = oh_node_pair_at(node, row, column);
    char cell[16];
    json_t *object = json_object();
    oh_node_cell(pair, cell, sizeof cell);
    oh_json_set(&object, "from", json_integer(row));
    oh_json_set(&object, "to", json_integer(column));
    oh_json_set(&object, "link", oh_json_text(cell));
    oh_json_set(&object, "nvlinks", number(pair->links.active, 0));
    oh_json_set(&object, "nvswitch", json_boolean(pair->links.via_switch));
    oh_json_set(&object, "path", text(oh_path_name(pair->path)));
    oh_json_set(&object, "nvml_nvlink", fact(pair->topo.nvml_nvlink));
    oh_json_set(&object, "nvml_read", fact(pair->topo.nvml_read));
    oh_json_set(&object, "nvml_write", fact(pair->topo.nvml_write));
    oh_json_set(&object, "cuda_access", fact(pair->topo.cuda_access));
    oh_json_set(&object, "cuda_atomics", fact(pair->topo.cuda_atomics));
    oh_json_set(&object, "bandwidth_mb_per_s", number(pair->mb_per_s, 1));
    oh_json_set(&object, "latency_ns", number(pair->latency_ns, 1));
    return object;
}

static json_t *make_verdict(const struct oh_verdict *verdict)
{
    json_t *object = json_object(), *group = json_array();
    oh_json_set(&object, "served", json_boolean(verdict->served));
    oh_json_set(&object, "reason", text(verdict->reason));
    oh_json_set(&object, "pair_reason", text(verdict->pair_reason));
    oh_json_set(&object, "from", number(verdict->row, 0));
    oh_json_set(&object, "to", number(verdict->column, 0));
    oh_json_set(&object, "pairs_refused", json_integer(verdict->refused));
    oh_json_set(&object, "remedy", text(verdict->remedy));
    for (int i = 0; i < verdict->group_size; i++) {
        oh_json_append(&group, json_integer(verdict->group[i]));
    }
    oh_json_set(&object, "served_group", group);
    oh_json_set(&object, "cuda_visible_devices", text(verdict->select));
    return object;
}

static json_t *make_environment(const struct oh_node *node)
{
    json_t *object = json_object();
    for (int v = 0; v < OH_NODE_VARIABLES; v++) {
        oh_json_set(&object, oh_node_variable_names[v],
                    oh_json_text(node->variable[v].set ? node->variable[v].value : NULL));
    }
    return object;
}

bool oh_node_json(const struct oh_node *node, const struct oh_verdict *verdict, FILE *stream)
{
    json_t *object = json_object(), *gpus = json_array(), *pairs = json_array();
    oh_json_set(&object, "simulated", json_boolean(oh_node_is_simulated(node)));
    oh_json_set(&object, "made_by_hand", json_boolean(node->by_hand));
    oh_json_set(&object, "driver", text(node->driver));
    oh_json_set(&object, "cuda_version", number(node->cuda, 1));
    oh_json_set(&object, "environment", make_environment(node));
    for (int i = 0; i < node->visible + node->hidden; i++) {
        oh_json_append(&gpus, make_gpu(node, i));
    }
    oh_json_set(&object, "gpus", gpus);
    for (int i = 0; i < node->visible * node->visible; i++) {
        if (i / node->visible != i % node->visible) {
            oh_json_append(&pairs, make_pair(node, i / node->visible, i % node->visible));
        }
    }
    oh_json_set(&object, "pairs", pairs);
    oh_json_set(&object, "verdict", make_verdict(verdict));
    return oh_json_write(stream, object);
}
