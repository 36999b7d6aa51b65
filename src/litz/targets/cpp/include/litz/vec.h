// Vec<T, N>: N lanes of T with the operators of T, and the same functions for plain scalars.
#pragma once
#include <litz/mask.h>

namespace litz {

#define LITZ_COMPARE_OPS_                                                                       \
  friend LITZ_FN Vec<bool, N> operator==(Vec a, Vec b) { return detail::compare<pred::eq>(a, b); } \
  friend LITZ_FN Vec<bool, N> operator!=(Vec a, Vec b) { return detail::compare<pred::ne>(a, b); } \
  friend LITZ_FN Vec<bool, N> operator<(Vec a, Vec b) { return detail::compare<pred::lt>(a, b); }  \
  friend LITZ_FN Vec<bool, N> operator<=(Vec a, Vec b) { return detail::compare<pred::le>(a, b); } \
  friend LITZ_FN Vec<bool, N> operator>(Vec a, Vec b) { return detail::compare<pred::gt>(a, b); }  \
  friend LITZ_FN Vec<bool, N> operator>=(Vec a, Vec b) { return detail::compare<pred::ge>(a, b); }

template <class T, int N> struct Vec<T, N, LEAF> {
  using reg = hw::reg<T, N>;
  using wrap = hw::reg<typename wrap_<T>::type, N>;
  reg v;
  Vec() = default;
  LITZ_FN Vec(T s) : v(s - reg{}) {}
  LITZ_FN Vec(reg r) : v(r) {}
  LITZ_FN T operator[](int i) const { return v[i]; }
  LITZ_FN void set(int i, T x) { v[i] = x; }
  friend LITZ_FN Vec operator+(Vec a, Vec b) { return (reg)((wrap)a.v + (wrap)b.v); }
  friend LITZ_FN Vec operator-(Vec a, Vec b) { return (reg)((wrap)a.v - (wrap)b.v); }
  friend LITZ_FN Vec operator*(Vec a, Vec b) { return (reg)((wrap)a.v * (wrap)b.v); }
  friend LITZ_FN Vec operator/(Vec a, Vec b) { return (reg)(a.v / b.v); }
  friend LITZ_FN Vec operator-(Vec a) { return (reg)(-(wrap)a.v); }
  friend LITZ_FN Vec operator~(Vec a) { return (reg)~a.v; }
  friend LITZ_FN Vec operator&(Vec a, Vec b) { return (reg)(a.v & b.v); }
  friend LITZ_FN Vec operator|(Vec a, Vec b) { return (reg)(a.v | b.v); }
  friend LITZ_FN Vec operator^(Vec a, Vec b) { return (reg)(a.v ^ b.v); }
  // Shifts by amounts below the width; `shl` and `shr` take any amount.
  friend LITZ_FN Vec operator<<(Vec a, Vec b) { return (reg)((wrap)a.v << (wrap)b.v); }
  friend LITZ_FN Vec operator>>(Vec a, Vec b) { return (reg)(a.v >> b.v); }
  friend LITZ_FN Vec operator<<(Vec a, int n) { return (reg)((wrap)a.v << n); }
  friend LITZ_FN Vec operator>>(Vec a, int n) { return (reg)(a.v >> n); }
  LITZ_COMPARE_OPS_
};

template <class T, int N> struct Vec<T, N, SPLIT> {
  Vec<T, N / 2> lo, hi;
  Vec() = default;
  LITZ_FN Vec(T s) : lo(s), hi(s) {}
  LITZ_FN Vec(Vec<T, N / 2> a, Vec<T, N / 2> b) : lo(a), hi(b) {}
  LITZ_FN T operator[](int i) const { return i < N / 2 ? lo[i] : hi[i - N / 2]; }
  LITZ_FN void set(int i, T x) { i < N / 2 ? lo.set(i, x) : hi.set(i - N / 2, x); }
#define LITZ_OP_(o) \
  friend LITZ_FN Vec operator o(Vec a, Vec b) { return Vec(a.lo o b.lo, a.hi o b.hi); }
  LITZ_OP_(+) LITZ_OP_(-) LITZ_OP_(*) LITZ_OP_(/) LITZ_OP_(&) LITZ_OP_(|) LITZ_OP_(^)
  LITZ_OP_(<<) LITZ_OP_(>>)
#undef LITZ_OP_
  friend LITZ_FN Vec operator-(Vec a) { return Vec(-a.lo, -a.hi); }
  friend LITZ_FN Vec operator~(Vec a) { return Vec(~a.lo, ~a.hi); }
  friend LITZ_FN Vec operator<<(Vec a, int n) { return Vec(a.lo << n, a.hi << n); }
  friend LITZ_FN Vec operator>>(Vec a, int n) { return Vec(a.lo >> n, a.hi >> n); }
  LITZ_COMPARE_OPS_
};
#undef LITZ_COMPARE_OPS_

// 16-bit floats are stored, moved and converted; arithmetic on them is written in float.
template <class T, int N> struct Vec<T, N, HALF> {
  Vec<u16, N> bits;
  Vec() = default;
  LITZ_FN Vec(T s) : bits(s.bits) {}
  LITZ_FN Vec(Vec<u16, N> b) : bits(b) {}
  LITZ_FN T operator[](int i) const { return T{bits[i]}; }
};

// ---- halves

template <class T, int N> LITZ_FN Vec<T, N / 2> low(Vec<T, N> a) {
  if constexpr (form<T, N> == SPLIT) {
    return a.lo;
  } else if constexpr (form<T, N> == HALF) {
    return low(a.bits);
  } else if constexpr (form<T, N> == MASK) {
#if LITZ_KMASK
    return Vec<bool, N / 2>::of(a.bits & Vec<bool, N / 2>::all);
#else
    return Vec<bool, N / 2>::of(low(a.m));
#endif
  } else {
    return hw::half<0, hw::reg<T, N / 2>>(a.v, hw::count_to<N / 2>());
  }
}

template <class T, int N> LITZ_FN Vec<T, N / 2> high(Vec<T, N> a) {
  if constexpr (form<T, N> == SPLIT) {
    return a.hi;
  } else if constexpr (form<T, N> == HALF) {
    return high(a.bits);
  } else if constexpr (form<T, N> == MASK) {
#if LITZ_KMASK
    return Vec<bool, N / 2>::of(a.bits >> (N / 2));
#else
    return Vec<bool, N / 2>::of(high(a.m));
#endif
  } else {
    return hw::half<N / 2, hw::reg<T, N / 2>>(a.v, hw::count_to<N / 2>());
  }
}

template <class T, int N> LITZ_FN Vec<T, 2 * N> join(Vec<T, N> lo, Vec<T, N> hi) {
  if constexpr (form<T, 2 * N> == SPLIT) {
    return Vec<T, 2 * N>(lo, hi);
  } else if constexpr (form<T, N> == HALF) {
    return join(lo.bits, hi.bits);
  } else if constexpr (form<T, N> == MASK) {
#if LITZ_KMASK
    // Not shifts: GCC 12 may keep lo in memory as one byte and read it back as four.
    if constexpr (N == 8)
      return Vec<bool, 16>::of(__builtin_ia32_kunpckhi(hi.bits, lo.bits));
    else if constexpr (N == 16)
      return Vec<bool, 32>::of(__builtin_ia32_kunpcksi(hi.bits, lo.bits));
    else
      return Vec<bool, 2 * N>::of(lo.bits | (unsigned)hi.bits << N);
#else
    return Vec<bool, 2 * N>::of(join(lo.m, hi.m));
#endif
  } else {
    return hw::concat<hw::reg<T, 2 * N>>(lo.v, hi.v, hw::count_to<2 * N>());
  }
}

// ---- reinterpretation: the same bits as another type of the same width

template <class To, class From, int N> LITZ_FN Vec<To, N> bitcast(Vec<From, N> a) {
  static_assert(sizeof(To) == sizeof(From));
  if constexpr (is_same<To, From>) return a;
  else if constexpr (form<From, N> == HALF) return bitcast<To>(a.bits);
  else if constexpr (form<To, N> == HALF) return Vec<To, N>(bitcast<u16>(a));
  else if constexpr (form<To, N> == SPLIT) return {bitcast<To>(a.lo), bitcast<To>(a.hi)};
  else return (hw::reg<To, N>)a.v;
}
template <class To, class From> LITZ_FN To bitcast(From a) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  __builtin_memcpy(&r, &a, sizeof(r));
  return r;
}

