// Cross-entropy and its gradient, as autograd asks for them: the loss first; and what that leaves for the gradient
// is its own, as the logits may be written in between.  That is the softmax: its exponentials are there already.
#include "loops.h"

#include <sys/mman.h>

#include <cstdlib>

#include <litz/kernel.h>
#include <litz/math.h>

constexpr int64_t HUGE_PAGE = 2 << 20;
typedef litz::Vec<float, LANES> V;

static V vec(const float* p) { return litz::load<LANES>(p); }

// A row's softmax past the caches into `to`; returns its loss.  The next row is asked for meanwhile.
static float loss(const float* x, const float* next, int64_t n, int64_t target, float* kept, float* to) {
    const int64_t whole = n / (4 * LANES) * (4 * LANES);
    V tops[4] = {V(-INFINITY), V(-INFINITY), V(-INFINITY), V(-INFINITY)};
    for (int64_t i = 0; i < whole; i += 4 * LANES)
        for (int k = 0; k < 4; ++k) tops[k] = V(litz::hw::max(vec(x + i + k * LANES).v, tops[k].v));
    float top = litz::hmax(litz::maximum(litz::maximum(tops[0], tops[1]), litz::maximum(tops[2], tops[3])));
    for (int64_t i = whole; i < n; ++i) top = std::fmax(top, x[i]);
    V sums[4] = {V(0.0f), V(0.0f), V(0.0f), V(0.0f)};
    for (int64_t i = 0; i < whole; i += 4 * LANES) {
        for (int k = 0; k < 4 * LANES; k += 16) __builtin_prefetch(next + i + k, 0, 2);
        for (int k = 0; k < 4; ++k) {
            V e = litz::exp(vec(x + i + k * LANES) - V(top));
            litz::store(kept + i + k * LANES, e);
            sums[k] = sums[k] + e;
        }
    }
    float sum = litz::hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (int64_t i = whole; i < n; ++i) sum += kept[i] = std::exp(x[i] - top);
    const float part = 1 / sum;
    for (int64_t i = 0; i < whole; i += LANES) litz::store_stream(to + i, vec(kept + i) * V(part));
    for (int64_t i = whole; i < n; ++i) to[i] = kept[i] * part;
    return std::log(sum) + top - x[target];
}

// Rows that fit the room; all of them count.
LOOP(cross_entropy_training) {
    const float* x = (const float*)tensors[0];
    const int64_t* target = (const int64_t*)tensors[1];
    float* out = (float*)tensors[2];
    const int64_t rows = sizes[0], n = sizes[1];
    static float* saved = nullptr;
    static int64_t size = 0;
    if (size != rows * n) {  // on huge pages, as what Litz saves is
        free(saved);
        size = rows * n;
        saved = (float*)aligned_alloc(HUGE_PAGE, (4 * size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
        madvise(saved, 4 * size, MADV_HUGEPAGE);
    }
    double total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
    for (int64_t r = 0; r < rows; ++r) {
        alignas(64) static thread_local float kept[1 << 16];
        total += loss(x + r * n, x + (r + 1 < rows ? r + 1 : r) * n, n, target[r], kept, saved + r * n);
    }
    static volatile double seen;
    seen = total / rows;
    litz::stream_fence();
    const float scale = 1.0f / rows;
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) {
        const float* p = saved + r * n;
        float* to = out + r * n;
        const int64_t at = target[r] / LANES * LANES;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) {
            __builtin_prefetch(p + i + 512, 0, 2);
            V g = vec(p + i) * V(scale);
            if (__builtin_expect(i == at, 0)) g.set(target[r] - at, g[target[r] - at] - scale);
            litz::store_stream(to + i, g);
        }
        for (; i < n; ++i) to[i] = (p[i] - (i == target[r])) * scale;
    }
    litz::stream_fence();
}
