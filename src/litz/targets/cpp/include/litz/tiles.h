// Transposed tiles between memory and a local array of N rows of N lanes, or memory.
#pragma once
#include <litz/memory.h>

namespace litz {

// tile[i * N + j] = p[j * stride + i].
template <int N, class T> LITZ_FN void turn_in(const T* p, i64 stride, T* tile) {
  transpose<N>(p, stride, tile, i64(N));
}
// The same for lanes j < count and rows i < rows; the rest of the tile is zero.
template <int N, class T>
LITZ_FN void turn_in(const T* p, i64 stride, T* tile, i64 count, i64 rows) {
  T turned[N * N] = {};
  for (i64 j = 0; j < count; j++) store(turned + j * N, load_partial<N>(p + j * stride, rows));
  transpose<N>((const T*)turned, i64(N), tile, i64(N));
}
// p[j * stride + i] = tile[i * N + j].
template <int N, class T> LITZ_FN void turn_out(const T* tile, T* p, i64 stride) {
  transpose<N>(tile, i64(N), p, stride);
}
template <int N, class T>
LITZ_FN void turn_out(const T* tile, T* p, i64 stride, i64 count, i64 rows) {
  T turned[N * N];
  transpose<N>(tile, i64(N), turned, i64(N));
  for (i64 j = 0; j < count; j++) {
    store_partial(p + j * stride, load<N>((const T*)turned + j * N), rows);
  }
}

// to[j * to_stride + i] = from[i * from_stride + j]; the second goes past the caches.
template <int N, class T>
LITZ_FN void turn_over(const T* from, i64 from_stride, T* to, i64 to_stride) {
  transpose<N>(from, from_stride, to, to_stride);
}
template <int N, class T>
LITZ_FN void turn_over_stream(const T* from, i64 from_stride, T* to, i64 to_stride) {
  transpose<N, true>(from, from_stride, to, to_stride);
}

}  // namespace litz
