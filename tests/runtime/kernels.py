"""Small kernels, written by hand to the convention at the top of litz.runtime.native."""

from __future__ import annotations

HEAD = "typedef __INT64_TYPE__ i64;\n"

ADD = HEAD + (
    'extern "C" int add(void** ptrs, const i64* ints) {\n'
    "  const float* a = (const float*)ptrs[0]; const float* b = (const float*)ptrs[1];\n"
    "  float* out = (float*)ptrs[2];\n"
    "  #pragma omp parallel for\n"
    "  for (i64 i = 0; i < ints[0]; ++i) out[i] = a[i] + b[i];\n"
    "  return 0;\n}\n"
)

SCALE = HEAD + (
    'extern "C" int scale(void** ptrs, const i64* ints) {\n'
    "  double factor; __builtin_memcpy(&factor, ints + 1, 8);\n"
    "  float* x = (float*)ptrs[0];\n"
    "  for (i64 i = 0; i < ints[0]; ++i) x[i] = (float)(x[i] * factor);\n"
    "  return 0;\n}\n"
)

GATHER = HEAD + (
    'extern "C" int gather(void** ptrs, const i64* ints) {\n'
    "  const float* table = (const float*)ptrs[0]; const i64* index = (const i64*)ptrs[1];\n"
    "  float* out = (float*)ptrs[2]; int fault = 0;\n"
    "  #pragma omp parallel for\n"
    "  for (i64 i = 0; i < ints[1]; ++i) {\n"
    "    i64 at = index[i];\n"
    "    if (at < 0) { __atomic_store_n(&fault, 2, __ATOMIC_RELAXED); continue; }\n"
    "    if (at >= ints[0]) { __atomic_store_n(&fault, 1, __ATOMIC_RELAXED); continue; }\n"
    "    out[i] = table[at];\n  }\n"
    "  return fault;\n}\n"
)

THREADS = (
    "#include <omp.h>\n" + HEAD + 'extern "C" int threads(void** ptrs, const i64* ints) {\n'
    "  i64 n = 0;\n"
    "  #pragma omp parallel reduction(+:n)\n  n += 1;\n"
    "  *(i64*)ptrs[0] = n;\n"
    "  *(void**)ptrs[1] = (void*)&omp_get_max_threads;\n"
    "  return 0;\n}\n"
)

# Needs helpers that are in no global scope: __divti3 of libgcc, and erff of libm.
HELPERS = HEAD + (
    'extern "C" int helpers(void** ptrs, const i64* ints) {\n'
    "  __int128 big = (__int128)ints[0] << 70;\n"
    "  *(i64*)ptrs[0] = (i64)((big / ints[1]) >> 60);\n"
    "  *(float*)ptrs[1] = __builtin_erff(*(float*)ptrs[1]);\n"
    "  return 0;\n}\n"
)

SLEEPY = HEAD + (
    'extern "C" int usleep(unsigned);\n'
    'extern "C" int sleepy(void** ptrs, const i64* ints) {\n'
    "  usleep((unsigned)ints[0]); return 0;\n}\n"
)

BROKEN = HEAD + 'extern "C" int broken(void** ptrs, const i64* ints) { return nosuchname; }\n'


def numbered(i: int) -> str:
    """A kernel that differs from its siblings: writes `i`."""
    return HEAD + (
        f'extern "C" int numbered(void** ptrs, const i64*) {{ *(i64*)ptrs[0] = {i}; return 0; }}\n'
    )
