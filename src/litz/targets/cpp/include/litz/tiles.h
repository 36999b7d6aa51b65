// Transposed tiles between memory and a local array of N rows of N lanes, or memory.
#pragma once
#include <litz/loops.h>
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

// to[j * to_stride + i] = from[i * from_stride + j].
template <int N, class T>
LITZ_FN void turn_over(const T* from, i64 from_stride, T* to, i64 to_stride) {
  transpose<N>(from, from_stride, to, to_stride);
}

// Rows in memory whose lines are asked for, one after the other.
template <class T> struct Asked {
  static constexpr i64 line = 64 / sizeof(T);
  const T* at;
  i64 stride, rows, columns, column = 0;
  LITZ_FN void next() {
    if (rows == 0) return;
    // Where a row begins within a line, the block before has asked for that.
    column = least(column + line, columns);
    __builtin_prefetch(at + column - 1, 0, 2);
    if (column < columns) return;
    at += stride, rows--, column = 0;
  }
  LITZ_FN void rest() {
    while (rows) next();
  }
};
template <class T> Asked(const T*, i64, i64, i64) -> Asked<T>;

namespace detail {
// Calls take less time to compile than what is inlined.
template <class T> LITZ_CALLED void copy_each(const T* from, i64 step, T* to, i64 to_step, i64 n) {
  for (; n > 0; n--, from += step, to += to_step) *to = *from;
}
}  // namespace detail

// room[j * PITCH + i] = from[i * stride + j].
template <int N, int PITCH, class E>
LITZ_FN void turn_block(const E* source, i64 stride, E* kept, i64 rows, i64 columns) {
  using T = detail::bits_of<E>;
  const T* from = (const T*)source;
  T* const room = (T*)kept;
  for (i64 i = 0; i < rows; i += N, from += N * stride) {
    const i64 here = least(rows - i, N);
    i64 j = 0;
    for (; here == N && j + N <= columns; j += N)
      transpose<N>(from + j, stride, room + j * PITCH + i, PITCH);
    for (; j < columns; j++)
      detail::copy_each(from + j, stride, room + j * PITCH + i, i64(1), here);
  }
}

}  // namespace litz
