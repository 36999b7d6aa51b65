// Contiguous loads and stores, constants, lane numbers, partial vectors, horizontal reductions.
#pragma once

namespace litz {

namespace detail {
template <class T> struct bits_of_ { using type = T; };
template <> struct bits_of_<bf16> { using type = u16; };
template <> struct bits_of_<f16> { using type = u16; };
template <> struct bits_of_<bool> { using type = u8; };
template <class T> using bits_of = typename bits_of_<T>::type;
}  // namespace detail

template <int N, class T> LITZ_FN Vec<T, N> broadcast(T s) { return Vec<T, N>(s); }

// load<N>(p): N consecutive elements.  No alignment is required.
template <int N, class T> LITZ_FN Vec<T, N> load(const T* p) {
  if constexpr (form<T, N> == SPLIT) {
    return Vec<T, N>(load<N / 2>(p), load<N / 2>(p + N / 2));
  } else if constexpr (form<T, N> == LEAF) {
    hw::reg<T, N> r;
    __builtin_memcpy(&r, p, sizeof(r));
    return r;
  } else if constexpr (form<T, N> == HALF) {
    return load<N>((const u16*)p);
  } else {
    return load<N>((const u8*)p) != Vec<u8, N>(u8(0));
  }
}
template <class T, int N> LITZ_FN void store(same<T>* p, Vec<T, N> v) {
  if constexpr (form<T, N> == SPLIT) {
    store(p, v.lo);
    store(p + N / 2, v.hi);
  } else if constexpr (form<T, N> == LEAF) {
    __builtin_memcpy(p, &v.v, sizeof(v.v));
  } else if constexpr (form<T, N> == HALF) {
    store((u16*)p, v.bits);
  } else {
    store((u8*)p, cast<u8>(v));
  }
}
template <class T> LITZ_FN void store(same<T>* p, T v) { *p = v; }

namespace detail {
// From registers: a load of what several stores have just left waits for all of them.
template <class T, class F, int... I> LITZ_FN hw::reg<T, sizeof...(I)> lane_list(F at, hw::seq<I...>) {
  return hw::reg<T, sizeof...(I)>{at(I)...};
}
template <class T, int N, class F> LITZ_FN Vec<T, N> from_lanes(F at) {
  if constexpr (form<T, N> == SPLIT) {
    return Vec<T, N>(from_lanes<T, N / 2>(at),
                     from_lanes<T, N / 2>([&](int i) LITZ_LAMBDA { return at(i + N / 2); }));
  } else {
    return lane_list<T>(at, hw::count_to<N>());
  }
}
}  // namespace detail

// Lanes start, start + step, ..
template <int N, class T> LITZ_FN Vec<T, N> iota(T start, same<T> step) {
  if constexpr (form<T, N> == SPLIT) {
    auto lo = iota<N / 2>(start, step);
    return Vec<T, N>(lo, lo + Vec<T, N / 2>(T(step * T(N / 2))));
  } else {
    Vec<T, N> r;
    for (int i = 0; i < N; i++) r.v[i] = T(i);
    return r * Vec<T, N>(step) + Vec<T, N>(start);
  }
}
template <int N, class T> LITZ_FN Vec<T, N> iota(T start) { return iota<N>(start, T(1)); }

// The mask of lanes 0 .. n-1; n may be anything.
template <int N> LITZ_FN Vec<bool, N> first_n(i64 n) {
#if LITZ_KMASK
  n = n > 0 ? n : 0;
  n = n < N ? n : N;
  return Vec<bool, N>::of((unsigned)((u64)1 << n) - 1);
#else
  i32 k = n > N ? N : n < 0 ? 0 : (i32)n;
  return iota<N>(0, 1) < Vec<i32, N>(k);
#endif
}

namespace detail {
#if LITZ_KMASK
// Masked moves that touch only the lanes of the mask, by element width and register size.
#define LITZ_MASKED_(T, N, size)                                                                \
  LITZ_FN hw::reg<T, N> masked_load(const void* p, hw::reg<T, N> fill, unsigned m) {            \
    return __builtin_ia32_loaddqu##size##_mask((const T*)p, fill, m);                           \
  }                                                                                             \
  LITZ_FN void masked_store(void* p, hw::reg<T, N> v, unsigned m) {                             \
    __builtin_ia32_storedqu##size##_mask((T*)p, v, m);                                          \
  }
LITZ_MASKED_(char, 16, qi128)
LITZ_MASKED_(char, 32, qi256)
LITZ_MASKED_(short, 8, hi128)
LITZ_MASKED_(short, 16, hi256)
LITZ_MASKED_(short, 32, hi512)
LITZ_MASKED_(int, 16, si512)
LITZ_MASKED_(int, 8, si256)
LITZ_MASKED_(int, 4, si128)
LITZ_MASKED_(long long, 8, di512)
LITZ_MASKED_(long long, 4, di256)
LITZ_MASKED_(long long, 2, di128)
#undef LITZ_MASKED_
#elif LITZ_GNU_X86 && defined(__AVX2__)
// Lanes whose mask is -1 from memory, the others 0; no other element is touched.
#define LITZ_MASKED_(T, As, N, name)                                                            \
  LITZ_FN hw::reg<T, N> masked_load(const void* p, hw::reg<T, N> m) {                           \
    using R = hw::reg<As, N>;                                                                   \
    return (hw::reg<T, N>)__builtin_ia32_maskload##name((const R*)p, (R)m);                     \
  }
LITZ_MASKED_(i32, int, 8, d256)
LITZ_MASKED_(i32, int, 4, d)
LITZ_MASKED_(i64, long long, 4, q256)
LITZ_MASKED_(i64, long long, 2, q)
#undef LITZ_MASKED_
#endif
}  // namespace detail

// Lanes of the mask from memory, the others from fill; no other element is touched.
template <class T, int N>
LITZ_FN Vec<T, N> load_masked(const same<T>* p, Vec<bool, N> m, Vec<T, N> fill) {
  if constexpr (form<T, N> == SPLIT) {
    return Vec<T, N>(load_masked(p, low(m), fill.lo), load_masked(p + N / 2, high(m), fill.hi));
  } else if constexpr (form<T, N> == HALF) {
    return load_masked((const u16*)p, m, fill.bits);
  } else if constexpr (form<T, N> == MASK) {
    return load_masked((const u8*)p, m, cast<u8>(fill)) != Vec<u8, N>(u8(0));
  } else {
#if LITZ_KMASK
    if constexpr (sizeof(T) * N >= 16) {
      using R = hw::reg<decltype(hw::select_type<sizeof(T)>()), N>;
      return (hw::reg<T, N>)detail::masked_load(p, (R)fill.v, mask_bits(m));
    } else {
      return low(load_masked(p, Vec<bool, 2 * N>::of(mask_bits(m)), join(fill, fill)));
    }
#else
    for (int i = 0; i < N; i++)
      if (m[i]) fill.v[i] = p[i];
    return fill;
#endif
  }
}
template <class T, int N> LITZ_FN void store_masked(same<T>* p, Vec<T, N> v, Vec<bool, N> m) {
  if constexpr (form<T, N> == SPLIT) {
    store_masked(p, v.lo, low(m));
    store_masked(p + N / 2, v.hi, high(m));
  } else if constexpr (form<T, N> == HALF) {
    store_masked((u16*)p, v.bits, m);
  } else if constexpr (form<T, N> == MASK) {
    store_masked((u8*)p, cast<u8>(v), m);
  } else {
#if LITZ_KMASK
    if constexpr (sizeof(T) * N >= 16) {
      using R = hw::reg<decltype(hw::select_type<sizeof(T)>()), N>;
      detail::masked_store(p, (R)v.v, mask_bits(m));
    } else {
      store_masked(p, join(v, v), Vec<bool, 2 * N>::of(mask_bits(m)));
    }
#else
    for (int i = 0; i < N; i++)
      if (m[i]) p[i] = v.v[i];
#endif
  }
}

namespace detail {
// n < 8 elements of 2 bytes in pieces, by the bits of n; zeros behind them.
LITZ_FN hw::reg<u16, 8> first_halves(const void* p, i64 n) {
  const char* at = (const char*)p + 2 * n;
  u64 most = 0, rest = 0;
  u32 two;
  u16 one;
  if (n & 1) __builtin_memcpy(&one, at -= 2, 2), rest = one;
  if (n & 2) __builtin_memcpy(&two, at -= 4, 4), rest = rest << 32 | two;
  if (n & 4) __builtin_memcpy(&most, at - 8, 8);
  else most = rest, rest = 0;
  return (hw::reg<u16, 8>)hw::reg<u64, 2>{most, rest};
}
}  // namespace detail

// The first n lanes from memory, the others from fill; nothing past p[n - 1] is touched.
template <int N, class T> LITZ_FN Vec<T, N> load_partial(const T* p, i64 n, same<T> fill) {
#if LITZ_KMASK
  return load_masked(p, first_n<N>(n), Vec<T, N>(fill));
#else
#if LITZ_GNU_X86 && defined(__AVX2__)
  if constexpr (form<T, N> == SPLIT && sizeof(T) >= 4) {
    return {load_partial<N / 2>(p, n, fill), load_partial<N / 2>(p + N / 2, n - N / 2, fill)};
  } else if constexpr (form<T, N> == LEAF && sizeof(T) >= 4 && sizeof(T) * N >= 16) {
    using I = Vec<int_of<T>, N>;
    const I mask = detail::lanes_of<int_of<T>>(first_n<N>(n)), rest = bitcast<int_of<T>>(Vec<T, N>(fill));
    return bitcast<T>(I(detail::masked_load(p, mask.v)) | (rest & ~mask));
  }
#endif
  using B = detail::bits_of<T>;
  if constexpr (sizeof(T) == 2 && N >= 8) {
    if constexpr (N > 8) {
      return join(load_partial<N / 2>(p, n, fill), load_partial<N / 2>(p + N / 2, n - N / 2, fill));
    } else {
      if (n >= N) return load<N>(p);
      auto v = detail::first_halves(p, n > 0 ? n : 0);
      return where(first_n<N>(n), bitcast<T>(Vec<u16, N>(v)), Vec<T, N>(fill));
    }
  }
  B buffer[N];
  for (int i = 0; i < N; i++) buffer[i] = i < n ? ((const B*)p)[i] : bitcast<B>(fill);
  return load<N>((const T*)buffer);
#endif
}
template <int N, class T> LITZ_FN Vec<T, N> load_partial(const T* p, i64 n) {
  return load_partial<N>(p, n, T{});
}
template <class T, int N> LITZ_FN void store_partial(same<T>* p, Vec<T, N> v, i64 n) {
#if LITZ_KMASK
  store_masked(p, v, first_n<N>(n));
#else
  T buffer[N];
  store(buffer, v);
  if (n >= N) return store(p, v);
  if (n <= 0) return;
  int at = 0;  // in pieces, by the bits of n: masked stores are slow on some machines
  LITZ_UNROLL
  for (int size = N / 2; size; size /= 2) {
    if (n & size) {
      __builtin_memcpy(p + at, buffer + at, size * sizeof(T));
      at += size;
    }
  }
#endif
}

// ---- horizontal reductions, by halves

namespace detail {
// In the register to the end: a scalar's select takes what it chooses from out of it and back, or
// becomes a branch. Sums are as quick as scalars.
template <int By, class V, class F> LITZ_FN V folded(V v, F f) {
  if constexpr (By == 0) return v;
  else return folded<By / 2>(f(v, V(hw::crossed<By>(v.v, hw::count_to<lanes<V>>()))), f);
}
template <bool Selects = false, class V, class F> LITZ_FN elem<V> horizontal(V v, F f) {
  if constexpr (Selects && sizeof(V) == 16) return folded<lanes<V> / 2>(v, f)[0];
  else if constexpr (lanes<V> == 2) return f(v[0], v[1]);
  else if constexpr (lanes<V> == 4) return f(f(v[0], v[2]), f(v[1], v[3]));
  else return horizontal<Selects>(f(low(v), high(v)), f);
}
}  // namespace detail
template <class T, int N> LITZ_FN T hsum(Vec<T, N> v) {
  return detail::horizontal(v, [](auto a, auto b) LITZ_LAMBDA { return add(a, b); });
}
template <class T, int N> LITZ_FN T hprod(Vec<T, N> v) {
  return detail::horizontal(v, [](auto a, auto b) LITZ_LAMBDA { return mul(a, b); });
}
template <class T, int N> LITZ_FN T hmax(Vec<T, N> v) {
  if constexpr (is_same<T, bool>) return hany(v);
  else return detail::horizontal<true>(v, [](auto a, auto b) LITZ_LAMBDA { return maximum(a, b); });
}
template <class T, int N> LITZ_FN T hmin(Vec<T, N> v) {
  if constexpr (is_same<T, bool>) return hall(v);
  else return detail::horizontal<true>(v, [](auto a, auto b) LITZ_LAMBDA { return minimum(a, b); });
}
#if !LITZ_KMASK
template <int N> LITZ_FN unsigned mask_bits(Vec<bool, N> m) {
#if LITZ_GNU_X86 && defined(__AVX__)
  if constexpr (form<i32, N> == LEAF && N == 8)
    return (unsigned)__builtin_ia32_movmskps256((hw::reg<float, N>)m.m.v);
  else if constexpr (form<i32, N> == LEAF && N == 4)
    return (unsigned)__builtin_ia32_movmskps((hw::reg<float, N>)m.m.v);
  else if constexpr (form<i32, N> == SPLIT)
    return mask_bits(Vec<bool, N / 2>::of(m.m.lo)) | mask_bits(Vec<bool, N / 2>::of(m.m.hi)) << N / 2;
#endif
  unsigned r = 0;
  for (int i = 0; i < N; i++) r |= (unsigned)m[i] << i;
  return r;
}
template <int N> LITZ_FN bool hany(Vec<bool, N> m) {
#if LITZ_GNU_X86 && defined(__AVX__)
  if constexpr (form<i32, N> == SPLIT) return hany(Vec<bool, N / 2>::of(m.m.lo | m.m.hi));
  else if constexpr (form<i32, N> == LEAF && (N == 8 || N == 4)) return mask_bits(m) != 0;
#endif
  return detail::horizontal(m.m, [](auto a, auto b) LITZ_LAMBDA { return or_(a, b); }) != 0;
}
template <int N> LITZ_FN bool hall(Vec<bool, N> m) { return !hany(!m); }
template <int N> LITZ_FN int count(Vec<bool, N> m) { return -hsum(m.m); }
#endif
LITZ_FN bool hany(bool m) { return m; }
LITZ_FN bool hall(bool m) { return m; }

}  // namespace litz
