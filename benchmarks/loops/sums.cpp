#include "loops.h"

// Of long rows four at once: a machine asks for no line behind the end of a page, and waits there.
constexpr int STREAMS = 4, TERMS = 16, STEP = 2 * LANES;

// 16 terms in each of 8 accumulators, then a sum of 64 bits.  The rows are `apart`.
static void row_sums(const float* x, int64_t n, int64_t apart, double* sums) {
    int64_t i = 0;
    for (; i + STEP <= n;) {
        Lanes held[STREAMS][2] = {};
        for (int k = 0; k < TERMS && i + STEP <= n; ++k, i += STEP)
            for (int r = 0; r < STREAMS; ++r)
                for (int h = 0; h < 2; ++h) held[r][h] += load(x + r * apart + i + h * LANES);
        for (int r = 0; r < STREAMS; ++r) sums[r] += total(held[r][0] + held[r][1]);
    }
    for (; i < n; ++i)
        for (int r = 0; r < STREAMS; ++r) sums[r] += x[r * apart + i];
}

LOOP(sum_rows) {
    const float* x = (const float*)tensors[0];
    float* out = (float*)tensors[1];
    int64_t rows = sizes[0], columns = sizes[1];
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows / STREAMS * STREAMS; r += STREAMS) {
        double sums[STREAMS] = {};
        row_sums(x + r * columns, columns, columns, sums);
        for (int k = 0; k < STREAMS; ++k) out[r + k] = sums[k];
    }
    for (int64_t r = rows / STREAMS * STREAMS; r < rows; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < columns; ++i) sum += x[r * columns + i];
        out[r] = sum;
    }
}

LOOP(sum_all) {
    const float* x = (const float*)tensors[0];
    int64_t n = sizes[0] * sizes[1], part = n / threads / STREAMS;
    double sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum)
    for (int t = 0; t < threads; ++t) {
        double sums[STREAMS] = {};
        row_sums(x + t * part * STREAMS, part, part, sums);
        for (double s : sums) sum += s;
    }
    for (int64_t i = part * STREAMS * threads; i < n; ++i) sum += x[i];
    *(float*)tensors[1] = sum;
}

// Eight rows into each vector of an array, twice, then that into one of 64 bits.
static void columns_of(const float* x, double* sums, int64_t from, int64_t to, int64_t n) {
    std::vector<float> held(n);
    for (int64_t r = from; r < to;) {
        int64_t first = r, end = r + 16 < to ? r + 16 : to;
        std::memset(held.data(), 0, n * sizeof(float));
        for (; r + 8 <= end; r += 8)
            for (int64_t i = 0; i + LANES <= n; i += LANES) {
                Lanes s = load(&held[i]);
                for (int k = 0; k < 8; ++k) s += load(x + (r + k) * n + i);
                store(&held[i], s);
            }
        for (; r < end; ++r)
            for (int64_t i = 0; i + LANES <= n; i += LANES) store(&held[i], load(&held[i]) + load(x + r * n + i));
        for (int64_t i = 0; i < n; ++i) sums[i] += held[i];
        for (int64_t k = first; k < end; ++k)
            for (int64_t i = n / LANES * LANES; i < n; ++i) sums[i] += x[k * n + i];
    }
}

LOOP(sum_columns) {
    const float* x = (const float*)tensors[0];
    float* out = (float*)tensors[1];
    int64_t rows = sizes[0], n = sizes[1];
    std::vector<double> sums(threads * n);
#pragma omp parallel for num_threads(threads)
    for (int t = 0; t < threads; ++t) columns_of(x, &sums[t * n], rows * t / threads, rows * (t + 1) / threads, n);
    for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int t = 0; t < threads; ++t) sum += sums[t * n + i];
        out[i] = sum;
    }
}
