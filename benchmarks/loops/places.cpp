#include "loops.h"

#include <cstdio>
#include <cstdlib>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef const int64_t* Numbers;

// Places that data gives are checked; of a bad one there is no result.
static void refuse(bool bad) {
    if (!bad) return;
    std::fputs("a place out of range\n", stderr);
    std::abort();
}
static bool outside(int64_t k, int64_t n) { return (uint64_t)k >= (uint64_t)n; }

static void stream(float* p, Lanes x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)x);
#elif defined(__AVX__)
    _mm256_stream_ps(p, (__m256)x);
#else
    store(p, x);
#endif
}
static void ordered() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

// Whether any of LANES numbers is outside of 0 .. n.
static bool any_outside(Numbers k, int64_t n) {
#if defined(__AVX512F__)
    __m512i most = _mm512_set1_epi64(n);
    return _mm512_cmpge_epu64_mask(_mm512_loadu_si512(k), most) | _mm512_cmpge_epu64_mask(_mm512_loadu_si512(k + 8), most);
#elif defined(__AVX2__)
    // Negative, or so the difference to the last.
    __m256i last = _mm256_set1_epi64x(n - 1), a = _mm256_loadu_si256((const __m256i*)k), b = _mm256_loadu_si256((const __m256i*)(k + 4));
    __m256i far = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(_mm256_sub_epi64(last, a), _mm256_sub_epi64(last, b)));
    return _mm256_movemask_pd(_mm256_castsi256_pd(far));
#else
    bool any = false;
    for (int j = 0; j < LANES; ++j) any |= outside(k[j], n);
    return any;
#endif
}
static Lanes picked(const float* row, Numbers k) {
#if defined(__AVX512F__)
    __m256 a = _mm512_i64gather_ps(_mm512_loadu_si512(k), row, 4), b = _mm512_i64gather_ps(_mm512_loadu_si512(k + 8), row, 4);
    return (Lanes)_mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1);
#elif defined(__AVX2__)
    __m128 a = _mm256_i64gather_ps(row, _mm256_loadu_si256((const __m256i*)k), 4);
    __m128 b = _mm256_i64gather_ps(row, _mm256_loadu_si256((const __m256i*)(k + 4)), 4);
    return (Lanes)_mm256_set_m128(b, a);
#else
    Lanes x;
    for (int j = 0; j < LANES; ++j) x[j] = row[k[j]];
    return x;
#endif
}

// Rows are copied while the next one is asked for.
static void copy_rows(const float* x, Numbers at, float* out, int64_t from, int64_t to, int64_t rows, int64_t columns) {
    for (int64_t r = from; r < to; ++r) {
        refuse(outside(at[r], rows));
        const float *row = x + at[r] * columns, *next = x + at[r + 1 < to ? r + 1 : r] * columns;
        float* into = out + r * columns;
        for (int64_t c = 0; c < columns; c += 2 * LANES) {
            __builtin_prefetch(next + c, 0, 2);
            __builtin_prefetch(next + c + LANES, 0, 2);
            stream(into + c, load(row + c));
            stream(into + c + LANES, load(row + c + LANES));
        }
    }
    ordered();
}
LOOP(index_select) {
    int64_t rows = sizes[0], columns = sizes[1];
#pragma omp parallel num_threads(threads)
    {
        int64_t t = omp_get_thread_num(), n = omp_get_num_threads();
        copy_rows((const float*)tensors[0], (Numbers)tensors[1], (float*)tensors[2], rows * t / n, rows * (t + 1) / n, rows, columns);
    }
}

// Places lie within a row, which was asked for while the one before was gathered.
LOOP(gather) {
    int64_t rows = sizes[0], columns = sizes[1];
    const float* x = (const float*)tensors[0];
    Numbers at = (Numbers)tensors[1];
    float* out = (float*)tensors[2];
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (int64_t r = 0; r < rows; ++r) {
            const float* row = x + r * columns;
            for (int64_t c = 0; c < columns; c += LANES) {
                Numbers k = at + r * columns + c;
                __builtin_prefetch(row + columns + c, 0, 2);
                refuse(any_outside(k, columns));
                stream(out + r * columns + c, picked(row, k));
            }
        }
        ordered();
    }
}

