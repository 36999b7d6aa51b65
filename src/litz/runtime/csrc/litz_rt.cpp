// The runtime support library: runs a segment, that is a fixed sequence of kernels, in one call.
// The structs mirror those that runtime/native.py builds; no headers, so that compiling is quick.

typedef __INT64_TYPE__ i64;
typedef __INT32_TYPE__ i32;

struct Step {
    i32 (*kernel)(void** ptrs, const i64* ints);
    const i32* table;  // n_ptrs positions among the segment's pointers, then n_ints among its integers
    i64 n_ptrs;
    i64 n_ints;
};

struct Plan {
    const Step* steps;
    i64 n_steps;
    i64 n_ptrs;     // of the segment
    i64 max_ptrs;   // of any step
    i64 max_ints;
};

// packed: [plan, pointers..., integers...].  Returns 0, or (step << 32 | fault) of the first kernel
// that reports a fault; the kernels behind it do not run.
extern "C" i64 litz_run_segment(void** packed) {
    const Plan* plan = (const Plan*)packed[0];
    void** ptrs = packed + 1;
    const i64* ints = (const i64*)(ptrs + plan->n_ptrs);
    void** p = (void**)__builtin_alloca((plan->max_ptrs + 1) * sizeof(void*));
    i64* q = (i64*)__builtin_alloca((plan->max_ints + 1) * sizeof(i64));
    for (i64 s = 0; s < plan->n_steps; ++s) {
        const Step* step = plan->steps + s;
        const i32* t = step->table;
        for (i64 k = 0; k < step->n_ptrs; ++k) p[k] = ptrs[*t++];
        for (i64 k = 0; k < step->n_ints; ++k) q[k] = ints[*t++];
        i32 fault = step->kernel(p, q);
        if (fault) return s << 32 | (i64)(unsigned)fault;
    }
    return 0;
}
