/* SPDX-License-Identifier: MIT */
/*
 * cuda_graph.c - the simulated driver's graphs and user objects
 *
 * A graph is a list of nodes with edges between them. cuda_exec.c executes it.
 */
#include "test/simnode/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

const struct simcuda_op simcuda_nothing = {.kind = SIMCUDA_OP_NONE};

struct CUuserObject_st {
    struct simcuda_object object;
    void *data;
    CUhostFn destroy;
    unsigned references;
    CUuserObject next; /* of those to be destroyed */
};

/* ---- user objects ---- */

/* Drops references; an object without any joins the list of those to be destroyed. */
static void user_drop(CUuserObject user, unsigned references, CUuserObject *doomed)
{
    user->references -= references;
    if (user->references == 0) {
        simcuda_remove(&user->object);
        user->next = *doomed;
        *doomed = user;
    }
}

static void users_add(struct simcuda_users *users, CUuserObject user)
{
    users->user = simnode_grown(users->user, users->count, sizeof(CUuserObject));
    users->user[users->count++] = user;
}

void simcuda_users_copy(struct simcuda_users *to, const struct simcuda_users *from)
{
    for (size_t i = 0; i < from->count; i++) {
        from->user[i]->references++;
        users_add(to, from->user[i]);
    }
}

void simcuda_users_drop(struct simcuda_users *users, CUuserObject *doomed)
{
    for (size_t i = 0; i < users->count; i++) {
        user_drop(users->user[i], 1, doomed);
    }
    free(users->user);
}

void simcuda_users_destroy(CUuserObject doomed)
{
    pthread_mutex_unlock(&simcuda.lock);
    while (doomed) {
        CUuserObject next = doomed->next;
        simcuda_callback(doomed->destroy, doomed->data);
        free(doomed);
        doomed = next;
    }
    pthread_mutex_lock(&simcuda.lock);
}

CUresult cuUserObjectCreate(CUuserObject *user_p, void *data, CUhostFn destroy, unsigned references, unsigned flags)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!destroy || references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC,
                    CUDA_ERROR_INVALID_VALUE);
    CUuserObject user = simnode_new(sizeof *user);
    user->data = data;
    user->destroy = destroy;
    user->references = references;
    simcuda_add(SIMCUDA_USER, &user->object);
    *user_p = user;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject user, unsigned references)
{
    SIMCUDA_LOCK();
    CUuserObject doomed = NULL;
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_USER, user) || references == 0 || references > user->references,
                    CUDA_ERROR_INVALID_VALUE);
    user_drop(user, references, &doomed);
    simcuda_users_destroy(doomed);
    return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject user, unsigned references, unsigned flags)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_GRAPH, graph) || !simcuda_has(SIMCUDA_USER, user) || references == 0 ||
                        (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) || (flags && references > user->references),
                    CUDA_ERROR_INVALID_VALUE);
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) {
        user->references += references;
    }
    for (unsigned i = 0; i < references; i++) {
        users_add(&graph->users, user);
    }
    return CUDA_SUCCESS;
}

/* ---- nodes ---- */

CUgraph simcuda_graph_new(void)
{
    CUgraph graph = simnode_new(sizeof *graph);
    simcuda_add(SIMCUDA_GRAPH, &graph->object);
    return graph;
}

/* Nodes, and the graphs that they own. A child is not listed: it has no handle of the program's. */
static void nodes_free(CUgraph graph, CUuserObject *doomed)
{
    for (size_t i = 0; i < graph->nodes; i++) {
        CUgraphNode node = graph->node[i];
        if (node->child) {
            nodes_free(node->child, doomed);
            free(node->child);
        }
        free(node->dependency);
        free(node);
    }
    free(graph->node);
    simcuda_users_drop(&graph->users, doomed);
}

CUuserObject simcuda_graph_free(CUgraph graph)
{
    CUuserObject doomed = NULL;
    simcuda_remove(&graph->object);
    nodes_free(graph, &doomed);
    free(graph);
    return doomed;
}

CUgraphNode simcuda_node_new(CUgraph graph, const struct simcuda_op *op, CUcontext ctx)
{
    CUgraphNode node = simnode_new(sizeof *node);
    node->graph = graph;
    node->op = *op;
    node->ctx = ctx;
    graph->node = simnode_grown(graph->node, graph->nodes, sizeof(CUgraphNode));
    graph->node[graph->nodes++] = node;
    return node;
}

