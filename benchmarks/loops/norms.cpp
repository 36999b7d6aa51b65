#include <immintrin.h>

#include "loops.h"

// Results go past the caches; rows that are no multiples of 8 * LANES run without vectors.
#define INLINE static inline __attribute__((always_inline))
typedef int32_t Whole __attribute__((vector_size(4 * LANES)));

INLINE void stream(float* p, Lanes x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)x);
#else
    _mm256_stream_ps(p, (__m256)x);
#endif
}
INLINE Lanes all(float x) { return Lanes{} + x; }
INLINE Lanes above(Lanes a, Lanes b) { return a > b ? a : b; }
INLINE float top(Lanes x) {
    float found = x[0];
    for (int k = 1; k < LANES; ++k) found = x[k] > found ? x[k] : found;
    return found;
}
// Within some units in the last place; below 2^-126 it is 2^-126.
INLINE Lanes exponential(Lanes x) {
    x = above(x, all(-87.3f));
    x = x < 88.3f ? x : all(88.3f);
    Lanes n = x * 0x1.715476p+0f + 0x1.8p23f;
    Whole e = (Whole)n << 23;
    n -= 0x1.8p23f;
    Lanes r = n * -0x1.62e400p-1f + x;
    r = n * -0x1.7f7d1cp-20f + r;
    Lanes p = r * 0x1.6850e4p-10f + 0x1.123bccp-7f;
    p = p * r + 0x1.555b98p-5f;
    p = p * r + 0x1.55548ep-3f;
    p = p * r + 0x1.fffff8p-2f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (Lanes)((Whole)p + e);
}
struct Room {  // of floats, from a line of memory on
    std::vector<float> all;
    float* at;
    explicit Room(int64_t n) : all(n + 16), at((float*)(((uintptr_t)all.data() + 63) & ~uintptr_t(63))) {}
};
// f(from, to) in each thread, of its part of n.
template <class F> static void divided(int64_t n, int threads, F f) {
#pragma omp parallel num_threads(threads)
    {
        int64_t t = omp_get_thread_num();
        f(n * t / threads, n * (t + 1) / threads);
        _mm_sfence();
    }
}

static void plain_softmax(const float* x, float* out, int64_t n, int64_t step) {
    float most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; ++i) most = x[i * step] > most ? x[i * step] : most;
    for (int64_t i = 0; i < n; ++i) sum += out[i * step] = std::exp(x[i * step] - most);
    for (int64_t i = 0; i < n; ++i) out[i * step] /= sum;
}
static void plain_norm(const float* x, const float* w, const float* b, float* out, int64_t n) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; ++i) mean += x[i] / double(n);
    for (int64_t i = 0; i < n; ++i) square += (x[i] - mean) * (x[i] - mean);
    for (int64_t i = 0; i < n; ++i) out[i] = (x[i] - mean) / std::sqrt(square / n + 1e-5) * w[i] + b[i];
}

// Rows of 16 kB stay in the nearest cache; the next is fetched while exponentials are computed.
LOOP(softmax) {
    const float* x = (const float*)tensors[0];
    float* out = (float*)tensors[1];
    int64_t rows = sizes[0], n = sizes[1];
    if (n % (8 * LANES)) {
        for (int64_t r = 0; r < rows; ++r) plain_softmax(x + r * n, out + r * n, n, 1);
        return;
    }
    divided(rows, threads, [=](int64_t from, int64_t to) {
        Room kept(n);
        for (int64_t r = from; r < to; ++r) {
            const float* p = x + r * n;
            Lanes most[4], sums[2] = {};
            for (Lanes& m : most) m = load(p);
            for (int64_t i = 0; i < n; i += 4 * LANES)
                for (int k = 0; k < 4; ++k) most[k] = above(most[k], load(p + i + k * LANES));
            Lanes m = all(top(above(above(most[0], most[1]), above(most[2], most[3]))));
            for (int64_t i = 0; i < n; i += 2 * LANES)
                for (int k = 0; k < 2; ++k) {
                    if (k * LANES % 16 == 0) __builtin_prefetch(p + n + i + k * LANES, 0, 2);
                    Lanes e = exponential(load(p + i + k * LANES) - m);
                    sums[k] += e;
                    store(kept.at + i + k * LANES, e);
                }
            Lanes sum = all(total(sums[0] + sums[1]));
            for (int64_t i = 0; i < n; i += LANES) stream(out + r * n + i, load(kept.at + i) / sum);
        }
    });
}

