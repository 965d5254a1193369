# SPDX-License-Identifier: MIT
# Served only where every pair of GPUs is joined by NVLink beyond doubt.
. "$abs_top_srcdir/test/e2e/lib.sh"

work=(--counts 1,5000 --batch 2)
for n in 2 3 4 8; do
    SIMNODE_TOPOLOGY=h200x$n expect_served "h200x$n" -- run_work --nranks $n
done
for topology in a100x4-direct vm-hidden; do
    SIMNODE_TOPOLOGY=$topology expect_served "$topology" -- run_work --nranks 4
done

# refuses TOPOLOGY REASON
refuses() {
    SIMNODE_TOPOLOGY=$1 expect_stock "$1" "$2" -- run_work --nranks 4
    SIMNODE_TOPOLOGY=$1 expect_stock "$1, one thread" "$2" -- run_work --nranks 4 --local 4
}
refuses pcie-only 'GPUs .* are not joined by NVLink \(NVML\)'
refuses partial-nvlink 'GPUs .* are not joined by NVLink'
refuses dead-link-pair 'GPUs .* are not joined by NVLink'
refuses nvml-disagrees "GPUs .* cannot access each other's memory"
refuses vm-hidden-noproof "GPUs .* cannot access each other's memory"
refuses mig 'GPU .* is in MIG mode'

# What is not joined matters only to communicators that have both.
SIMNODE_TOPOLOGY=partial-nvlink run_work --nranks 4 --make split --split-colors 0,0,1,1
expect_counts "partial-nvlink: communicators within a joined pair are served" '0:nranks 4: ' '4:nranks 2: served'

NCCL_P2P_DISABLE=1 expect_stock "NCCL_P2P_DISABLE=1" "NCCL_P2P_DISABLE=1" -- run_work --nranks 4
NCCL_P2P_DISABLE=0 expect_served "NCCL_P2P_DISABLE=0" -- run_work --nranks 4
NCCL_P2P_LEVEL=LOC expect_stock "NCCL_P2P_LEVEL=LOC" "NCCL_P2P_LEVEL=LOC" -- run_work --nranks 4
NCCL_P2P_LEVEL=NVL expect_served "NCCL_P2P_LEVEL=NVL" -- run_work --nranks 4
expect_stock "NCCL_P2P_DISABLE=1 on one rank" "NCCL_P2P_DISABLE=1" \
    -- run_work --nranks 4 --rank-env 3:NCCL_P2P_DISABLE=1

# How many SMs the program allows: the least of all ranks, in every communicator of them.
expect_counts "NCCL_MAX_CTAS=4 on one rank: smaller grids on all, large messages are NCCL's" served=1+ fallback=1+ \
    '4:for 4 blocks in all: grids are smaller' \
    -- run_app --nranks 4 --rank-env 2:NCCL_MAX_CTAS=4 --counts 1,4000,5000,500000 --batch 4 --in-place
NCCL_MAX_CTAS=128 expect_served "NCCL_MAX_CTAS=128" -- run_work --nranks 4
NCCL_MAX_CTAS=1 SIMNODE_BLOCK_THREADS=1 ONEHOP_MAX_BYTES=8M expect_served "NCCL_MAX_CTAS=1" \
    -- run_app --nranks 2 --counts 1,2000 --batch 2 --graph 2
echo NCCL_CTA_POLICY=2 >"$scratch/nccl.conf"
NCCL_CONF_FILE=$scratch/nccl.conf expect_stock "the same in nccl.conf, for the first communicator" "zero-CTA policy" \
    -- run_work --nranks 4
expect_stock "NCCL_CTA_POLICY=2 on one rank" "zero-CTA policy" -- run_work --nranks 4 --rank-env 1:NCCL_CTA_POLICY=2
NCCL_LAUNCH_ORDER_IMPLICIT=0 expect_served "NCCL_LAUNCH_ORDER_IMPLICIT=0" -- run_work --nranks 4
expect_stock "NCCL_LAUNCH_ORDER_IMPLICIT=1 on one rank" "NCCL_LAUNCH_ORDER_IMPLICIT=1" \
    -- run_work --nranks 4 --rank-env 2:NCCL_LAUNCH_ORDER_IMPLICIT=1

# A node without NVML: CUDA alone can prove NVLink.
without=$scratch/without-nvml
mkdir "$without"
ln -s "$stand_ins"/libcuda.so* "$stand_ins"/libnccl.so* "$without"
export LD_LIBRARY_PATH=$without
expect_served "no NVML, CUDA proves NVLink" -- run_work --nranks 4
SIMNODE_TOPOLOGY=vm-hidden-noproof expect_stock "no NVML, no proof" "GPUs .* cannot access each other's memory" \
    -- run_work --nranks 4
tap_done
