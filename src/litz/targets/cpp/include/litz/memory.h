// Access that is not contiguous: gather, strides, transposes; atomics; streaming stores.
//
// Indices and strides are in elements.
#pragma once
#include <litz/vec.h>

namespace litz {
namespace detail {

template <int N> struct Indices {
  i64 at[N];
  LITZ_FN explicit Indices(Vec<i64, N> v) { store(at, v); }
  LITZ_FN i64 operator[](int i) const { return at[i]; }
};
}  // namespace detail

// ---- gather

// Whether this machine's instructions that gather are quick: elsewhere a load a lane is.
#if LITZ_KMASK && defined(LITZ_GATHERS)
template <int N> inline constexpr bool gathers = N >= 8;
#else
template <int N> inline constexpr bool gathers = false;
#endif
// Lanes that are not on are anything; `gathers` does not follow their indices.
template <int N, class T>
LITZ_FN Vec<T, N> gather(const T* base, Vec<i64, N> index, unsigned on = ~0u) {
  if constexpr (form<T, N> == HALF) {
    return gather<N>((const u16*)base, index, on);
  } else if constexpr (form<T, N> == MASK) {
    return gather<N>((const u8*)base, index, on) != Vec<u8, N>(u8(0));
  } else if constexpr (!gathers<N>) {
    detail::Indices<N> k(index);
    return detail::from_lanes<T, N>([&](int i) LITZ_LAMBDA { return base[k[i]]; });
  } else if constexpr (sizeof(T) < 4) {
    // Out of the words of 32 bits around: none of these lies in two pages.
    constexpr int each = 4 / sizeof(T), bits = 8 * sizeof(T);
    const u64 past = (u64)base % 4;
    index = index + Vec<i64, N>((i64)(past / sizeof(T)));
    const auto words = gather<N>((const u32*)((u64)base - past), index >> (each / 2), on);
    const auto shift = cast<u32>(index & Vec<i64, N>(each - 1)) * Vec<u32, N>(bits);
    return cast<T>(words >> shift);
  } else if constexpr (N > 8) {
    return join(gather<N / 2>(base, low(index), on), gather<N / 2>(base, high(index), on >> N / 2));
#if LITZ_KMASK
  } else {
    using R = hw::reg<T, N>;
    using I = hw::reg<long long, N>;
    if constexpr (sizeof(T) == 4)
      return (R)__builtin_ia32_gatherdiv16si(hw::reg<int, N>{}, base, (I)index.v, on, 4);
    else
      return (R)__builtin_ia32_gatherdiv8di(I{}, base, (I)index.v, on, 8);
#endif
  }
}
// Lanes outside the mask are fill, and their indices are not followed.
template <int N, class T>
LITZ_FN Vec<T, N> gather(const T* base, Vec<i64, N> index, Vec<bool, N> m, Vec<T, N> fill) {
  const unsigned on = mask_bits(m);
  if (on == 0) return fill;
  if constexpr (!gathers<N>) {
    if (LITZ_UNLIKELY(on != ~0u >> (32 - N))) {
      detail::Indices<N> k(index);
      index = where(m, index, Vec<i64, N>(k[__builtin_ctz(on)]));
    }
  }
  return where(m, gather<N>(base, index, on), fill);
}
template <int N, class T>
LITZ_FN Vec<T, N> gather(const T* base, Vec<i64, N> index, Vec<bool, N> m, same<T> fill) {
  return gather<N>(base, index, m, Vec<T, N>(fill));
}
// The first n lanes, of a vector that is not whole. Called: inlined often it would take compilers long.
template <int N, class T>
static LITZ_CALLED Vec<T, N> gather_first(const T* base, Vec<i64, N> index, i64 n, same<T> fill) {
  if constexpr (gathers<N>) return gather<N>(base, index, first_n<N>(n), fill);
  using B = detail::bits_of<T>;
  detail::Indices<N> k(index);
  B x[N];
  for (int i = 0; i < N; i++) x[i] = i < n ? ((const B*)base)[k[i]] : bitcast<B>(fill);
  return load<N>((const T*)x);
}

// ---- strides

template <int N, class T> LITZ_FN Vec<T, N> load_strided(const T* p, i64 stride) {
  if constexpr (form<T, N> == HALF) {
    return load_strided<N>((const u16*)p, stride);
  } else if constexpr (form<T, N> == MASK) {
    return load_strided<N>((const u8*)p, stride) != Vec<u8, N>(u8(0));
  } else if constexpr (gathers<N> && sizeof(T) >= 4) {
    return gather<N>(p, iota<N>(i64(0), stride));
  } else {
    return detail::from_lanes<T, N>([&](int i) LITZ_LAMBDA { return p[i * stride]; });
  }
}
template <int N, class T>
LITZ_FN Vec<T, N> load_strided_partial(const T* p, i64 stride, i64 n, same<T> fill) {
  if constexpr (gathers<N>) return gather<N>(p, iota<N>(i64(0), stride), first_n<N>(n), fill);
  using B = detail::bits_of<T>;
  B x[N];
  for (int i = 0; i < N; i++) x[i] = i < n ? ((const B*)p)[i * stride] : bitcast<B>(fill);
  return load<N>((const T*)x);
}
template <class T, int N> LITZ_FN void store_strided(same<T>* p, i64 stride, Vec<T, N> v) {
  T x[N];
  store(x, v);
  for (int i = 0; i < N; i++) p[i * stride] = x[i];
}
template <class T, int N>
LITZ_FN void store_strided_partial(same<T>* p, i64 stride, Vec<T, N> v, i64 n) {
  T x[N];
  store(x, v);
  for (int i = 0; i < N && i < n; i++) p[i * stride] = x[i];
}

// ---- transposes in registers: log2(N) rounds of interleaving rows i and i + N / 2

namespace detail {
// In each part of so many lanes: a's and b's in turn, from a lane on.
template <int From, int Part, class R, int... I> LITZ_FN R zip(R a, R b, hw::seq<I...>) {
  constexpr int n = sizeof...(I);
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (I / Part * Part + From + I % Part / 2 + (I % 2) * n)...);
#else
  using M = hw::reg<typename int_<sizeof(R) / n>::type, n>;
  return __builtin_shuffle(a, b, M{(I / Part * Part + From + I % Part / 2 + (I % 2) * n)...});
#endif
}
template <class T, int N> LITZ_FN Vec<T, N> zip_high(Vec<T, N> a, Vec<T, N> b);
template <class T, int N> LITZ_FN Vec<T, N> zip_low(Vec<T, N> a, Vec<T, N> b) {
  if constexpr (form<T, N> == SPLIT) return Vec<T, N>(zip_low(a.lo, b.lo), zip_high(a.lo, b.lo));
  else return zip<0, N>(a.v, b.v, hw::count_to<N>());
}
template <class T, int N> LITZ_FN Vec<T, N> zip_high(Vec<T, N> a, Vec<T, N> b) {
  if constexpr (form<T, N> == SPLIT) return Vec<T, N>(zip_low(a.hi, b.hi), zip_high(a.hi, b.hi));
  else return zip<N / 2, N>(a.v, b.v, hw::count_to<N>());
}
// Lanes 1, 0, 3, 2, ..
template <class R, int... I> LITZ_FN R swap_pairs(R a, hw::seq<I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, a, (I ^ 1)...);
#else
  using M = hw::reg<typename int_<sizeof(R) / sizeof...(I)>::type, sizeof...(I)>;
  return __builtin_shuffle(a, M{(I ^ 1)...});
#endif
}
template <class R, int... I> LITZ_FN R reversed(R a, hw::seq<I...>) {
  constexpr int n = sizeof...(I);
#if defined(__clang__)
  return __builtin_shufflevector(a, a, (n - 1 - I)...);
#else
  using M = hw::reg<typename int_<sizeof(R) / n>::type, n>;
  return __builtin_shuffle(a, M{(n - 1 - I)...});
#endif
}
template <class T, int N> LITZ_FN Vec<T, N> swap_pairs(Vec<T, N> a) {
  if constexpr (form<T, N> == SPLIT) return Vec<T, N>(swap_pairs(a.lo), swap_pairs(a.hi));
  else return swap_pairs(a.v, hw::count_to<N>());
}