static struct simcuda_edge *edge_find(CUgraphNode node, CUgraphNode from)
{
    for (size_t i = 0; i < node->dependencies; i++) {
        if (node->dependency[i].from == from) {
            return &node->dependency[i];
        }
    }
    return NULL;
}

bool simcuda_node_depend(CUgraphNode node, CUgraphNode from, bool programmatic)
{
    if (edge_find(node, from)) {
        return false;
    }
    node->dependency = simnode_grown(node->dependency, node->dependencies, sizeof *node->dependency);
    const unsigned char number = programmatic ? 1 : 0; /* both enumerators */
    node->dependency[node->dependencies++] = (struct simcuda_edge){from, {.from_port = number, .type = number}};
    return true;
}

bool simcuda_graph_has(const struct CUgraph_st *graph, CUgraphNode node)
{
    for (size_t i = graph->nodes; i > 0; i--) { /* the newest are asked for most */
        if (graph->node[i - 1] == node) {
            return true;
        }
    }
    return false;
}

void simcuda_node_visit(CUgraphNode node)
{
    if (!node->visited) {
        node->visited = true;
        for (size_t i = 0; i < node->dependencies; i++) {
            simcuda_node_visit(node->dependency[i].from);
        }
    }
}

void simcuda_graph_unvisit(CUgraph graph)
{
    for (size_t i = 0; i < graph->nodes; i++) {
        graph->node[i]->visited = false;
    }
}

static bool all_nodes(CUgraph graph, const CUgraphNode *nodes, size_t count)
{
    bool all = simcuda_has(SIMCUDA_GRAPH, graph) && (count == 0 || nodes);
    for (size_t i = 0; i < count && all; i++) {
        all = simcuda_graph_has(graph, nodes[i]);
    }
    return all;
}

CUresult cuGraphCreate(CUgraph *graph_p, unsigned flags)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(flags != 0, CUDA_ERROR_INVALID_VALUE);
    *graph_p = simcuda_graph_new();
    return CUDA_SUCCESS;
}

/* A node made by hand, behind the given ones. */
static CUresult add_node(CUgraph graph, const struct simcuda_op *op, const CUgraphNode *dependencies, size_t count,
                         CUgraphNode *node_p)
{
    CUcontext ctx = simcuda_current();
    SIMCUDA_FAIL_IF(!ctx, CUDA_ERROR_INVALID_CONTEXT);
    SIMCUDA_FAIL_IF(!all_nodes(graph, dependencies, count), CUDA_ERROR_INVALID_VALUE);
    CUgraphNode node = simcuda_node_new(graph, op, ctx);
    for (size_t i = 0; i < count; i++) {
        simcuda_node_depend(node, dependencies[i], false);
    }
    *node_p = node;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node_p, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    SIMCUDA_LOCK();
    return add_node(graph, &simcuda_nothing, dependencies, count, node_p);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node_p, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                   CUevent event)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_EVENT, event), CUDA_ERROR_INVALID_HANDLE);
    const struct simcuda_op op = {.kind = SIMCUDA_OP_EVENT_RECORD, .event = event};
    return add_node(graph, &op, dependencies, count, node_p);
}

/* What a kernel of onehop waits for is the end of the node before, whatever the port says. data NULL: all zero. */
static CUresult add_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data,
                          size_t count)
{
    bool good = all_nodes(graph, from, count) && all_nodes(graph, to, count);
    for (size_t i = 0; i < count && good; i++) {
        simcuda_node_visit(from[i]);
        good = !to[i]->visited && simcuda_node_depend(to[i], from[i], false); /* no cycles, no edge twice */
        simcuda_graph_unvisit(graph);
        if (good && data) {
            edge_find(to[i], from[i])->data = data[i];
        }
    }
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* An edge with other data is another edge. */
static CUresult remove_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data,
                             size_t count)
{
    static const CUgraphEdgeData plain;
    bool good = all_nodes(graph, from, count) && all_nodes(graph, to, count);
    for (size_t i = 0; i < count && good; i++) {
        struct simcuda_edge *edge = edge_find(to[i], from[i]);
        good = edge && memcmp(&edge->data, data ? &data[i] : &plain, sizeof plain) == 0;
        if (good) {
            size_t place = (size_t)(edge - to[i]->dependency), after = --to[i]->dependencies - place;
            memmove(edge, edge + 1, after * sizeof *edge);
        }
    }
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *data, size_t count)
{
    SIMCUDA_LOCK();
    return add_edges(graph, from, to, data, count);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                      const CUgraphEdgeData *data, size_t count)
{
    SIMCUDA_LOCK();
    return remove_edges(graph, from, to, data, count);
}