// Maximum and sum of a column in one pass over memory, eight rows at once; the exponentials again in the second.
LOOP(softmax_columns) {
    const float* x = (const float*)tensors[0];
    float* out = (float*)tensors[1];
    int64_t rows = sizes[0], n = sizes[1];
    if (n % 16) {
        for (int64_t c = 0; c < n; ++c) plain_softmax(x + c, out + c, rows, n);
        return;
    }
    divided(n / 16, threads, [=](int64_t from, int64_t to) {
        from *= 16, to *= 16;
        Room most(to - from), sums(to - from);
        for (int64_t c = 0; c < to - from; c += LANES) store(most.at + c, all(-INFINITY)), store(sums.at + c, Lanes{});
        for (int64_t r = 0; r < rows; r += 8)
            for (int64_t c = from; c < to; c += LANES) {
                Lanes a[8], before = load(most.at + c - from), m = before;
                int some = rows - r < 8 ? rows - r : 8;
                for (int k = 0; k < 8; ++k) a[k] = k < some ? load(x + (r + k) * n + c) : all(-INFINITY);
                for (int k = 0; k < 8; ++k) m = above(m, a[k]);
                Lanes s = load(sums.at + c - from) * exponential(before - m);
                for (int k = 0; k < 8; ++k) s += exponential(a[k] - m);
                store(most.at + c - from, m), store(sums.at + c - from, s);
            }
        for (int64_t c = 0; c < to - from; c += LANES) store(sums.at + c, 1.0f / load(sums.at + c));
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = from; c < to; c += LANES)
                stream(out + r * n + c,
                       exponential(load(x + r * n + c) - load(most.at + c - from)) * load(sums.at + c - from));
    });
}

// So many rows at once, each a stream: their sums, their deviations (all in the second cache), their results.
template <int ROWS>
INLINE void normed(const float* x, const float* w, const float* b, float* out, int64_t n) {
    Lanes sums[ROWS][2] = {};
    for (int64_t i = 0; i < n; i += 2 * LANES)
        for (int r = 0; r < ROWS; ++r)
            for (int k = 0; k < 2; ++k) sums[r][k] += load(x + r * n + i + k * LANES);
    for (int r = 0; r < ROWS; ++r) {
        const float* p = x + r * n;
        Lanes mean = all(total(sums[r][0] + sums[r][1]) / n), squares[8] = {};
        for (int64_t i = 0; i < n; i += 8 * LANES)
            for (int k = 0; k < 8; ++k) {
                Lanes off = load(p + i + k * LANES) - mean;
                squares[k] += off * off;
            }
        for (int k = 1; k < 8; ++k) squares[0] += squares[k];
        Lanes scale = all(1 / std::sqrt(total(squares[0]) / n + 1e-5f));
        for (int64_t i = 0; i < n; i += LANES)
            stream(out + r * n + i, (load(p + i) - mean) * scale * load(w + i) + load(b + i));
    }
}
LOOP(layer_norm) {
    auto x = (const float*)tensors[0], w = (const float*)tensors[1], b = (const float*)tensors[2];
    float* out = (float*)tensors[3];
    int64_t rows = sizes[0], n = sizes[1];
    if (n % (8 * LANES)) {
        for (int64_t r = 0; r < rows; ++r) plain_norm(x + r * n, w, b, out + r * n, n);
        return;
    }
    divided(rows, threads, [=](int64_t r, int64_t to) {
        for (; r + 8 <= to; r += 8) normed<8>(x + r * n, w, b, out + r * n, n);
        for (; r < to; ++r) normed<1>(x + r * n, w, b, out + r * n, n);
    });
}

// Sums and squares, less the first element, of four streams of a group; while its results are computed, the next
// group is fetched.
LOOP(group_norm_silu) {
    auto x = (const float*)tensors[0], w = (const float*)tensors[1], b = (const float*)tensors[2];
    float* out = (float*)tensors[3];
    constexpr int64_t GROUPS = 32, CHUNK = 1024;
    int64_t n = sizes[1] / GROUPS * sizes[2] * sizes[3], plane = sizes[2] * sizes[3], channels = sizes[1];
    if (plane != n) return;  // a group is a channel
    divided(sizes[0] * GROUPS, threads, [=](int64_t from, int64_t to) {
        for (int64_t g = from; g < to; ++g) {
            const float* p = x + g * n;
            float* o = out + g * n;
            int64_t part = n / 4 / LANES * LANES;
            double sum = 0, square = 0;
            for (int64_t i = 0; i < part; i += CHUNK) {
                Lanes sums[4] = {}, squares[4] = {};
                for (int64_t j = i; j < part && j < i + CHUNK; j += LANES)
                    for (int k = 0; k < 4; ++k) {
                        Lanes off = load(p + k * part + j) - p[0];
                        sums[k] += off, squares[k] += off * off;
                    }
                sum += total((sums[0] + sums[1]) + (sums[2] + sums[3]));
                square += total((squares[0] + squares[1]) + (squares[2] + squares[3]));
            }
            for (int64_t i = 4 * part; i < n; ++i) {
                double off = p[i] - p[0];
                sum += off, square += off * off;
            }
            float mean = p[0] + sum / n, scale = w[g % channels] / std::sqrt((square - sum * sum / n) / n + 1e-5);
            float shift = b[g % channels] - mean * scale;
            auto silu = [=](Lanes v) {
                Lanes y = v * scale + shift;
                return y / (exponential(-y) + 1.0f);
            };
            int64_t i = 0;
            for (; i < n && (uintptr_t)(o + i) % 64; ++i) o[i] = silu(all(p[i]))[0];
            for (; i + 2 * LANES <= n; i += 2 * LANES)
                for (int k = 0; k < 2; ++k) {
                    if (k * LANES % 16 == 0) __builtin_prefetch(p + n + i + k * LANES, 0, 2);
                    stream(o + i + k * LANES, silu(load(p + i + k * LANES)));
                }
            for (; i < n; ++i) o[i] = silu(all(p[i]))[0];
        }
    });
}
