/* SPDX-License-Identifier: MIT */
/*
 * segment.h - the shared memory of the ranks of one communicator on one host
 *
 * Does: Three things, in this order (doc/design.md, "Attach"):
 *      presence    each rank counts itself in before NCCL's creation, which is a barrier: when that returns, every rank
 *                  of this host that has onehop is counted
 *      agreement   each rank publishes its peer info, opens its peers' memory, and votes; one word decides
 *      end         each rank notes that it has closed its peers' memory, so that its owner frees it last
 *    What peers have written is checked before use: it is read once, and never used beyond bounds.
 * Threads: a struct oh_segment belongs to one thread at a time; the memory behind it is shared and atomic.
 * Owns: a file named after the key (key.h), unlinked as soon as the ranks are counted.
 */
#ifndef OH_COMM_SHARED_SEGMENT_H_
#define OH_COMM_SHARED_SEGMENT_H_

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/shared/key.h"
#include "comm/stats/record.h"
#include "gpu/driver.h"
#include "kernels/abi.h"
#include "plan/plan.h"
#include "topo/topo.h"

/* --- cutover.c: the call number from which all ranks do something else -------------------------------------------- */

/*
 * Ranks make the same calls in the same order, at different times. Before the cutover each rank stores the number of
 * its next call in its word. A rank that knows that all ranks are ready closes the words of all ranks, each by one
 * atomic operation; a closed word never changes again. The largest number in the words, plus one, is the first call of
 * the new way: every rank computes the same number, and no call of the old way has it. A rank that finds its own word
 * closed closes the others itself; so no rank waits. doc/design.md, "Attach", has the proof. Memory of all zeros is
 * valid. Any thread, without a lock.
 */

struct oh_cutover {
    struct {
        _Alignas(64) _Atomic uint64_t word; /* a number of calls; its top bit: closed */
    } rank[OH_MAX_RANKS];
};

/*
 * Stores that `rank` makes its call `number` (1, 2, 3, ...) the old way. True: stored; the cutover is after this call.
 * False: closed; oh_cutover_close returns the call of the cutover, which may be after this call, too.
 */
bool oh_cutover_announce(struct oh_cutover *cutover, uint32_t rank, uint64_t number);

/*
 * The last call, of this number, was rejected; the next call has the number. If the word was closed before, the cutover
 * is after that next call.
 */
void oh_cutover_retract(struct oh_cutover *cutover, uint32_t rank, uint64_t number);

/* Closes the words of all ranks and returns the number of the first call that goes the new way. Never waits. */
uint64_t oh_cutover_close(struct oh_cutover *cutover, uint32_t nranks);

/* Returns whether a rank has stored this number, or a later one: then the cutover is after that call. */
bool oh_cutover_is_after(const struct oh_cutover *cutover, uint32_t nranks, uint64_t number);

/* --- segment.c ---------------------------------------------------------------------------------------------------- */

/* What one rank tells the others. Written by its rank before `ready`, read by the others after it. */
struct oh_peer_info {
    _Atomic uint32_t identified; /* pid to process are filled in */
    _Atomic uint32_t ready;
    _Atomic uint32_t peers_closed; /* has closed its peers' memory for good */
    _Atomic uint32_t begun;        /* its first call is made: its vote needs nothing more of its program, but */
    _Atomic uint32_t withheld;     /* this; enum oh_withheld */
    int32_t pid;
    uint32_t invariant;       /* this rank's setting (struct oh_comm_config); the ranks must have the same */
    uint32_t check;           /* this rank wants calls to be compared (ONEHOP_CHECK_CALLS); then all do */
    uint64_t verify;          /* this rank's ONEHOP_VERIFY, and it has the memory; the ranks must have the same */
    uint64_t start_time;      /* of the process, against a pid used again (util/process.h) */
    uint64_t pid_namespace;   /* inode of /proc/self/ns/pid: a pid says nothing in another one; 0: unknown */
    uint64_t process;         /* random, equal for ranks of one process only */
    struct oh_plan_room room; /* written before this rank's vote: all are there once it is decided */
    char bus_id[OH_TOPO_BUS_ID];
    CUipcMemHandle handle; /* the staging memory, for other processes */
    uint64_t staging;      /* the same as a pointer, for ranks of the same process */
    uint64_t context;
};

/* What a rank waits for before it votes, so that an event of onehop's is behind NCCL's work on the communicator. */
enum oh_withheld {
    OH_WITHHELD_NOT,
    OH_WITHHELD_CALL, /* the return of its first call, which NCCL serves */
    OH_WITHHELD_LATER /* a later call: the first call was captured */
};

/* How a rank has left, if it could publish that. */
enum oh_rank_state {
    OH_RANK_ACTIVE,
    OH_RANK_ENDED,   /* finalized or destroyed */
    OH_RANK_ABORTED, /* it sends nothing more, also not in calls that the others wait for */
    OH_RANK_EXITED   /* its process ends by exit(), with the communicator alive */
};

/* How far a rank is, for reports and the monitor. A cache line each, written by its rank alone. */
struct oh_progress {
    _Alignas(64) _Atomic uint64_t calls; /* launched, also into captures */
    _Atomic uint64_t begun_calls;        /* the same, stored before `signature` and `count`; `calls` is stored after */
    _Atomic uint32_t signature;          /* of the last call: oh_signature_of in watch.h; its elements */
    _Atomic uint32_t count;
    _Atomic uint64_t waiting_epoch; /* epoch after which its kernel was seen to wait, plus one; 0: none yet */
    _Atomic uint32_t rank_state;    /* enum oh_rank_state */
};