/* The old forms are for edges without data: they do not find others. */
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    SIMCUDA_LOCK();
    return add_edges(graph, from, to, NULL, count);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    SIMCUDA_LOCK();
    return remove_edges(graph, from, to, NULL, count);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type_p)
{
    static const CUgraphNodeType types[] = {
        [SIMCUDA_OP_NONE] = CU_GRAPH_NODE_TYPE_GRAPH,
        [SIMCUDA_OP_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [SIMCUDA_OP_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
        [SIMCUDA_OP_SET] = CU_GRAPH_NODE_TYPE_MEMSET,
        [SIMCUDA_OP_HOST] = CU_GRAPH_NODE_TYPE_HOST,
        [SIMCUDA_OP_EVENT_RECORD] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [SIMCUDA_OP_EVENT_WAIT] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    };
    SIMCUDA_ENTER();
    *type_p = node->op.kind == SIMCUDA_OP_NONE && !node->child ? CU_GRAPH_NODE_TYPE_EMPTY : types[node->op.kind];
    return CUDA_SUCCESS;
}

/* Both of these: with a NULL array, how many there are. */
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count_p)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_GRAPH, graph), CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; nodes && i < *count_p; i++) {
        nodes[i] = i < graph->nodes ? graph->node[i] : NULL;
    }
    if (!nodes || *count_p > graph->nodes) {
        *count_p = graph->nodes;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count_p)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_GRAPH, graph), CUDA_ERROR_INVALID_VALUE);
    size_t count = 0;
    for (size_t i = 0; i < graph->nodes; i++) {
        const struct CUgraphNode_st *node = graph->node[i];
        for (size_t d = 0; d < node->dependencies; d++, count++) {
            if (from && count < *count_p) {
                from[count] = node->dependency[d].from;
                to[count] = graph->node[i];
                data[count] = node->dependency[d].data;
            }
        }
    }
    *count_p = count;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count_p)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(data && !nodes, CUDA_ERROR_INVALID_VALUE);
    for (size_t d = 0; d < node->dependencies; d++) {
        SIMCUDA_FAIL_IF(!data && node->dependency[d].data.type != 0, CUDA_ERROR_LOSSY_QUERY);
    }
    for (size_t d = 0; nodes && d < *count_p; d++) {
        nodes[d] = d < node->dependencies ? node->dependency[d].from : NULL;
        if (data && nodes[d]) {
            data[d] = node->dependency[d].data;
        }
    }
    if (!nodes || *count_p > node->dependencies) {
        *count_p = node->dependencies;
    }
    return CUDA_SUCCESS;
}

/* ---- graphs ---- */

/* A copy, not listed. The copies of nodes are found by their place. */
static CUgraph copy_graph(CUgraph graph)
{
    CUgraph copy = simnode_new(sizeof *copy);
    for (size_t i = 0; i < graph->nodes; i++) {
        graph->node[i]->step = i;
        simcuda_node_new(copy, &graph->node[i]->op, graph->node[i]->ctx);
    }
    for (size_t i = 0; i < graph->nodes; i++) {
        const struct CUgraphNode_st *node = graph->node[i];
        copy->node[i]->child = node->child ? copy_graph(node->child) : NULL;
        for (size_t d = 0; d < node->dependencies; d++) {
            simcuda_node_depend(copy->node[i], copy->node[node->dependency[d].from->step], false);
            copy->node[i]->dependency[d].data = node->dependency[d].data;
        }
    }
    simcuda_users_copy(&copy->users, &graph->users);
    return copy;
}

CUresult cuGraphClone(CUgraph *clone_p, CUgraph graph)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_GRAPH, graph), CUDA_ERROR_INVALID_VALUE);
    *clone_p = copy_graph(graph);
    simcuda_add(SIMCUDA_GRAPH, &(*clone_p)->object);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node_p, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                  CUgraph child)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_GRAPH, child) || child == graph, CUDA_ERROR_INVALID_VALUE);
    SIMCUDA_TRY(add_node(graph, &simcuda_nothing, dependencies, count, node_p));
    (*node_p)->child = copy_graph(child);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    SIMCUDA_LOCK();
    SIMCUDA_FAIL_IF(!simcuda_has(SIMCUDA_GRAPH, graph) || graph->capturing, CUDA_ERROR_INVALID_VALUE);
    simcuda_users_destroy(simcuda_graph_free(graph));
    return CUDA_SUCCESS;
}