// A row of zeros is added into while it is in the cache, then written.
LOOP(scatter_add) {
    int64_t rows = sizes[0], columns = sizes[1];
    const float* x = (const float*)tensors[0];
    Numbers at = (Numbers)tensors[1];
    float* out = (float*)tensors[2];
#pragma omp parallel num_threads(threads)
    {
        float* row = (float*)std::aligned_alloc(4096, 4 * columns);
#pragma omp for
        for (int64_t r = 0; r < rows; ++r) {
            std::memset(row, 0, 4 * columns);
            for (int64_t c = 0; c < columns; c += LANES) {
                Numbers k = at + r * columns + c;
                const float* add = x + r * columns + c;
                __builtin_prefetch(k + 512, 0, 2);
                if (c % 16 == 0) __builtin_prefetch(add + 512, 0, 2);
                refuse(any_outside(k, columns));
#pragma GCC unroll 16
                for (int j = 0; j < LANES; ++j) row[k[j]] += add[j];
            }
            for (int64_t c = 0; c < columns; c += LANES) stream(out + r * columns + c, load(row + c));
        }
        std::free(row);
        ordered();
    }
}

// For each of `rows` the numbers of what is added into it, in their order: `order[from[k]] .. order[from[k + 1]]`.
struct Lists {
    std::vector<int32_t> from, order;
    Lists(Numbers at, int64_t count, int64_t rows) : from(rows + 2), order(count + 1) {
        for (int64_t i = 0; i < count; ++i) {
            refuse(outside(at[i], rows));
            ++from[at[i] + 2];
        }
        for (int64_t k = 2; k < rows + 2; ++k) from[k] += from[k - 1];
        for (int64_t i = 0; i < count; ++i) order[from[at[i] + 1]++] = (int32_t)i;
    }
};
// Each result is written once: sums of a row's numbers stay in registers.
template <class Term> static void add_rows(const Lists& lists, const float* x, float* out, int64_t from, int64_t to, int64_t columns, Term term) {
    constexpr int64_t B = 8;
    for (int64_t k = from; k < to; ++k) {
        const int32_t *first = lists.order.data() + lists.from[k], *last = lists.order.data() + lists.from[k + 1];
        const float* next = x + *last * columns;
        for (int64_t c = 0; c < columns; c += B * LANES) {
            Lanes sums[B] = {};
            for (const int32_t* i = first; i < last; ++i)
#pragma GCC unroll 8
                for (int64_t b = 0; b < B; ++b) sums[b] += term(load(x + *i * columns + c + b * LANES));
            if (first < last)
                for (int64_t b = 0; b < B * LANES; b += 16) __builtin_prefetch(next + c + b, 0, 2);
#pragma GCC unroll 8
            for (int64_t b = 0; b < B; ++b) stream(out + k * columns + c + b * LANES, sums[b]);
        }
    }
    ordered();
}
// Threads have as many rows to read and to write.
template <class Term> static void add_rows(const Lists& lists, const float* x, float* out, int64_t rows, int64_t columns, int threads, Term term) {
#pragma omp parallel num_threads(threads)
    {
        int64_t t = omp_get_thread_num(), n = omp_get_num_threads(), all = rows + lists.from[rows];
        auto begin = [&](int64_t part) {
            int64_t k = 0;
            while (k < rows && k + lists.from[k] < part) ++k;
            return k;
        };
        add_rows(lists, x, out, begin(all * t / n), begin(all * (t + 1) / n), columns, term);
    }
}
LOOP(index_add) {
    int64_t rows = sizes[0], columns = sizes[1];
    Lists lists((Numbers)tensors[1], rows, rows);
    add_rows(lists, (const float*)tensors[0], (float*)tensors[2], rows, columns, threads, [](Lanes x) { return x; });
}

// The mean square of picked rows, then its gradient; the rows are picked again.
LOOP(embedding_training) {
    int64_t rows = sizes[0], columns = sizes[1], count = rows / 4;
    const float* x = (const float*)tensors[0];
    Numbers at = (Numbers)tensors[1];
    double loss = 0;
#pragma omp parallel num_threads(threads) reduction(+ : loss)
    {
        int64_t t = omp_get_thread_num(), n = omp_get_num_threads(), to = count * (t + 1) / n;
        for (int64_t i = count * t / n; i < to; ++i) {
            refuse(outside(at[i], rows));
            const float *row = x + at[i] * columns, *next = x + at[i + 1 < to ? i + 1 : i] * columns;
            Lanes sums[4] = {};
            for (int64_t c = 0; c < columns; c += 4 * LANES) {
                for (int64_t b = 0; b < 4 * LANES; b += 16) __builtin_prefetch(next + c + b, 0, 2);
                for (int b = 0; b < 4; ++b) sums[b] += load(row + c + b * LANES) * load(row + c + b * LANES);
            }
            loss += total(sums[0] + sums[1] + sums[2] + sums[3]);
        }
    }
    static volatile double kept;
    kept = loss / (count * columns);
    (void)kept;
    float step = 1.0f / (count * columns);
    Lists lists(at, count, rows);
    for (auto& i : lists.order) i = (int32_t)at[i];
    add_rows(lists, x, (float*)tensors[2], rows, columns, threads, [step](Lanes v) { return step * (2 * v); });
}
