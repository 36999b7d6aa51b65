#include "loops.h"

// 8 sums at once, so that each waits for no other.
static float row_sum(const float* x, int64_t n) {
    Lanes sums[8] = {};
    int64_t i = 0;
    for (; i + 8 * LANES <= n; i += 8 * LANES)
        for (int k = 0; k < 8; ++k) sums[k] += load(x + i + k * LANES);
    for (int k = 1; k < 8; ++k) sums[0] += sums[k];
    float sum = total(sums[0]);
    for (; i < n; ++i) sum += x[i];
    return sum;
}

LOOP(sum_rows) {
    const float* x = (const float*)tensors[0];
    float* out = (float*)tensors[1];
    int64_t rows = sizes[0], columns = sizes[1];
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) out[r] = row_sum(x + r * columns, columns);
}
