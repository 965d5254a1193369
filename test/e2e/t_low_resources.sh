# SPDX-License-Identifier: MIT
# What a process needs is not there: device memory, room in shared memory, a place for it, descriptors. Without onehop
# the job would run; so it must with it.
. "$abs_top_srcdir/test/e2e/lib.sh"

work=(--counts 1,5000 --batch 2)

# Enough for the program's buffers, and not for staging memory.
expect_stock "no device memory on one rank" "rank 2: no staging memory" \
    -- run_work --nranks 4 --rank-env 2:SIMNODE_MEMORY_MIB=10
SIMNODE_MEMORY_MIB=10 expect_stock "no device memory on any rank" "no staging memory" -- run_work --nranks 4
SIMNODE_MEMORY_MIB=50 expect_counts "device memory for one communicator of three" '2:served by onehop' \
    '4:back to NCCL: .*no staging memory' -- run_work --nranks 2 --comms 3 --batch 3

# The place where ranks meet.
ONEHOP_SHM_DIR=$shm/nowhere expect_stock "no such folder" "cannot open the shared memory" -- run_work --nranks 3
ONEHOP_SHM_DIR=/proc/self expect_stock "a folder in which nothing can be made" "cannot open the shared memory" \
    -- run_work --nranks 3
expect_stock "no folder on one rank" "(present on this host for . of 3|cannot open the shared memory)" \
    -- run_work --nranks 3 --rank-env 1:ONEHOP_SHM_DIR=/dev/null

# mounted NAME OPTIONS: the folder is a file system of its own for the whole job, where that is allowed. The mount lives and dies
# with a name space of its own.
real_app=$app
mkdir -p "$scratch/place"
mounted() {
    cat >"$scratch/mounted" <<MOUNTED
#!/bin/sh
[ "\$1" = alone ] || exec unshare -m -- "\$0" alone "\$@"
mount -t tmpfs -o $2 tmpfs "$scratch/place" || exit 1
cat /dev/zero >"$scratch/place/full" 2>/dev/null
shift
exec "$real_app" "\$@"
MOUNTED
    chmod +x "$scratch/mounted"
    if unshare -m mount -t tmpfs -o "$2" tmpfs "$scratch/place" 2>/dev/null; then
        app=$scratch/mounted ONEHOP_SHM_DIR=$scratch/place expect_stock "$1" "cannot open the shared memory" \
            -- run_work --nranks 3
    else
        tap_skip "$1" "no file system can be mounted here"
    fi
}
mounted "shared memory is full" size=4k
mounted "shared memory is read-only" ro

# The same by the calls' own errors, on one rank, wherever this runs.
for function in posix_fallocate ftruncate open mmap; do
    plugin=$faulty_plugin SIMNODE_CALLER=libonehop.so expect_stock "$function always fails on one rank" \
        "(present on this host for . of 3|cannot open the shared memory)" \
        -- run_work --nranks 3 --rank-env 1:SIMNODE_FAIL=$function
done

# The system refuses one thread, also that which frees the memory of a communicator that has ended.
for n in 1 2 3 4; do
    plugin=$faulty_plugin SIMNODE_CALLER=libonehop.so run_work --linger --nranks 2 \
        --rank-env 1:SIMNODE_FAIL=pthread_create:$n
    [ "$status" = 0 ] && [ -z "$(left)" ]
    tap_point $? "thread $n is refused once: right, nothing left" "$(left; diagnosis)"
done

# Few descriptors while communicators are made. onehop would hold one meanwhile, so it takes none of the last.
stock=0 same=0 served=0
for few in 0 1 2 3 4 8 20 32 33 34 60; do
    run_stock --nranks 2 --descriptors $few "${work[@]}"
    [ "$status" = 0 ] || continue
    stock=$((stock + 1))
    run_work --nranks 2 --descriptors $few
    [ "$status" = 0 ] && same=$((same + 1)) || tail -n 8 "$out" | sed 's/^/# /'
    [ "$(count_of 'served by onehop')" = 0 ] || served=$((served + 1))
done
[ "$stock" -gt 3 ] && [ "$same" = "$stock" ] && [ "$served" -gt 0 ] && [ "$served" -lt "$stock" ]
tap_point $? "few descriptors: right wherever stock NCCL is ($same of $stock limits), served where there are enough ($served)"
expect_no_files
tap_done
