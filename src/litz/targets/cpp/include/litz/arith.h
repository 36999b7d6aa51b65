// The named forms of arithmetic, for vectors and scalars alike.
#pragma once

namespace litz {

template <class V> struct traits_ {
  using elem = V;
  static constexpr int lanes = 1;
};
template <class T, int N, Form F> struct traits_<Vec<T, N, F>> {
  using elem = T;
  static constexpr int lanes = N;
};
template <class V> using elem = typename traits_<V>::elem;
template <class V> inline constexpr int lanes = traits_<V>::lanes;
template <class V> inline constexpr bool is_vec = traits_<V>::lanes > 1;
template <class V> inline constexpr bool is_float_v = is_float<elem<V>>;
template <class V> inline constexpr bool is_bool_v = is_same<elem<V>, bool>;

// Scalar integers run in unsigned arithmetic, so that overflow wraps and narrow types stay narrow.
#define LITZ_BINARY_(name, o)                                                                   \
  template <class V> LITZ_FN V name(V a, V b) {                                                 \
    if constexpr (is_vec<V> || is_float<V>) {                                                   \
      return a o b;                                                                             \
    } else {                                                                                    \
      using U = decltype(0u + typename wrap_<V>::type());                                       \
      return (V)((U)a o (U)b);                                                                  \
    }                                                                                           \
  }                                                                                             \
  template <class T, int N> LITZ_FN Vec<T, N> name(Vec<T, N> a, same<T> b) {                    \
    return a o Vec<T, N>(b);                                                                    \
  }                                                                                             \
  template <class T, int N> LITZ_FN Vec<T, N> name(same<T> a, Vec<T, N> b) {                    \
    return Vec<T, N>(a) o b;                                                                    \
  }
LITZ_BINARY_(add, +)
LITZ_BINARY_(sub, -)
LITZ_BINARY_(mul, *)
LITZ_BINARY_(and_, &)
LITZ_BINARY_(or_, |)
LITZ_BINARY_(xor_, ^)
#undef LITZ_BINARY_

#define LITZ_MIXED_(R, name)                                                                    \
  template <class T, int N> LITZ_FN Vec<R, N> name(Vec<T, N> a, same<T> b) {                    \
    return name(a, Vec<T, N>(b));                                                               \
  }                                                                                             \
  template <class T, int N> LITZ_FN Vec<R, N> name(same<T> a, Vec<T, N> b) {                    \
    return name(Vec<T, N>(a), b);                                                               \
  }

template <class V> LITZ_FN V div(V a, V b) { return a / b; }
LITZ_MIXED_(T, div)

template <class V> LITZ_FN V neg(V a) {
  if constexpr (is_vec<V> || is_float<V>) return -a;
  else return sub(V(0), a);
}
template <class V> LITZ_FN V not_(V a) {
  if constexpr (is_bool_v<V>) return !a;
  else return (V)~a;
}

// ---- comparisons; on bool, false < true

#define LITZ_COMPARE_(name, o, on_bool)                                                         \
  template <class T, int N> LITZ_FN Vec<bool, N> name(Vec<T, N> a, Vec<T, N> b) {               \
    if constexpr (is_same<T, bool>) return on_bool;                                             \
    else return a o b;                                                                          \
  }                                                                                             \
  template <class T> LITZ_FN bool name(T a, T b) { return a o b; }                              \
  LITZ_MIXED_(bool, name)
LITZ_COMPARE_(eq, ==, ~(a ^ b))
LITZ_COMPARE_(ne, !=, a ^ b)
LITZ_COMPARE_(lt, <, ~a & b)
LITZ_COMPARE_(le, <=, ~a | b)
LITZ_COMPARE_(gt, >, a & ~b)
LITZ_COMPARE_(ge, >=, a | ~b)
#undef LITZ_COMPARE_

template <class V> LITZ_FN auto isnan(V a) { return a != a; }
template <class V> LITZ_FN V abs(V a) {
  using T = elem<V>;
  if constexpr (is_float<T>) {
    if constexpr (is_vec<V>) {
      using U = Vec<uint_of<T>, lanes<V>>;
      return bitcast<T>(bitcast<uint_of<T>>(a) & U(uint_of<T>(-1) >> 1));
    } else {
      if constexpr (sizeof(T) == 4) return __builtin_fabsf(a);
      else return __builtin_fabs(a);
    }
  } else if constexpr (!is_signed<T>) {
    return a;
  } else {
    return where(a < V(T(0)), neg(a), a);
  }
}
template <class V> LITZ_FN auto isinf(V a) {
  return abs(a) == V(is_same<elem<V>, float> ? elem<V>(inf32) : elem<V>(inf64));
}
// The integer view of a float value, as signed lanes.
template <class V> LITZ_FN auto ibits(V a) { return bitcast<int_of<elem<V>>>(a); }
template <class V> LITZ_FN auto signbit(V a) {
  auto b = ibits(a);
  return b < decltype(b)(0);
}
template <class V> LITZ_FN V copysign(V mag, V sign) {
  using I = decltype(ibits(mag));
  const I top = I((elem<I>)((uint_of<elem<V>>)1 << (8 * sizeof(elem<V>) - 1)));
  return bitcast<elem<V>>((ibits(mag) & ~top) | (ibits(sign) & top));
}
LITZ_MIXED_(T, copysign)
// -1, 0 or 1; 0 of nan, as eager.
template <class V> LITZ_FN V sign(V a) {
  using T = elem<V>;
  const V zero = V(T(0)), one = V(T(1));
  if constexpr (is_signed<T>) return where(a > zero, one, where(a < zero, V(T(-1)), zero));
  else return where(a > zero, one, zero);
}

// ---- operations that the hardware has for registers of floats

namespace detail {
// b where either is nan or both are zero: one instruction on x86.
template <class V> LITZ_FN V max2(V a, V b) {
  if constexpr (!is_vec<V>) return a > b ? a : b;
  else if constexpr (form<elem<V>, lanes<V>> == SPLIT) return V(max2(a.lo, b.lo), max2(a.hi, b.hi));
  else return V(hw::max(a.v, b.v));
}
template <class V> LITZ_FN V min2(V a, V b) {
  if constexpr (!is_vec<V>) return a < b ? a : b;
  else if constexpr (form<elem<V>, lanes<V>> == SPLIT) return V(min2(a.lo, b.lo), min2(a.hi, b.hi));
  else return V(hw::min(a.v, b.v));
}
// a where it is nan, else b: a mask of 64 bits is not made one of 32 on the way.
template <class V> LITZ_FN V nan_or(V a, V b) {
#if !LITZ_KMASK
  if constexpr (is_vec<V>) {
    if constexpr (form<elem<V>, lanes<V>> == SPLIT) return V(nan_or(a.lo, b.lo), nan_or(a.hi, b.hi));
    else if constexpr (form<elem<V>, lanes<V>> == LEAF) return V(a.v != a.v ? a.v : b.v);
  }
#endif
  return where(a != a, a, b);
}
template <int R, class V> LITZ_FN V round(V a) {
  if constexpr (!is_vec<V>) return hw::round1<R>(a);
  else if constexpr (form<elem<V>, lanes<V>> == SPLIT) return V(round<R>(a.lo), round<R>(a.hi));
  else return V(hw::round<R>(a.v));
}
}  // namespace detail

template <class V> LITZ_FN V floor(V a) { return detail::round<FLOOR>(a); }
template <class V> LITZ_FN V ceil(V a) { return detail::round<CEIL>(a); }
template <class V> LITZ_FN V trunc(V a) { return detail::round<TRUNC>(a); }
template <class V> LITZ_FN V round(V a) { return detail::round<HALF_EVEN>(a); }

template <class V> LITZ_FN V sqrt(V a) {
  if constexpr (!is_vec<V>) return hw::sqrt1(a);
  else if constexpr (form<elem<V>, lanes<V>> == SPLIT) return V(sqrt(a.lo), sqrt(a.hi));
  else return V(hw::sqrt(a.v));
}
template <class V> LITZ_FN V fma(V a, V b, V c) {
  if constexpr (!is_vec<V>) return hw::fma1(a, b, c);
  else if constexpr (form<elem<V>, lanes<V>> == SPLIT)
    return V(fma(a.lo, b.lo, c.lo), fma(a.hi, b.hi, c.hi));
  else return V(hw::fma(a.v, b.v, c.v));
}
// a * b + c as fast as the machine can: one rounding or two.
template <class V> LITZ_FN V mad(V a, V b, V c) {
#if LITZ_FMA
  return fma(a, b, c);
#else
  return a * b + c;
#endif
}
template <class V> LITZ_FN V reciprocal(V a) { return V(elem<V>(1)) / a; }
template <class V> LITZ_FN V rsqrt(V a) { return V(elem<V>(1)) / sqrt(a); }

// ---- minimum and maximum: nan wins in maximum / minimum, loses in fmax / fmin

template <class V> LITZ_FN V maximum(V a, V b) {
  if constexpr (is_bool_v<V>) return a | b;
  else if constexpr (is_float_v<V>) return detail::nan_or(a, detail::max2(a, b));
  else return detail::max2(a, b);
}
template <class V> LITZ_FN V minimum(V a, V b) {
  if constexpr (is_bool_v<V>) return a & b;
  else if constexpr (is_float_v<V>) return detail::nan_or(a, detail::min2(a, b));
  else return detail::min2(a, b);
}
template <class V> LITZ_FN V fmax(V a, V b) {
  if constexpr (is_float_v<V>) return where(b != b, a, detail::max2(a, b));
  else return detail::max2(a, b);
}
template <class V> LITZ_FN V fmin(V a, V b) {
  if constexpr (is_float_v<V>) return where(b != b, a, detail::min2(a, b));
  else return detail::min2(a, b);
}
LITZ_MIXED_(T, maximum)
LITZ_MIXED_(T, minimum)
LITZ_MIXED_(T, fmax)
LITZ_MIXED_(T, fmin)

}  // namespace litz