/* One call of a rank, where calls are compared. */
#define OH_CHECK_ENTRY_COUNT 32
struct oh_check_entry {
    _Atomic uint64_t number; /* 0: being written */
    _Atomic uint64_t count;
    _Atomic uint64_t signature;
    _Atomic uint64_t hash; /* of all calls up to this one */
};

/* The memory itself; a new file is all zeros, which is its valid first state. */
struct oh_shared {
    _Atomic uint32_t present;
    _Atomic uint32_t yes;
    _Atomic uint32_t decision;
    _Atomic uint32_t steps;          /* of all ranks, towards a decision */
    _Atomic uint32_t parent_ranks;   /* ncclCommGrow: ranks of the parent; only the new ones count as present */
    _Atomic uint32_t target_set;     /* of a parent segment: target is set */
    struct oh_key target;            /* of a parent segment: the key of the grown communicator */
    uint32_t init_epoch;             /* rank 0's, written before its peer info is ready */
    char reason[OH_REASON_BYTES];    /* of the first rank that has voted no */
    struct oh_plan_table table;      /* rank 0's, likewise */
    struct oh_cutover cutover;       /* the first call that is served */
    _Atomic uint32_t failed;         /* the first failure: NCCL's code << 16 | rank that is gone << 8 | rank; 0: none */
    _Atomic uint64_t reported_epoch; /* epoch after which a stall has been reported, plus one; 0: none yet */
    struct oh_peer_info peer_info[OH_MAX_RANKS];
    struct oh_progress progress[OH_MAX_RANKS];
    struct oh_check_entry record[OH_MAX_RANKS][OH_CHECK_ENTRY_COUNT];
};

#define OH_SEGMENT_PATH 384 /* longer than a folder and a name may be */

struct oh_segment {
    struct oh_shared *shared; /* NULL: not open */
    char path[OH_SEGMENT_PATH];
    atomic_int file; /* the locked file as long as it has its name: its descriptor plus one; 0: none */
};

/*
 * Opens (creates, on the first rank) the segment of `key` and counts this rank in. Returns ncclSuccess, or
 * ncclSystemError (logged at INFO): this rank is not counted then, so all fall back.
 */
ncclResult_t oh_segment_open(struct oh_segment *segment, const struct oh_key *key);

/* The same without counting this rank in. */
ncclResult_t oh_segment_open_uncounted(struct oh_segment *segment, const struct oh_key *key);

/* Removes the file's name, once all ranks have opened it. Every rank may call it. */
void oh_segment_unlink(struct oh_segment *segment);

/* Also unmaps it. The other ranks' mappings stay. */
void oh_segment_discard(struct oh_segment *segment);

/* Votes no, for this reason, which decides for all ranks, unless a decision was made before. */
void oh_segment_vote_no(struct oh_segment *segment, const char *reason);

/* Votes yes. The last of nranks votes turns the decision on, unless a rank has voted no. */
void oh_segment_vote_yes(struct oh_segment *segment, uint32_t nranks);

/* The decision. Nothing may be opened once it is OH_DECISION_OFF. */
enum oh_decision {
    OH_DECISION_PENDING,
    OH_DECISION_ON,
    OH_DECISION_OFF
};
enum oh_decision oh_segment_decision(const struct oh_segment *segment);

/* True when the process of an identified rank has ended. It can end between any two steps, so this is a hint. */
bool oh_segment_has_dead_rank(const struct oh_segment *segment, uint32_t rank, uint32_t nranks);

/*
 * The reason for OH_DECISION_OFF, in reason_p (OH_REASON_BYTES), which is written right after the decision. Waits for
 * it, 100 ms at most: the rank that has voted no may have been killed between the two.
 */
void oh_segment_reason(const struct oh_segment *segment, char *reason_p);

/* A pause between polls of the segment. The longer a wait has lasted, the longer it leaves the core to others. */
void oh_segment_pause(uint64_t waited_ns);

/* Notes that this rank has closed its peers' memory and opens none again. This and the next: also without a segment. */
void oh_segment_set_peers_closed(struct oh_segment *segment, uint32_t rank);

/* True when no other rank has this rank's memory open, or will open it. */
bool oh_segment_is_unreferenced(const struct oh_segment *segment, uint32_t rank, uint32_t nranks);

/* Fills in which process this is. */
void oh_peer_info_identify(struct oh_peer_info *info);

/* True when this process can detect the end of that one. */
bool oh_peer_info_is_visible(const struct oh_peer_info *info);

/* True when this very process has filled it in. */
bool oh_peer_info_is_own(const struct oh_peer_info *info);

/* --- locked_file.c: files of one user in a folder that everybody may write to ------------------------------------- */

/*
 * A file has mode 0600, and is accepted only from the same user: a regular file of the right size with one name. A
 * process holds a shared lock while it has the file open, which Linux drops with the process. So a file that nobody has
 * locked is left over from killed processes, and may be removed. Nothing waits for other users. The caller owns the
 * descriptor.
 */

/*
 * Opens or creates the file, allocates its `size` bytes (zeros), and locks it. Returns ncclSuccess, or ncclSystemError
 * (logged: at WARN if the file is another user's).
 */
ncclResult_t oh_locked_file_open(const char *path, size_t size, int *fd_p);

/* Removes the name, unless it belongs to another file by now, and closes (which ends the lock). */
void oh_locked_file_remove(const char *path, int fd);

/* Removes the files whose names begin with `prefix` that killed processes of this user have left in the folder. */
void oh_locked_files_sweep(const char *folder, const char *prefix, size_t size);

#endif
