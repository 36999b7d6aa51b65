// Every second element, and elements backwards: contiguous accesses and a shuffle, where a gather
// would take lane by lane.
#pragma once
#include <litz/memory.h>

namespace litz {

namespace detail {
// Lanes 0, 2, .. of a, then lanes 1, 3, .. of b.
template <class R, int... I> LITZ_FN R evens(R a, R b, hw::seq<I...>) {
  constexpr int n = sizeof...(I);
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (2 * I + (2 * I >= n))...);
#else
  using M = hw::reg<typename int_<sizeof(R) / n>::type, n>;
  return __builtin_shuffle(a, b, M{(2 * I + (2 * I >= n))...});
#endif
}
}  // namespace detail

// p[0], p[2], .. p[2N - 2]; nothing past the last of them is touched.
template <int N, class T> LITZ_FN Vec<T, N> load_evens(const T* p) {
  if constexpr (form<T, N> == HALF) {
    return load_evens<N>((const u16*)p);
  } else if constexpr (form<T, N> == MASK) {
    return load_evens<N>((const u8*)p) != Vec<u8, N>(u8(0));
  } else if constexpr (form<T, N> == SPLIT) {
    return Vec<T, N>(load_evens<N / 2>(p), load_evens<N / 2>(p + N));
  } else {
    return detail::evens(load<N>(p).v, load<N>(p + N - 1).v, hw::count_to<N>());
  }
}
// The lanes of the mask, which mostly holds for all; the others are zero.
template <int N, class T> LITZ_FN Vec<T, N> load_evens(const T* p, Vec<bool, N> m) {
  if (LITZ_LIKELY(hall(m))) return load_evens<N>(p);
  return gather<N>(p, iota<N>(i64(0), i64(2)), m, T{});
}

namespace detail {
template <class R, int... I> LITZ_FN R turned(R a, hw::seq<I...>) {
  constexpr int n = sizeof...(I);
#if defined(__clang__)
  return __builtin_shufflevector(a, a, (n - 1 - I)...);
#else
  using M = hw::reg<typename int_<sizeof(R) / n>::type, n>;
  return __builtin_shuffle(a, M{(n - 1 - I)...});
#endif
}
}  // namespace detail

// p[0], p[-1], .. p[1 - N]
template <int N, class T> LITZ_FN Vec<T, N> load_back(const T* p) {
  if constexpr (form<T, N> == HALF) {
    return load_back<N>((const u16*)p);
  } else if constexpr (form<T, N> == MASK) {
    return load_back<N>((const u8*)p) != Vec<u8, N>(u8(0));
  } else if constexpr (form<T, N> == SPLIT) {
    return Vec<T, N>(load_back<N / 2>(p), load_back<N / 2>(p - N / 2));
  } else {
    return detail::turned(load<N>(p - N + 1).v, hw::count_to<N>());
  }
}
template <int N, class T> LITZ_FN Vec<T, N> load_back(const T* p, Vec<bool, N> m) {
  if (LITZ_LIKELY(hall(m))) return load_back<N>(p);
  return gather<N>(p, iota<N>(i64(0), i64(-1)), m, T{});
}
template <class T, int N> LITZ_FN void store_back(same<T>* p, Vec<T, N> v) {
  if constexpr (form<T, N> == SPLIT) {
    store_back(p, v.lo);
    store_back(p - N / 2, v.hi);
  } else if constexpr (form<T, N> == LEAF) {
    store(p - N + 1, Vec<T, N>(detail::turned(v.v, hw::count_to<N>())));
  } else {
    store_strided(p, i64(-1), v);
  }
}

}  // namespace litz
