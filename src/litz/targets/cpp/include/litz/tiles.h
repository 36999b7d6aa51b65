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
// n elements by vectors; whole lines, wherever they begin, go past the caches.
template <int N, class T> LITZ_FN void copy_stream(const T* from, T* to, i64 n, Asked<T>& asked) {
  constexpr i64 line = 64 / sizeof(T);
  i64 i = least(n, before<line>(to));
  copy_each(from, i64(1), to, i64(1), i);
  for (const i64 end = i + (n - i) / line * line; i < end;) {
    asked.next();
    LITZ_UNROLL
    for (i64 k = 0; k < line; k += N, i += N) store_stream(to + i, load<N>(from + i));
  }
  copy_each(from + i, i64(1), to + i, i64(1), n - i);
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

// The same of a block of so many rows and columns, past the caches: what is written of a row is kept
// in `room` until it is whole, so that memory gets, as it gives, long runs.
// above: rows before the block; height, width: what there is from it on.  Where lines of the target
// begin within others' runs, their first lanes are left to those, and a line more is read instead.
// Meanwhile the next block, as far from row to row, is asked for.
template <int N, int ROWS, int COLUMNS, class E>
LITZ_FN void turn_stream(const E* source, i64 from_stride, E* target, i64 to_stride, i64 above,
                         i64 height, i64 width, E* kept, const E* next, i64 next_height,
                         i64 next_width) {
  using T = detail::bits_of<E>;
  constexpr i64 line = 64 / sizeof(T), pitch = ROWS + line;  // rows that collide in no cache
  const bool whole = ((u64)target | (u64)to_stride * sizeof(T)) % 64 == 0;
  const i64 most = whole ? ROWS : pitch, rows = least(height, most);
  const i64 columns = least(width, COLUMNS);
  turn_block<N, pitch>(source, from_stride, kept, rows, columns);
  Asked<T> asked{(const T*)next, from_stride, least(next_height, most), least(next_width, COLUMNS)};
  for (i64 j = 0; j < columns; j++) {
    T* const to = (T*)target + j * to_stride;
    const i64 first = above ? before<line>(to) : 0, end = least(rows, ROWS + before<line>(to + ROWS));
    detail::copy_stream<N>((const T*)kept + j * pitch + first, to + first, end - first, asked);
  }
  asked.rest();
}

}  // namespace litz