// Rows of 32 bytes: a register has a half of row i and of row i + N / 2, and halves are transposed
// beside each other, as no instruction crosses them as quickly.
template <int N, class T> LITZ_FN void transpose_halves(const T* from, i64 stride, Vec<T, N>* rows) {
  constexpr int h = N / 2;
  LITZ_UNROLL
  for (int side = 0; side < N; side += h) {
    Vec<T, N>* r = rows + side;
    LITZ_UNROLL
    for (int i = 0; i < h; i++)
      r[i] = join(load<h>(from + i * stride + side), load<h>(from + (i + h) * stride + side));
    LITZ_UNROLL
    for (int width = 1; width < h; width *= 2) {
      Vec<T, N> next[h];
      LITZ_UNROLL
      for (int i = 0; i < h / 2; i++) {
        next[2 * i] = zip<0, h>(r[i].v, r[i + h / 2].v, hw::count_to<N>());
        next[2 * i + 1] = zip<h / 2, h>(r[i].v, r[i + h / 2].v, hw::count_to<N>());
      }
      LITZ_UNROLL
      for (int i = 0; i < h; i++) r[i] = next[i];
    }
  }
}
}  // namespace detail

template <class T, int N> LITZ_FN void transpose(Vec<T, N> (&rows)[N]) {
  LITZ_UNROLL
  for (int width = 1; width < N; width *= 2) {
    Vec<T, N> next[N];
    LITZ_UNROLL
    for (int i = 0; i < N / 2; i++) {
      next[2 * i] = detail::zip_low(rows[i], rows[i + N / 2]);
      next[2 * i + 1] = detail::zip_high(rows[i], rows[i + N / 2]);
    }
    LITZ_UNROLL
    for (int i = 0; i < N; i++) rows[i] = next[i];
  }
}
// to[j * to_stride + i] = from[i * from_stride + j] for an N by N tile; the two may be one tile.
template <int N, class T>
LITZ_FN void transpose(const T* from, i64 from_stride, T* to, i64 to_stride) {
  using B = detail::bits_of<T>;
  Vec<B, N> rows[N];
  if constexpr (form<B, N> == LEAF && sizeof(B) * N == 32) {
    detail::transpose_halves<N>((const B*)from, from_stride, rows);
  } else {
    LITZ_UNROLL
    for (int i = 0; i < N; i++) rows[i] = load<N>((const B*)from + i * from_stride);
    transpose(rows);
  }
  LITZ_UNROLL
  for (int i = 0; i < N; i++) store((B*)to + i * to_stride, rows[i]);
}
template <int N, class T> LITZ_FN void transpose(T (&tile)[N][N]) {
  transpose<N>(&tile[0][0], N, &tile[0][0], N);
}

