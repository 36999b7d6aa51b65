// Every second element, and elements backwards: contiguous accesses and a shuffle, where a gather
// would take lane by lane.
#pragma once
#include <litz/loops.h>
#include <litz/memory.h>

namespace litz {

namespace detail {
// Lanes 0, 2, .. of a, then lanes 1, 3, .. of b.
template <class R, int... I> LITZ_FN R evens(R a, R b, hw::seq<I...>) {
  constexpr int n = sizeof...(I);
#if LITZ_GNU_X86 && defined(__AVX2__)
  // A shuffle within halves, whose quarters are then put in order: GCC finds a shuffle of each register.
  if constexpr (sizeof(R) == 32 && n == 8)
    return (R)__builtin_ia32_permdi256(
        (hw::reg<long long, 4>)__builtin_ia32_shufps256((hw::reg<float, 8>)a, (hw::reg<float, 8>)b, 0xd8), 0xd8);
#endif
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
#if LITZ_KMASK
  if constexpr (form<T, N> == LEAF && N <= 16) {
    unsigned on = mask_bits(m);  // bit j goes to bit 2j
    on = (on | on << 8) & 0x00ff00ff;
    on = (on | on << 4) & 0x0f0f0f0f;
    on = (on | on << 2) & 0x33333333;
    on = (on | on << 1) & 0x55555555;
    const auto low = Vec<bool, N>::of(on & ((1ull << N) - 1)), high = Vec<bool, N>::of(on >> (N - 1));
    const Vec<T, N> none(T{});
    return detail::evens(load_masked(p, low, none).v, load_masked(p + N - 1, high, none).v,
                         hw::count_to<N>());
  }
#endif
  return gather<N>(p, iota<N>(i64(0), i64(2)), m, T{});
}

// The first n lanes, the others zero.
template <int N, class T> LITZ_FN Vec<T, N> load_evens(const T* p, i64 n) {
  if constexpr (form<T, N> == HALF) {
    return load_evens<N>((const u16*)p, n);
  } else if constexpr (form<T, N> == MASK) {
    return load_evens<N>((const u8*)p, n) != Vec<u8, N>(u8(0));
  } else if constexpr (form<T, N> == SPLIT) {
    return Vec<T, N>(load_evens<N / 2>(p, n), load_evens<N / 2>(p + N, n - N / 2));
  } else {
    return detail::evens(load_partial<N>(p, 2 * n - 1).v, load_partial<N>(p + N - 1, 2 * n - N).v,
                         hw::count_to<N>());
  }
}

// p[0], p[-1], .. p[1 - N]
template <int N, class T> LITZ_FN Vec<T, N> load_back(const T* p) {
  if constexpr (form<T, N> == HALF) {
    return load_back<N>((const u16*)p);
  } else if constexpr (form<T, N> == MASK) {
    return load_back<N>((const u8*)p) != Vec<u8, N>(u8(0));
  } else if constexpr (form<T, N> == SPLIT) {
    return Vec<T, N>(load_back<N / 2>(p), load_back<N / 2>(p - N / 2));
  } else {
    return detail::reversed(load<N>(p - N + 1).v, hw::count_to<N>());
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
    store(p - N + 1, Vec<T, N>(detail::reversed(v.v, hw::count_to<N>())));
  } else {
    store_strided(p, i64(-1), v);
  }
}

// p[0] = a[0], p[1] = b[0], p[2] = a[1], ..
template <class T, int N> LITZ_FN void store_pairs(T* p, Vec<T, N> a, Vec<T, N> b) {
  if constexpr (is_half<T>) {
    T x[N], y[N];
    store(x, a);
    store(y, b);
    store_pairs((u16*)p, load<N>((const u16*)x), load<N>((const u16*)y));
  } else if constexpr (is_same<T, bool>) {
    for (int j = 0; j < N; j++) p[2 * j] = a[j], p[2 * j + 1] = b[j];
  } else {
    store(p, detail::zip_low(a, b));
    store(p + N, detail::zip_high(a, b));
  }
}
// Of the first n lanes.
template <class T, int N> LITZ_FN void store_pairs(T* p, Vec<T, N> a, Vec<T, N> b, i64 n) {
  T x[2 * N];
  store_pairs(x, a, b);
  for (i64 j = 0; j < 2 * n; j++) p[j] = x[j];
}

namespace detail {
template <int N> LITZ_FN Vec<u32, N> load_u32(const void* p) { return load<N>((const u32*)p); }
template <int N> LITZ_FN Vec<u32, N> load_u32(const void* p, i64 n) { return load_partial<N>((const u32*)p, n); }
}  // namespace detail

// ---- every second of floats: lanes in whatever order, the same for all functions; of n, if given, the first n

#if LITZ_GNU_X86 && defined(__AVX2__) && !LITZ_KMASK
namespace detail {
// Within each half of a register: a shuffle, where an order takes two.
template <int I> LITZ_FN hw::reg<float, 8> apart(hw::reg<float, 8> a, hw::reg<float, 8> b) {
  return I ? __builtin_ia32_shufps256(a, b, 0xdd) : __builtin_ia32_shufps256(a, b, 0x88);
}
template <int I> LITZ_FN hw::reg<float, 8> beside(hw::reg<float, 8> a, hw::reg<float, 8> b) {
  return I ? __builtin_ia32_unpckhps256(a, b) : __builtin_ia32_unpcklps256(a, b);
}
template <int I> LITZ_FN hw::reg<double, 4> beside(hw::reg<double, 4> a, hw::reg<double, 4> b) {
  return I ? __builtin_ia32_unpckhpd256(a, b) : __builtin_ia32_unpcklpd256(a, b);
}
template <int I> LITZ_FN hw::reg<double, 4> apart(hw::reg<double, 4> a, hw::reg<double, 4> b) {
  return beside<I>(a, b);
}
// The firsts of a, the seconds of b, which begins where N - 1 elements after a does: not one more is read.
LITZ_FN hw::reg<float, 8> met(hw::reg<float, 8> a, hw::reg<float, 8> b) { return __builtin_ia32_shufps256(a, b, 0xd8); }
LITZ_FN hw::reg<double, 4> met(hw::reg<double, 4> a, hw::reg<double, 4> b) { return __builtin_ia32_shufpd256(a, b, 10); }
// I: firsts, seconds, or 2: firsts alone.
template <int I, int N, class T> LITZ_FN Vec<T, N> load_apart(const T* p) {
  if constexpr (form<T, N> == SPLIT) return {load_apart<I, N / 2>(p), load_apart<I, N / 2>(p + N)};
  else if constexpr (I == 2) return met(load<N>(p).v, load<N>(p + N - 1).v);
  else return apart<I>(load<N>(p).v, load<N>(p + N).v);
}
template <int I, int N, class T> LITZ_FN Vec<T, N> load_apart(const T* p, i64 n) {
  if constexpr (form<T, N> == SPLIT) return {load_apart<I, N / 2>(p, n), load_apart<I, N / 2>(p + N, n - N / 2)};
  else if constexpr (I == 2) return met(load_partial<N>(p, 2 * n - 1).v, load_partial<N>(p + N - 1, 2 * n - N).v);
  else return apart<I>(load_partial<N>(p, 2 * n).v, load_partial<N>(p + N, 2 * n - N).v);
}
}  // namespace detail
template <int N, class T, class... C> LITZ_FN Vec<T, N> load_firsts(const T* p, C... n) { return detail::load_apart<0, N>(p, n...); }
template <int N, class T, class... C> LITZ_FN Vec<T, N> load_seconds(const T* p, C... n) { return detail::load_apart<1, N>(p, n...); }
template <int N, class T, class... C> LITZ_FN Vec<T, N> load_alone(const T* p, C... n) { return detail::load_apart<2, N>(p, n...); }
template <class T, int N> LITZ_FN Vec<T, N> in_order(Vec<T, N> a) {
  if constexpr (form<T, N> == SPLIT) return {in_order(a.lo), in_order(a.hi)};
  else return (decltype(a.v))__builtin_ia32_permdi256((hw::reg<long long, 4>)a.v, 0xd8);
}
template <class T, int N> LITZ_FN void store_neighbours(T* p, Vec<T, N> a, Vec<T, N> b) {
  if constexpr (form<T, N> == SPLIT) {
    store_neighbours(p, a.lo, b.lo);
    store_neighbours(p + N, a.hi, b.hi);
  } else {
    store(p, Vec<T, N>(detail::beside<0>(a.v, b.v)));
    store(p + N, Vec<T, N>(detail::beside<1>(a.v, b.v)));
  }
}
#else
template <int N, class T, class... C> LITZ_FN Vec<T, N> load_firsts(const T* p, C... n) { return load_evens<N>(p, n...); }
template <int N, class T, class... C> LITZ_FN Vec<T, N> load_seconds(const T* p, C... n) { return load_evens<N>(p + 1, n...); }
template <int N, class T, class... C> LITZ_FN Vec<T, N> load_alone(const T* p, C... n) { return load_evens<N>(p, n...); }
template <class V> LITZ_FN V in_order(V a) { return a; }
template <class T, int N> LITZ_FN void store_neighbours(T* p, Vec<T, N> a, Vec<T, N> b) { store_pairs(p, a, b); }
#endif

// Both of N pairs as floats, in order.
template <int N, class... C> LITZ_FN Vec<float, N> load_firsts(const bf16* p, C... n) {
  return bitcast<float>(detail::load_u32<N>(p, n...) << 16);
}
template <int N, class... C> LITZ_FN Vec<float, N> load_seconds(const bf16* p, C... n) {
  return bitcast<float>(detail::load_u32<N>(p, n...) & Vec<u32, N>(0xffff0000u));
}

// ---- what no stride describes

// Each element in K lanes, one after the other.
template <int N, int K, class T> LITZ_FN Vec<T, N> load_repeated(const T* p) {
  if constexpr (is_half<T>) {
    return load_repeated<N, K>((const u16*)p);
  } else if constexpr (is_same<T, bool>) {
    return load_repeated<N, K>((const u8*)p) != Vec<u8, N>(u8(0));
  } else if constexpr (K == 1) {
    return load<N>(p);
  } else {
    auto half = load_repeated<N / 2, K / 2>(p);
    return join(detail::zip_low(half, half), detail::zip_high(half, half));
  }
}
// The first n lanes, the others zero.
template <int N, int K, class T> LITZ_FN Vec<T, N> load_repeated(const T* p, i64 n) {
  T x[N / K] = {};
  for (i64 i = 0; i * K < n; i++) x[i] = p[i];
  return load_repeated<N, K>((const T*)x);
}
// Lanes at most one further up (or down) than the one before, lane j at f(j): mostly neighbours.
template <int N, bool Up, bool Down, class T, class F> LITZ_FN Vec<T, N> load_near(const T* p, F f) {
  const i64 first = f(0), last = f(N - 1);
  if (Up && last - first == N - 1) return load<N>(p + first);
  if (Down && first - last == N - 1) return load_back<N>(p + first);
  if constexpr (N > 4)
    return join(load_near<N / 2, Up, Down>(p, f),
                load_near<N / 2, Up, Down>(p, [&](i64 j) LITZ_LAMBDA { return f(j + N / 2); }));
  else
    return each<N>([&](i64 j) LITZ_LAMBDA { return p[f(j)]; });
}
template <int N, bool Up, bool Down, class T, class F>
LITZ_FN Vec<T, N> load_near(const T* p, i64 n, F f) {
  if (Up && f(n - 1) - f(0) == n - 1) return load_partial<N>(p + f(0), n);
  if constexpr (N > 4) {
    if (n <= N / 2) return join(load_near<N / 2, Up, Down>(p, n, f), Vec<T, N / 2>(T{}));
    return join(load_near<N / 2, Up, Down>(p, f),
                load_near<N / 2, Up, Down>(p, n - N / 2,
                                           [&](i64 j) LITZ_LAMBDA { return f(j + N / 2); }));
  } else {
    return each<N>(n, [&](i64 j) LITZ_LAMBDA { return p[f(j)]; });
  }
}
template <int N, bool Up, bool Down, class T, class F>
LITZ_FN Vec<T, N> load_near(const T* p, Vec<bool, N> m, F f) {
  if (hall(m)) return load_near<N, Up, Down>(p, f);
  return each<N>(m, [&](i64 j) LITZ_LAMBDA { return p[f(j)]; });
}

}  // namespace litz
