// Vec<T, N>: declaration, splitting and joining; Vec<bool, N>: the masks.
//
// A Vec is one native register where it fits (LEAF), else two Vecs of half the lanes (SPLIT), so
// the same N serves every element type and every operation compiles to whole registers.
//
// Vec<bool, N> is what comparisons give.  On AVX-512 it is a bit mask (a k-register); elsewhere it
// is Vec<i32, N> of 0 / -1, which compares and selects 4-byte elements without conversion.
#pragma once
#include <litz/base.h>

namespace litz {

enum Form { LEAF, SPLIT, MASK, HALF };
template <class T, int N>
inline constexpr Form form = is_same<T, bool>              ? MASK
                             : is_half<T>                  ? HALF
                             : sizeof(T) * N <= LITZ_REG ? LEAF
                                                           : SPLIT;
template <class T, int N, Form F = form<T, N>> struct Vec;

#if LITZ_KMASK
template <int N> struct Vec<bool, N, MASK> {
  using bits_t = typename uint_<(N <= 8 ? 1 : N / 8)>::type;
  bits_t bits;
  static constexpr unsigned all = (unsigned)(((u64)1 << N) - 1);
  Vec() = default;
  LITZ_FN Vec(bool s) : bits(s ? all : 0) {}
  static LITZ_FN Vec of(unsigned b) {
    Vec r;
    r.bits = (bits_t)b;
    return r;
  }
  LITZ_FN bool operator[](int i) const { return bits >> i & 1; }
  friend LITZ_FN Vec operator&(Vec a, Vec b) { return of(a.bits & b.bits); }
  friend LITZ_FN Vec operator|(Vec a, Vec b) { return of(a.bits | b.bits); }
  friend LITZ_FN Vec operator^(Vec a, Vec b) { return of(a.bits ^ b.bits); }
  friend LITZ_FN Vec operator~(Vec a) { return of(~a.bits & all); }
  friend LITZ_FN Vec operator!(Vec a) { return ~a; }
};
template <int N> LITZ_FN bool hany(Vec<bool, N> m) { return m.bits != 0; }
template <int N> LITZ_FN bool hall(Vec<bool, N> m) { return m.bits == m.all; }
template <int N> LITZ_FN int count(Vec<bool, N> m) { return __builtin_popcount(m.bits); }
template <int N> LITZ_FN unsigned mask_bits(Vec<bool, N> m) { return m.bits; }
#else
template <int N> struct Vec<bool, N, MASK> {
  Vec<i32, N> m;
  Vec() = default;
  LITZ_FN Vec(bool s) : m(-(i32)s) {}
  static LITZ_FN Vec of(Vec<i32, N> m) {
    Vec r;
    r.m = m;
    return r;
  }
  LITZ_FN bool operator[](int i) const { return m[i] != 0; }
  friend LITZ_FN Vec operator&(Vec a, Vec b) { return of(a.m & b.m); }
  friend LITZ_FN Vec operator|(Vec a, Vec b) { return of(a.m | b.m); }
  friend LITZ_FN Vec operator^(Vec a, Vec b) { return of(a.m ^ b.m); }
  friend LITZ_FN Vec operator~(Vec a) { return of(~a.m); }
  friend LITZ_FN Vec operator!(Vec a) { return ~a; }
};
#endif

template <class T, int N> LITZ_FN Vec<T, N / 2> low(Vec<T, N> a);
template <class T, int N> LITZ_FN Vec<T, N / 2> high(Vec<T, N> a);
template <class T, int N> LITZ_FN Vec<T, 2 * N> join(Vec<T, N> lo, Vec<T, N> hi);
template <class T, int N>
LITZ_FN Vec<T, N> where(Vec<bool, N> m, Vec<T, N> a, Vec<T, N> b);
template <class To, class From, int N> LITZ_FN Vec<To, N> cast(Vec<From, N> a);

namespace detail {
// Compares leaves of one native register.
template <class P, class R> LITZ_FN auto native_cmp(R a, R b) {
  if constexpr (is_same<P, pred::eq>) return a == b;
  else if constexpr (is_same<P, pred::ne>) return a != b;
  else if constexpr (is_same<P, pred::lt>) return a < b;
  else if constexpr (is_same<P, pred::le>) return a <= b;
  else if constexpr (is_same<P, pred::gt>) return a > b;
  else return a >= b;
}
template <class P, class T, int N> LITZ_FN Vec<bool, N> compare(Vec<T, N> a, Vec<T, N> b) {
  if constexpr (form<T, N> == SPLIT) {
    return join(compare<P>(a.lo, b.lo), compare<P>(a.hi, b.hi));
  } else if constexpr (sizeof(T) < 4) {
    return compare<P>(cast<i32>(a), cast<i32>(b));
  } else {
#if LITZ_KMASK
    if constexpr (sizeof(T) * N >= 16) {
      return Vec<bool, N>::of(hw::cmp<P>(a.v, b.v));
    } else {
      return low(compare<P>(join(a, a), join(b, b)));
    }
#else
    return Vec<bool, N>::of(cast<i32>(Vec<int_of<T>, N>(native_cmp<P>(a.v, b.v))));
#endif
  }
}
}  // namespace detail

}  // namespace litz