// ---- atomics

namespace detail {
template <class T, class F> LITZ_FN void atomic_update(T* p, F f) {
  using U = uint_of<T>;
  U* q = (U*)p;
  U old = __atomic_load_n(q, __ATOMIC_RELAXED), next;
  do next = bitcast<U>(f(bitcast<T>(old)));
  while (!__atomic_compare_exchange_n(q, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
}  // namespace detail
template <class T> LITZ_FN void atomic_add(T* p, same<T> v) {
  if constexpr (is_half<T>) {
    detail::atomic_update(p, [&](T x) { return cast<T>(cast<float>(x) + cast<float>(v)); });
  } else if constexpr (is_float<T>) {
    detail::atomic_update(p, [&](T x) { return x + v; });
  } else {
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
  }
}
template <class T> LITZ_FN void atomic_max(T* p, same<T> v) {
  detail::atomic_update(p, [&](T x) { return maximum(x, v); });
}
template <class T> LITZ_FN void atomic_min(T* p, same<T> v) {
  detail::atomic_update(p, [&](T x) { return minimum(x, v); });
}
template <class T> LITZ_FN void atomic_mul(T* p, same<T> v) {
  detail::atomic_update(p, [&](T x) { return mul(x, v); });
}
// Lanes one after the other, in order.
template <class T, int N>
LITZ_FN void atomic_add(same<T>* base, Vec<i64, N> index, Vec<T, N> v, Vec<bool, N> m) {
  detail::Indices<N> k(index);
  T x[N];
  store(x, v);
  unsigned on = mask_bits(m);
  for (int i = 0; i < N; i++)
    if (on >> i & 1) atomic_add(base + k[i], x[i]);
}
template <class T, int N>
LITZ_FN void atomic_add(same<T>* base, Vec<i64, N> index, Vec<T, N> v) {
  atomic_add(base, index, v, Vec<bool, N>(true));
}

// ---- stores past the caches; p is aligned to the register (else, and if kept: an ordinary store)

template <class T, int N> LITZ_FN void store_stream(same<T>* p, Vec<T, N> v, u64 kept = 0) {
#if LITZ_GNU_X86 && defined(__AVX__)
  if constexpr (form<T, N> == SPLIT) {
    store_stream(p, v.lo, kept);
    store_stream(p + N / 2, v.hi, kept);
    return;
  } else if constexpr (form<T, N> == HALF) {
    store_stream((u16*)p, v.bits, kept);
    return;
  } else if constexpr (form<T, N> == MASK) {
    store_stream((u8*)p, cast<u8>(v), kept);
    return;
  } else if constexpr (form<T, N> == LEAF && sizeof(T) * N >= 16) {
    // Neither is called likely: the other would leave the loop and come back at each vector.
    if (!kept && (u64)p % sizeof(v) == 0) {
      using R = hw::reg<float, (sizeof(T) * N) / 4>;
#if LITZ_KMASK
      if constexpr (sizeof(R) == 64) __builtin_ia32_movntps512((float*)p, (R)v.v);
#endif
      if constexpr (sizeof(R) == 32) __builtin_ia32_movntps256((float*)p, (R)v.v);
      if constexpr (sizeof(R) == 16) __builtin_ia32_movntps((float*)p, (R)v.v);
      return;
    }
  }
#endif
  store(p, v);
}
// Elements before the next multiple of the size of N.
template <int N, class T> LITZ_FN i64 before(const T* p) {
  return (i64)(-(u64)p % (N * sizeof(T)) / sizeof(T));
}
// Orders streaming stores before what follows; once, at the end of a kernel that used them.
LITZ_FN void stream_fence() {
#if LITZ_GNU_X86
  __builtin_ia32_sfence();
#endif
}

}  // namespace litz
