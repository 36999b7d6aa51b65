// Shared by the math headers: polynomials, powers of two, scalar forms through small vectors.
//
// Each function is written once, for vectors.  Its scalar form runs the same code on a register of
// equal lanes, so scalar and vector results are the same bits.
#pragma once
#include <litz/vec.h>

namespace litz {

template <class T> inline constexpr int scalar_lanes = 16 / sizeof(T);

#define LITZ_SCALAR_1_(T, name) \
  LITZ_FN T name(T x) { return name(Vec<T, scalar_lanes<T>>(x))[0]; }
#define LITZ_SCALAR_2_(T, name)                                                  \
  LITZ_FN T name(T x, T y) {                                                     \
    return name(Vec<T, scalar_lanes<T>>(x), Vec<T, scalar_lanes<T>>(y))[0];      \
  }

namespace detail {

// Horner: c[0] + c[1] x + ..; coefficients lowest order first.
template <class V> LITZ_FN V horner(V, V c0) { return c0; }
template <class V, class... C> LITZ_FN V horner(V x, V c0, C... rest) {
  return mad(horner(x, V(rest)...), x, c0);
}
template <class V, class... C> LITZ_FN V poly(V x, C... c) {
  return horner(x, V(elem<V>(c))...);
}

// x * 2^n for integral n of any size that the type's exponents reach, rounded once.
template <class V> LITZ_FN V ldexp(V x, V n) {
  using T = elem<V>;
#if LITZ_KMASK
  if constexpr (form<T, lanes<V>> == SPLIT) return V(ldexp(x.lo, n.lo), ldexp(x.hi, n.hi));
  else return V(hw::scale(x.v, n.v));
#else
  using I = int_of<T>;
  using VI = Vec<I, lanes<V>>;
  constexpr int mantissa = sizeof(T) == 4 ? 23 : 52, bias = sizeof(T) == 4 ? 127 : 1023;
  VI k = cast<I>(n), half = k >> 1;
  V a = bitcast<T>((half + VI(I(bias))) << mantissa);
  V b = bitcast<T>((k - half + VI(I(bias))) << mantissa);
  return x * a * b;
#endif
}

// The clamp that keeps nan.
template <class V> LITZ_FN V clamp(V x, elem<V> lo, elem<V> hi) {
  return min2(V(hi), max2(V(lo), x));
}

}  // namespace detail
}  // namespace litz
