// Sorts of integers in ascending order, by networks (Batcher, 1968).
#pragma once
#include <litz/load.h>

namespace litz {

namespace detail {
// Lanes of b where i & Bit, of a elsewhere.
template <int Bit, class R, int... I> LITZ_FN R upper(R a, R b, hw::seq<I...>) {
#if LITZ_SHUFFLEVECTOR
  return __builtin_shufflevector(a, b, (I & Bit ? I + (int)sizeof...(I) : I)...);
#else
  return R{(I & Bit ? b[I] : a[I])...};
#endif
}
template <int By, class T, int N> LITZ_FN Vec<T, N> crossed(Vec<T, N> v) {
  if constexpr (form<T, N> != SPLIT) return hw::crossed<By>(v.v, hw::count_to<N>());
  else if constexpr ((By & N / 2) == 0) return {crossed<By>(v.lo), crossed<By>(v.hi)};
  else if constexpr (By == N / 2) return {v.hi, v.lo};
  else return {crossed<By ^ N / 2>(v.hi), crossed<By ^ N / 2>(v.lo)};
}
template <int Bit, class T, int N> LITZ_FN Vec<T, N> upper(Vec<T, N> a, Vec<T, N> b) {
  if constexpr (form<T, N> != SPLIT) return upper<Bit>(a.v, b.v, hw::count_to<N>());
  else if constexpr (Bit == N / 2) return {a.lo, b.hi};
  else return {upper<Bit>(a.lo, b.lo), upper<Bit>(a.hi, b.hi)};
}
// Lanes that are crossed By in order, the highest of whose bits is Bit; then those Bit / 2 apart..
template <int By, int Bit, class T, int N> LITZ_FN Vec<T, N> ordered(Vec<T, N> v) {
  if constexpr (Bit == 0) {
    return v;
  } else {
    const auto w = crossed<By>(v);
    return ordered<Bit / 2, Bit / 2>(upper<Bit>(min2(v, w), max2(v, w)));
  }
}
// Lanes of which rows of Size are in order, all of them in order.
template <int Size, class T, int N> LITZ_FN Vec<T, N> sorted(Vec<T, N> v) {
  if constexpr (Size == N) return v;
  else return sorted<2 * Size>(ordered<2 * Size - 1, Size>(v));
}
template <class V> LITZ_FN void exchange(V& a, V& b) {
  const V low = min2(a, b);
  b = max2(a, b);
  a = low;
}
// Blocks of `size` of a whole row, each in order but for a bitonic arrangement.
template <int N, class T> LITZ_FN void settle(T* a, i64 room, i64 size) {
  for (i64 apart = size / 2; apart >= N; apart /= 2) {
    for (i64 at = 0; at < room; at += 2 * apart) {
      for (i64 i = at; i < at + apart; i += N) {
        auto low = load<N>(a + i), high = load<N>(a + i + apart);
        exchange(low, high);
        store(a + i, low);
        store(a + i + apart, high);
      }
    }
  }
  for (i64 i = 0; i < room; i += N) store(a + i, ordered<N / 2, N / 2>(load<N>(a + i)));
}
}  // namespace detail

// How many elements a sort of n walks over: a power of two.
template <int N> LITZ_FN i64 padded(i64 n) {
  i64 room = N;
  while (room < n) room *= 2;
  return room;
}

namespace detail {
// All of a whole row.
template <int N, class T> LITZ_FN void sort_whole(T* a, i64 whole) {
  for (i64 i = 0; i < whole; i += N) store(a + i, sorted<1>(load<N>(a + i)));
  for (i64 size = N; size < whole; size *= 2) {
    for (i64 at = 0; at < whole; at += 2 * size) {
      // Both halves are in order: the lower elements of both come first, then the others.
      for (i64 i = at, j = at + 2 * size - N; i < j; i += N, j -= N) {
        auto low = load<N>(a + i), high = crossed<N - 1>(load<N>(a + j));
        exchange(low, high);
        store(a + i, low);
        store(a + j, crossed<N - 1>(high));
      }
    }
    settle<N>(a, whole, size);
  }
}
// Of two whole rows, the first in order, the lower elements.
template <int N, class T> LITZ_FN void take_in(T* a, T* more, i64 whole) {
  sort_whole<N>(more, whole);
  for (i64 i = 0; i < whole; i += N) {
    const auto high = crossed<N - 1>(load<N>(more + whole - N - i));
    store(a + i, min2(load<N>(a + i), high));
  }
  settle<N>(a, whole, whole);
}
template <class T> LITZ_FN void fill_most(T* a, i64 from, i64 to) {
  for (i64 i = from; i < to; i++) a[i] = (T)(((u64)1 << (8 * sizeof(T) - 1)) - 1);
}
}  // namespace detail

// A row of n elements, of which the first `wanted` are needed, in memory for padded<N>(n).
template <int N, class T> LITZ_FN void sort_row(T* a, i64 n, i64 wanted) {
  const i64 whole = padded<N>(n), kept = padded<N>(wanted);
  detail::fill_most(a, n, whole);
  detail::sort_whole<N>(a, kept);
  if (kept == whole) return;
  // Vectors with an element below the last that is wanted gather behind those kept until they are
  // as many; of most rows few are.
  T *held = a + kept, last = a[wanted - 1];
  i64 count = 0;
  for (i64 i = kept; i < whole; i += N) {
    const auto v = load<N>(a + i);
    if (LITZ_LIKELY(!hany(v < Vec<T, N>(last)))) continue;
    store(held + count, v);
    count += N;
    if (count < kept) continue;
    detail::take_in<N>(a, held, kept);
    last = a[wanted - 1];
    count = 0;
  }
  if (count == 0) return;
  detail::fill_most(held, count, kept);
  detail::take_in<N>(a, held, kept);
}

// N columns of n elements beside each other (merge exchange: Knuth, vol. 3, algorithm 5.2.2M).
template <int N, class T> LITZ_FN void sort_columns(T* a, i64 n) {
  i64 top = 1;
  while (top < n) top *= 2;
  for (i64 p = top / 2; p > 0; p /= 2) {
    i64 r = 0, apart = p;
    for (i64 q = top / 2;; q /= 2) {
      for (i64 at = r; at < n - apart; at += 2 * p) {
        for (i64 i = at; i < least(at + p, n - apart); i++) {
          auto low = load<N>(a + i * N), high = load<N>(a + (i + apart) * N);
          detail::exchange(low, high);
          store(a + i * N, low);
          store(a + (i + apart) * N, high);
        }
      }
      if (q == p) break;
      apart = q - p;
      r = p;
    }
  }
}

}  // namespace litz
