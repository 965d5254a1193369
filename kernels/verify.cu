/* SPDX-License-Identifier: MIT */
/*
 * verify.cu - compares a result of onehop with NCCL's (ONEHOP_VERIFY)
 *
 * onehop_verify_compare runs behind the call, when NCCL's result lies beside it: elements have equal bits, or differ by
 * at most what rounding explains. onehop_verify_magnitudes runs before both: NCCL then sums what it writes, which
 * bounds the rounding (doc/numerics.md, "Error bounds").
 */
#include "kernels/reduce.cuh"

template <class Type> OH_DEVICE double verify_float(uint64_t bits)
{
    const uint32_t part[2] = {(uint32_t)bits, (uint32_t)(bits >> 32)};
    typename Type::value value[4];
    Type::unpack(part, value);
    return value[0];
}

OH_DEVICE bool verify_is_float(uint32_t type)
{
    return type < OH_TYPE_I8;
}

/* Of a type of floats. */
OH_DEVICE double verify_value(uint32_t type, uint64_t bits)
{
    switch (type) {
    case OH_TYPE_F32:
        return verify_float<oh_f32>(bits);
    case OH_TYPE_F16:
        return verify_float<oh_f16>(bits);
    case OH_TYPE_BF16:
        return verify_float<oh_bf16>(bits);
    case OH_TYPE_F64:
        return verify_float<oh_f64>(bits);
    case OH_TYPE_E4M3:
        return verify_float<oh_e4m3>(bits);
    default:
        return verify_float<oh_e5m2>(bits);
    }
}

OH_DEVICE uint64_t verify_load(const void *data, uint64_t i, uint32_t element_bytes)
{
    switch (element_bytes) {
    case 1:
        return static_cast<const uint8_t *>(data)[i];
    case 2:
        return static_cast<const uint16_t *>(data)[i];
    case 4:
        return static_cast<const uint32_t *>(data)[i];
    default:
        return static_cast<const uint64_t *>(data)[i];
    }
}

OH_DEVICE double verify_magnitude(const oh_verify_args &args, uint64_t i)
{
    return args.type == OH_TYPE_F64 ? static_cast<const double *>(args.magnitudes)[i]
                                    : static_cast<const float *>(args.magnitudes)[i];
}

OH_DEVICE bool verify_agrees(const oh_verify_args &args, uint64_t i, uint64_t ours, uint64_t theirs)
{
    if (ours == theirs || !args.rounds) {
        return ours == theirs;
    }
    const double a = verify_value(args.type, ours), b = verify_value(args.type, theirs);
    if (a == b || (a != a && b != b)) { /* zeros of both signs, NaNs */
        return true;
    }
    const double magnitude = args.magnitudes ? verify_magnitude(args, i) : fabs(b);
    if (args.magnitudes && magnitude >= args.most) { /* a sum in another order may overflow */
        return true;
    }
    return fabs(b) < (double)INFINITY && fabs(a - b) <= args.relative * magnitude + args.absolute;
}

OH_DEVICE uint64_t verify_shown(const oh_verify_args &args, uint64_t bits)
{
#if defined(OH_NO_FP8)
    const bool is_known = args.element_bytes > 1;
#else
    const bool is_known = true;
#endif
    if (verify_is_float(args.type)) {
        const double value = is_known ? verify_value(args.type, bits) : (double)bits;
        memcpy(&bits, &value, sizeof bits);
    }
    return bits;
}

/* One thread a call reports: the first that asks. Calls do not overlap; those of a list share an epoch. */
OH_DEVICE void verify_report(const oh_verify_args &args, uint64_t i, uint64_t ours, uint64_t theirs)
{
    char *const reported = args.call.staging[0] + OH_REPORTED_OFFSET;
    const uint64_t epoch = oh_word_load(args.call.staging[0] + OH_EPOCH_OFFSET),
                   mark = epoch << 32 | args.call.call_number;
    if (oh_pair_exchange(reported, mark) == mark || oh_word_load(args.call.abort_flag) != OH_ABORT_NONE) {
        return; /* or the program has aborted the communicator: then neither result means anything */
    }
    struct oh_difference *difference = &args.call.control->difference;
    const uint32_t calls = oh_word_load(reported + sizeof mark) + 1;
    oh_word_store(reported + sizeof mark, calls);
    oh_word_store(&difference->calls, 0);
    oh_word_publish(&difference->call_number, args.call.call_number);
    oh_word_store(&difference->signature, args.call.signature);
    oh_word_store(&difference->report_count, args.call.report_count);
    oh_pair_store(&difference->element, i);
    oh_pair_store(&difference->onehop, verify_shown(args, ours));
    oh_pair_store(&difference->nccl, verify_shown(args, theirs));
    oh_word_publish(&difference->calls, calls); /* pairs with read_difference() */
}

OH_DEVICE void verify_compare(const oh_verify_args &args)
{
    const uint64_t step = (uint64_t)oh_blocks() * oh_threads();
    for (uint32_t row = 0; row < args.rows; row++) {
        const char *result = static_cast<const char *>(args.call.recvbuff) + row * args.call.stride;
        for (uint64_t i = (uint64_t)oh_block() * oh_threads() + oh_thread(); i < args.call.count; i += step) {
            const uint64_t at = row * args.call.count + i; /* NCCL's rows have no gaps */
            const uint64_t ours = verify_load(result, i, args.element_bytes);
            const uint64_t theirs = verify_load(args.reference, at, args.element_bytes);
            if (!verify_agrees(args, at, ours, theirs)) {
                verify_report(args, row * (args.call.stride / args.element_bytes) + i, ours, theirs);
            }
        }
    }
}

OH_DEVICE double verify_factor(const oh_verify_args &args)
{
    const void *scalar = args.call.scalar ? args.call.scalar : &args.call.operand;
    return args.call.op == OH_OP_SCALED_SUM ? verify_value(args.type, verify_load(scalar, 0, args.element_bytes)) : 1;
}

/* Of all elements that this rank sends: args.rows rows. */
OH_DEVICE void verify_magnitudes(const oh_verify_args &args)
{
    const double factor = verify_factor(args);
    const uint64_t count = args.rows * args.call.count, step = (uint64_t)oh_blocks() * oh_threads();
    for (uint64_t i = (uint64_t)oh_block() * oh_threads() + oh_thread(); i < count; i += step) {
        const uint64_t bits = verify_load(args.call.sendbuff, i, args.element_bytes);
        const double magnitude = fabs(factor * verify_value(args.type, bits));
        if (args.type == OH_TYPE_F64) {
            static_cast<double *>(args.magnitudes)[i] = magnitude;
        } else {
            static_cast<float *>(args.magnitudes)[i] = (float)magnitude;
        }
    }
}

OH_KERNEL(onehop_verify_compare, OH_VERIFY_THREADS, oh_verify_args, verify_compare)
OH_KERNEL(onehop_verify_magnitudes, OH_VERIFY_THREADS, oh_verify_args, verify_magnitudes)