// ---- select

namespace detail {
template <class T, int N> LITZ_FN Vec<T, N> lanes_of(Vec<bool, N> m) {  // 0 or -1 in each lane
#if LITZ_KMASK
  return where(m, Vec<T, N>(T(-1)), Vec<T, N>(T(0)));
#else
  return cast<T>(m.m);
#endif
}
}  // namespace detail

template <class T, int N>
LITZ_FN Vec<T, N> where(Vec<bool, N> m, Vec<T, N> a, Vec<T, N> b) {
  if constexpr (form<T, N> == SPLIT) {
    return Vec<T, N>(where(low(m), a.lo, b.lo), where(high(m), a.hi, b.hi));
  } else if constexpr (form<T, N> == HALF) {
    return where(m, a.bits, b.bits);
  } else if constexpr (form<T, N> == MASK) {
    return (m & a) | (~m & b);
  } else {
#if LITZ_KMASK
    if constexpr (sizeof(T) * N >= 16) {
      using word = typename id_<decltype(hw::select_type<sizeof(T)>())>::type;
      using R = hw::reg<word, N>;
      return (hw::reg<T, N>)hw::select(mask_bits(m), (R)a.v, (R)b.v);
    } else {
      return low(where(join(m, m), join(a, a), join(b, b)));
    }
#else
    return (hw::reg<T, N>)(cast<int_of<T>>(m.m).v ? a.v : b.v);
#endif
  }
}
template <class T> LITZ_FN T where(bool m, T a, T b) { return m ? a : b; }
template <class T, int N>
LITZ_FN Vec<T, N> where(Vec<bool, N> m, Vec<T, N> a, same<T> b) { return where(m, a, Vec<T, N>(b)); }
template <class T, int N>
LITZ_FN Vec<T, N> where(Vec<bool, N> m, same<T> a, Vec<T, N> b) { return where(m, Vec<T, N>(a), b); }

}  // namespace litz

#include <litz/convert.h>
#include <litz/cast.h>
#include <litz/arith.h>
#include <litz/load.h>
