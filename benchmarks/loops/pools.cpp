// Pools of images: columns of a window are taken together in whole vectors, whose even and odd elements then meet
// in one shuffle; lines of the rows that come next are asked for in memory's order, as no machine guesses them.
#include "loops.h"

#include <algorithm>
#include <cfloat>
#include <immintrin.h>

#if defined(__AVX512F__)
typedef __mmask16 Odd;
static Odd odd(Lanes a, Lanes b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q); }
static bool any(Odd m) { return m; }
static Lanes most(Lanes a, Lanes b) { return (Lanes)_mm512_max_ps((__m512)a, (__m512)b); }
typedef int Places __attribute__((vector_size(64)));
static Lanes evens(Lanes a, Lanes b) {
    return __builtin_shuffle(a, b, Places{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30});
}
static Lanes odds(Lanes a, Lanes b) {
    return __builtin_shuffle(a, b, Places{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31});
}
static Lanes in_order(Lanes a) { return a; }
#else
typedef Lanes Odd;
static Odd odd(Lanes a, Lanes b) { return (Lanes)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q); }
static bool any(Odd m) { return _mm256_movemask_ps((__m256)m); }
static Lanes most(Lanes a, Lanes b) { return (Lanes)_mm256_max_ps((__m256)a, (__m256)b); }
// Within halves, whose quarters are put in order at the end.
static Lanes evens(Lanes a, Lanes b) { return (Lanes)_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88); }
static Lanes odds(Lanes a, Lanes b) { return (Lanes)_mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd); }
static Lanes in_order(Lanes a) { return (Lanes)_mm256_permute4x64_pd((__m256d)a, 0xd8); }
#endif
static Odd either(Odd a, Odd b) {
#if defined(__AVX512F__)
    return a | b;
#else
    return (Lanes)_mm256_or_ps((__m256)a, (__m256)b);
#endif
}

static void ask(const float* p, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(p + i, 0, 3);
}

// One row with nan in its windows, element by element.
static void with_nan(const float* const* rows, int64_t width, float* out, int64_t n) {
    for (int64_t j = 0; j < n; ++j) {
        float best = -INFINITY;
        for (int k = 0; k < 3; ++k)
            for (int64_t i = std::max<int64_t>(0, 2 * j - 1); i < std::min(width, 2 * j + 2); ++i)
                best = best != best || best > rows[k][i] ? best : rows[k][i];
        out[j] = best;
    }
}

static bool edges_nan(const float* const* rows, int64_t i) {
    return (rows[0][i] != rows[0][i]) | (rows[1][i] != rows[1][i]) | (rows[2][i] != rows[2][i]);
}

// 3 by 3, every second, padded by one.
LOOP(max_pool) {
    const float* x = (const float*)tensors[0];
    float* out = (float*)tensors[1];
    const int64_t images = sizes[0] * sizes[1], height = sizes[2], width = sizes[3];
    const int64_t down = (height - 1) / 2 + 1, across = (width - 1) / 2 + 1, whole = width / 2;
#pragma omp parallel for num_threads(threads)
    for (int64_t u = 0; u < images * down; ++u) {
        const int64_t i = u % down;
        const float* at = x + (u / down * height + 2 * i) * width;
        const float *first = i ? at - width : at, *last = 2 * i + 1 < height ? at + width : at;
        float* to = out + u * across;
        const float* rows[3] = {first, at, last};
        if (whole <= LANES) {
            with_nan(rows, width, to, across);
            continue;
        }
        Odd nan{};
        auto column = [&](int64_t k, bool counts) {
            Lanes a = load(last + k), b = load(at + k), c = load(first + k);
            if (counts) nan = either(nan, either(odd(a, b), odd(c, c)));
            return most(most(a, b), c);
        };
        auto vector = [&](int64_t j) {
            Lanes a = column(2 * j, true), b = column(2 * j + LANES, true);
            Lanes before = evens(column(2 * j - 1, false), column(2 * j - 1 + LANES, false));
            store(to + j, in_order(most(most(evens(a, b), odds(a, b)), before)));
        };
        int64_t j = 1;
        for (; j + LANES <= whole; j += LANES) {
            ask(at + 4 * j + 4 * width, 4 * LANES);
            vector(j);
        }
        if (j < whole) {
            ask(at + 4 * j + 4 * width, 2 * width - 4 * j);
            vector(whole - LANES);
        }
        auto edge = [&](int64_t a, int64_t b) {
            float top = std::max(std::max(first[a], first[b]), std::max(at[a], at[b]));
            return std::max(top, std::max(last[a], last[b]));
        };
        to[0] = edge(0, 1);
        if (across > whole) to[whole] = edge(width - 2, width - 1);
        bool found = any(nan) | edges_nan(rows, 0) | edges_nan(rows, 1) | (width % 2 && edges_nan(rows, width - 1));
        if (found) with_nan(rows, width, to, across);
    }
}

// 2 by 2, side by side.
LOOP(avg_pool) {
    const float* x = (const float*)tensors[0];
    float* out = (float*)tensors[1];
    const int64_t height = sizes[2], width = sizes[3], down = height / 2, across = width / 2;
#pragma omp parallel for num_threads(threads)
    for (int64_t u = 0; u < sizes[0] * sizes[1] * down; ++u) {
        const float* at = x + (u / down * height + 2 * (u % down)) * width;
        float* to = out + u * across;
        auto vector = [&](int64_t j) {
            Lanes a = load(at + width + 2 * j) + load(at + 2 * j);
            Lanes b = load(at + width + 2 * j + LANES) + load(at + 2 * j + LANES);
            store(to + j, in_order((evens(a, b) + odds(a, b)) * 0.25f));
        };
        int64_t j = 0;
        for (; j + LANES <= across; j += LANES) {
            ask(at + 4 * j + 8 * width, 4 * LANES);
            vector(j);
        }
        if (j < across) ask(at + 4 * j + 8 * width, 2 * width - 4 * j);
        if (j < across && across >= LANES) vector(j = across - LANES), j = across;
        for (; j < across; ++j)
            to[j] = (at[2 * j] + at[2 * j + 1] + at[width + 2 * j] + at[width + 2 * j + 1]) * 0.25f;
    }
}
