// Loops by hand: what a case's bytes cost on this machine in the best form that is known.
// Each is given its case's tensors (arguments in their order, then results, all contiguous), their sizes and
// how many threads it may use; it does all of the case's work, and its results are compared with eager mode's.
#pragma once
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define LOOP(name) extern "C" void name(void* const* tensors, const int64_t* sizes, int threads)

#if defined(__AVX512F__)
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4)));

inline Lanes load(const float* p) { return *(const Loose*)p; }
inline void store(float* p, Lanes x) { *(Loose*)p = x; }

inline float total(Lanes x) {
    float sum = 0;
    for (int k = 0; k < LANES; ++k) sum += x[k];
    return sum;
}
