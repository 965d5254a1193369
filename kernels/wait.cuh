/* SPDX-License-Identifier: MIT */
/*
 * wait.cuh - how a kernel begins, polls and ends: its epoch, its wait for the previous kernel, the abort flag
 */
#ifndef OH_KERNELS_WAIT_CUH_
#define OH_KERNELS_WAIT_CUH_

#include "kernels/message.cuh"

/* Every block has its own copy of the epoch. */
OH_DEVICE const char *oh_epoch_address(const oh_kernel_args &args)
{
    return args.staging[0] + OH_EPOCH_OFFSET + oh_block() * sizeof(struct oh_epoch);
}

/*
 * Epoch of the last kernel of this communicator that has ended on this rank, equal on all ranks. Only its lowest bit
 * matters; reports use all.
 */
OH_DEVICE uint32_t oh_epoch_last(const oh_kernel_args &args)
{
    return oh_word_load(oh_epoch_address(args));
}

/*
 * Epoch of a kernel that has waited for the previous kernel. *held_p: not 0 if this rank has refused a call that other
 * ranks may have made, or a kernel has left one after an abort. A kernel that begins now, as by a replay, has the epoch
 * of that call: its words would be mistaken for the call's.
 */
OH_DEVICE uint32_t oh_epoch_of(const oh_kernel_args &args, uint32_t *held_p)
{
    const uint64_t pair = oh_pair_load(oh_epoch_address(args));
    *held_p = (uint32_t)(pair >> 32);
    return (uint32_t)pair + 1;
}

/*
 * Waits for the previous kernel. Before its wait a kernel reads its arguments only, since the previous kernel may still
 * poll. A kernel triggers early only after its own wait, so at most two kernels of a communicator are resident. Returns
 * args.trigger for oh_epoch_finish, in a register: to load it there cost each kernel 0.02 us (2 x H200).
 */
OH_DEVICE uint32_t oh_kernel_begin(const oh_kernel_args &args)
{
    const uint32_t trigger = oh_warp_keep(args.trigger);
    oh_pdl_wait();
    if (trigger == OH_TRIGGER_EARLY) {
        oh_pdl_trigger();
    }
    return trigger;
}

/* Reports to the host that this kernel still waits, and in which call. */
OH_DEVICE void oh_stall_report(const oh_kernel_args &args, uint32_t spins)
{
    oh_word_store(&args.control->epoch, oh_epoch_last(args));
    oh_word_store(&args.control->call_number, args.call_number);
    oh_word_store(&args.control->signature, args.signature);
    oh_word_store(&args.control->report_count, args.report_count);
    oh_word_store(&args.control->spins, spins);
}

/*
 * Returns whether the communicator has been aborted. The rare part of waiting: nothing here stays in a register of the
 * loop that polls. Reads of host memory serialize across warps, 0.6 us each, and a warp that reads does not poll
 * meanwhile. When all warps of a large grid read it, those that had waited for a late rank became late themselves by
 * more than the spins of the other rank, whose turn it then was to wait and to read, call after call
 * (doc/dev/experiments.md, "A late rank"). So one warp in OH_HOST_POLL_STRIDE reads the host's abort flag, in turns. A
 * warp that finds it set copies it to device memory of this rank, which the other warps read, those of queued kernels
 * too.
 */
OH_DEVICE bool oh_abort_check(const oh_kernel_args &args, uint32_t spins)
{
    const uint32_t turn = spins / OH_SPINS_BEFORE_CHECK_ABORT + (oh_block() * oh_threads() + oh_thread()) / 32;
    char *const abort_seen = args.staging[0] + OH_ABORT_SEEN_OFFSET;
    return oh_warp_once([&]() {
        if (turn % OH_HOST_POLL_STRIDE == 0) {
            if (args.control) {
                oh_stall_report(args, spins);
            }
            const uint32_t abort = oh_word_load(args.abort_flag); /* pairs with oh_comm_release_kernels() */
            if (abort != OH_ABORT_NONE) {
                oh_word_store(abort_seen, abort);
            }
        }
        return oh_word_load(abort_seen) != 0;
    });
}

/*
 * Ends a kernel that was aborted. Called once a kernel, not where it polls: each kernel of a stream loads its code
 * anew, so code that never runs costs time, too. The kernels that are queued behind it are held, whatever their grid:
 * they would begin with the epoch of the call that was left, in which a peer may still be, and their words would be
 * mistaken for that call's.
 */
OH_DEVICE void oh_abort_leave(const oh_kernel_args &args)
{
    oh_warp_once([&]() {
        OH_NO_UNROLL
        for (uint32_t b = 0; b < OH_MAX_BLOCKS; b++) {
            oh_word_store(
                args.staging[0] + OH_EPOCH_OFFSET + b * sizeof(struct oh_epoch) + offsetof(struct oh_epoch, held), 1);
        }
        return true;
    });
    if (oh_word_load(args.staging[0] + OH_ABORT_SEEN_OFFSET) == OH_ABORT_TRAP) {
        oh_trap();
    }
}

/* A loop that polls: counts its spins, and checks now and then whether the communicator has been aborted. */
struct oh_spin {
    uint32_t spins;

    OH_DEVICE_METHOD bool is_aborted(const oh_kernel_args &args)
    {
        oh_spin_pause();
        return (++spins & (OH_SPINS_BEFORE_CHECK_ABORT - 1)) == 0 && oh_abort_check(args, spins);
    }
};

/* Polls until have_arrived() returns true. Returns false if the communicator has been aborted. */
template <class HaveArrived> OH_DEVICE bool oh_poll(const oh_kernel_args &args, oh_spin *spin, HaveArrived have_arrived)
{
    while (!have_arrived()) {
        if (spin->is_aborted(args)) {
            return false;
        }
    }
    return true;
}

/*
 * Ends the kernel: block b writes the epoch into the words b, b + blocks, b + 2 blocks, ... So after a kernel of any
 * grid all OH_MAX_BLOCKS words are equal. In one kernel no word is written by two blocks, or read by one block and
 * written by another. write(at): writes more of the struct oh_epoch at this address.
 *
 * One thread triggers for its block. Between two ranks that is the first, as soon as it has its words: all blocks of
 * this kernel have begun, and those of the peer's that it still waits for. So it ends without more room (2 MiB 3 %
 * faster; four ranks 2 % slower). That holds where the words of a block come from the peer's like block, or none is
 * received. ranks: 0 where it does not hold.
 */
template <int ranks, class Write>
OH_DEVICE void oh_epoch_finish(const oh_kernel_args &args, uint32_t epoch, uint32_t trigger, Write write)
{
    if (ranks == 2 && trigger == OH_TRIGGER_LATE && oh_thread() == 0) {
        oh_pdl_trigger();
    }
    oh_block_sync(); /* all threads have read this block's epoch word, and have received all their words */
    if (ranks != 2 && trigger == OH_TRIGGER_LATE) {
        oh_pdl_trigger();
    }
    for (uint32_t b = oh_block() + oh_thread() * oh_blocks(); b < OH_MAX_BLOCKS; b += oh_threads() * oh_blocks()) {
        char *const at = args.staging[0] + OH_EPOCH_OFFSET + b * sizeof(struct oh_epoch);
        oh_word_store(at, epoch);
        write(at);
    }
}
template <int ranks> OH_DEVICE void oh_epoch_finish(const oh_kernel_args &args, uint32_t epoch, uint32_t trigger)
{
    oh_epoch_finish<ranks>(args, epoch, trigger, [](char *) {});
}

#endif
