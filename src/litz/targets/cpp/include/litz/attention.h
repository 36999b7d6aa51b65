// Attention's blocks: operands as float in a thread's memory, their products in register tiles, and
// the running maximum, sum and result of a softmax (Dao et al., 2022).
//
// Steps and strides are in elements.  No function here is inlined: a kernel calls each twice.
#pragma once
#include <litz/math.h>
#include <litz/memory.h>

namespace litz {

#define LITZ_BLOCK template <int N, class T> static LITZ_CALLED

// to[i * width + e] = p[i * step + e * stride] for i < rows, e < size; zeros from there to width.
LITZ_BLOCK void block_rows(const T* p, i64 step, i64 stride, float* to, i64 rows, i64 size, i64 width) {
  for (i64 i = 0; i < rows; i++, p += step, to += width) {
    if (stride == 1) {
      i64 e = 0;
      for (; e + N <= size; e += N) store(to + e, cast<float>(load<N>(p + e)));
      for (; e < width; e += N) store(to + e, cast<float>(load_partial<N>(p + e, size - e)));
    } else {
      for (i64 e = 0; e < width; e++) to[e] = e < size ? cast<float>(p[e * stride]) : 0.0f;
    }
  }
}

// to[e * width + i] = p[i * step + e * stride] for i < rows, e < size; zeros from there to width.
LITZ_BLOCK void block_turned(const T* p, i64 step, i64 stride, float* to, i64 rows, i64 size, i64 width) {
  if (step == 1 || stride != 1) return block_rows<N>(p, stride, step, to, size, rows, width);
  for (i64 i = 0; i < width; i += N) {
    for (i64 e = 0; e < size; e += N) {
      Vec<float, N> part[N];
      const bool whole = e + N <= size;
      LITZ_UNROLL
      for (int k = 0; k < N; k++) {
        const T* const at = p + (i + k) * step + e;
        if (i + k >= rows) part[k] = Vec<float, N>(0.0f);
        else if (whole) part[k] = cast<float>(load<N>(at));
        else part[k] = cast<float>(load_partial<N>(at, size - e));
      }
      transpose(part);
      LITZ_UNROLL
      for (int k = 0; k < N; k++)
        if (e + k < size) store(to + (e + k) * width + i, part[k]);
    }
  }
}

// scores[i * s_step + j] = sum over e < size of query[i * q_step + e] * key[j * step + e], where so
// few rows i read a key that it is not worth turning.  Rows of the query are padded to vectors.
LITZ_BLOCK void block_dots(const float* query, i64 q_step, const T* key, i64 step, float* scores,
                           i64 s_step, i64 rows, i64 keys, i64 size) {
  for (i64 j = 0; j < keys; j += N, key += N * step) {
    for (i64 i = 0; i < rows; i++) {
      Vec<float, N> part[N];
      LITZ_UNROLL
      for (int k = 0; k < N; k++) part[k] = Vec<float, N>(0.0f);
      for (i64 e = 0; e < size; e += N) {
        const Vec<float, N> left = load<N>(query + i * q_step + e);
        if (j + N <= keys && e + N <= size) {
          LITZ_UNROLL
          for (int k = 0; k < N; k++)
            part[k] = mad(left, cast<float>(load<N>(key + k * step + e)), part[k]);
        } else {
          for (int k = 0; k < N && j + k < keys; k++)
            part[k] = mad(left, cast<float>(load_partial<N>(key + k * step + e, size - e)), part[k]);
        }
      }
      transpose(part);
      LITZ_UNROLL
      for (int half = N / 2; half > 0; half /= 2) {
        LITZ_UNROLL
        for (int k = 0; k < half; k++) part[k] = part[k] + part[k + half];
      }
      store(scores + i * s_step + j, part[0]);
    }
  }
}

namespace detail {
// R rows by W vectors of a product: put(r, w, sum over k < depth of a[r, k] * b[k, w]).
template <int N, int R, int W, class T, class F>
LITZ_FN void product_tile(const float* a, i64 a_step, const T* b, i64 b_step, i64 depth, F put) {
  Vec<float, N> sum[R][W];
  LITZ_UNROLL
  for (int r = 0; r < R; r++) {
    LITZ_UNROLL
    for (int w = 0; w < W; w++) sum[r][w] = Vec<float, N>(0.0f);
  }
  for (i64 k = 0; k < depth; k++, b += b_step) {
    Vec<float, N> right[W];
    LITZ_UNROLL
    for (int w = 0; w < W; w++) right[w] = cast<float>(load<N>(b + w * N));
    LITZ_UNROLL
    for (int r = 0; r < R; r++) {
      const Vec<float, N> left(a[r * a_step + k]);
      LITZ_UNROLL
      for (int w = 0; w < W; w++) sum[r][w] = mad(left, right[w], sum[r][w]);
    }
  }
  LITZ_UNROLL
  for (int r = 0; r < R; r++) {
    LITZ_UNROLL
    for (int w = 0; w < W; w++) put(r, w, sum[r][w]);
  }
}
}  // namespace detail

#define LITZ_TILES template <int N, int R, int W> static LITZ_CALLED

// c[i * c_step + j] = sum over k < depth of a[i * a_step + k] * b[k * b_step + j], for i < rows and
// j < columns, a multiple of W vectors.
LITZ_TILES void block_product(const float* a, i64 a_step, const float* b, i64 b_step, float* c,
                              i64 c_step, i64 rows, i64 columns, i64 depth) {
  for (i64 j = 0; j < columns; j += W * N) {
    i64 i = 0;
    auto put = [&](int r, int w, Vec<float, N> sum) LITZ_LAMBDA {
      store(c + (i + r) * c_step + j + w * N, sum);
    };
    for (; i + R <= rows; i += R)
      detail::product_tile<N, R, W>(a + i * a_step, a_step, b + j, b_step, depth, put);
    for (; i < rows; i++)
      detail::product_tile<N, 1, W>(a + i * a_step, a_step, b + j, b_step, depth, put);
  }
}

// c[i] = c[i] * scale[i] + that.
template <int N, int R, int W, class T>
static LITZ_CALLED void block_update(const float* a, i64 a_step, const T* b, i64 b_step, float* c,
                                     i64 c_step, const float* scale, i64 rows, i64 columns, i64 depth) {
  for (i64 j = 0; j < columns; j += W * N) {
    i64 i = 0;
    auto put = [&](int r, int w, Vec<float, N> sum) LITZ_LAMBDA {
      float* const at = c + (i + r) * c_step + j + w * N;
      store(at, mad(load<N>((const float*)at), Vec<float, N>(scale[i + r]), sum));
    };
    for (; i + R <= rows; i += R)
      detail::product_tile<N, R, W>(a + i * a_step, a_step, b + j, b_step, depth, put);
    for (; i < rows; i++)
      detail::product_tile<N, 1, W>(a + i * a_step, a_step, b + j, b_step, depth, put);
  }
}

// Rows that have seen nothing yet, padded to vectors.
template <int N> static LITZ_CALLED void block_start(float* top, float* total, float* c, i64 rows, i64 width) {
  for (i64 i = 0; i < rows; i += N) {
    store(top + i, Vec<float, N>(-inf32));
    store(total + i, Vec<float, N>(0.0f));
  }
  for (i64 i = 0; i < rows * width; i += N) store(c + i, Vec<float, N>(0.0f));
}

namespace detail {
// exp, and 0 for what is not normal: to make it and to multiply it is slow on x86, and it weighs
// nothing.
template <class V> LITZ_FN V weight_of(V x) {
  const auto gone = x < V(-87.0f);
  return where(gone, V(0.0f), exp(where(gone, V(0.0f), x)));
}
}  // namespace detail

// Makes weights of a block's scores, of which here[i] is the maximum: takes it into top and their
// sum into total, and leaves in here what scales results so far.  What is nan makes its row so.
template <int N>
static LITZ_CALLED void block_weights(float* scores, i64 step, float* here, float* top, float* total,
                                      i64 rows, i64 keys) {
  using V = Vec<float, N>;
  float shift[N], part[N] = {};
  for (i64 i = 0; i < rows; i += N) {
    const V before = load<N>((const float*)top + i), best = maximum(before, load<N>((const float*)here + i));
    const V from = where(best == V(-inf32), V(0.0f), best);
    store(shift, from);
    const V less = detail::weight_of(before - from);
    store(top + i, best);
    store(here + i, less);
    for (i64 r = 0; r < N && i + r < rows; r++) {
      float* const row = scores + (i + r) * step;
      const V by(shift[r]);
      V sum(0.0f);
      i64 j = 0;
      for (; j + N <= keys; j += N) {
        const V weight = detail::weight_of(load<N>((const float*)row + j) - by);
        store(row + j, weight);
        sum = sum + weight;
      }
      if (j < keys) {
        const V weight = detail::weight_of(load<N>((const float*)row + j) - by);
        store(row + j, weight);
        sum = sum + where(first_n<N>(keys - j), weight, V(0.0f));
      }
      part[r] = hsum(sum);
    }
    store(total + i, mad(load<N>((const float*)total + i), less, load<N>((const float*)part)));
  }
}

#undef LITZ_TILES
#undef LITZ_BLOCK

}  // namespace litz
