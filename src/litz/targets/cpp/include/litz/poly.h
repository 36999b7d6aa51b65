// Shared by the math headers: polynomials, powers of two, scalar forms through small vectors.
//
// Each function is written once, for vectors.  Its scalar form runs the same code on a register of
// equal lanes, so scalar and vector results are the same bits.
#pragma once
#include <litz/vec.h>

// Whether a register of floats is looked up in another.
#if LITZ_KMASK && !defined(__clang__)
#define LITZ_LOOKUP 1
#else
#define LITZ_LOOKUP 0
#endif

namespace litz {

template <class T> inline constexpr int scalar_lanes = 16 / sizeof(T);

// Templates, so that only those that a kernel calls are compiled.
#define LITZ_SCALAR_1_(T, name) \
  template <int = 0> LITZ_FN T name(T x) { return name(Vec<T, scalar_lanes<T>>(x))[0]; }
#define LITZ_SCALAR_2_(T, name)                                                  \
  template <int = 0> LITZ_FN T name(T x, T y) {                                                    \
    return name(Vec<T, scalar_lanes<T>>(x), Vec<T, scalar_lanes<T>>(y))[0];      \
  }
// Functions of one vector, and all forms of those of two.
#define LITZ_MATH_(T, name, ...)                                               \
  template <int N> LITZ_FN Vec<T, N> name(Vec<T, N> x) { return __VA_ARGS__; } \
  LITZ_SCALAR_1_(T, name)
#define LITZ_FORMS_2_(T, name)                                                                 \
  template <int N> LITZ_FN Vec<T, N> name(Vec<T, N> x, T y) { return name(x, Vec<T, N>(y)); }  \
  template <int N> LITZ_FN Vec<T, N> name(T x, Vec<T, N> y) { return name(Vec<T, N>(x), y); }  \
  LITZ_SCALAR_2_(T, name)

namespace detail {

// Horner: c[0] + c[1] x + ..; coefficients lowest order first.
template <class V> LITZ_FN V horner(V, V c0) { return c0; }
template <class V, class... C> LITZ_FN V horner(V x, V c0, C... rest) {
  return mad(horner(x, V(rest)...), x, c0);
}
template <class V, class... C> LITZ_FN V poly(V x, C... c) {
  return horner(x, V(elem<V>(c))...);
}

// Adding this leaves an integral value of modest size in the low bits: conversions that every
// instruction set has, for 8-byte integers too.
template <class T> inline constexpr T magic = T(sizeof(T) == 4 ? 0x1.8p23 : 0x1.8p52);
template <class V> LITZ_FN auto small_int(V x) {
  const V m = V(magic<elem<V>>);
  return ibits(x + m) - ibits(m);
}
template <class T, int N> LITZ_FN Vec<T, N> small_float(Vec<int_of<T>, N> i) {
  const Vec<T, N> m = Vec<T, N>(magic<T>);
  return bitcast<T>(i + ibits(m)) - m;
}

// An unevaluated sum; once normalised, |low| <= ulp(high) / 2.
template <class V> struct Pair {
  V high, low;
};

// Adding this to an integral n leaves n and twice the bias in the low bits: half of them is an
// exponent, what is left is another.
template <class T> inline constexpr T biased = T(magic<T> + (sizeof(T) == 4 ? 254 : 2046));
// 2^n as a product, of t = n + biased for integral n of any size that the type's exponents reach.
template <class V> LITZ_FN Pair<V> powers(V t) {
  using T = elem<V>;
  constexpr int mantissa = sizeof(T) == 4 ? 23 : 52;
  auto half = (ibits(t) << (mantissa - 1)) & ibits(V(T(inf64)));
  return {bitcast<T>(half), bitcast<T>((ibits(t) << mantissa) - half)};
}
// x * 2^n, rounded once; of an n that is not integral, as AVX-512 rounds it: down.
template <class V> LITZ_FN V ldexp(V x, V n);
// x * 2^n of such a t, rounded once.
template <class V> LITZ_FN V scaled(V x, V t) {
#if LITZ_KMASK
  return ldexp(x, t - V(biased<elem<V>>));
#else
  auto by = powers(t);
  return x * by.high * by.low;
#endif
}
template <class V> LITZ_FN V ldexp(V x, V n) {
#if LITZ_KMASK
  if constexpr (form<elem<V>, lanes<V>> == SPLIT) return V(ldexp(x.lo, n.lo), ldexp(x.hi, n.hi));
  else return V(hw::scale(x.v, n.v));
#else
  return scaled(x, n + V(biased<elem<V>>));
#endif
}
// (1 + p) 2^n, |p| < 1.
template <class V> LITZ_FN V scaled_1p(V p, V t) {
#if LITZ_KMASK
  return scaled(V(elem<V>(1)) + p, t);
#else
  auto by = powers(t);
  return mad(p, by.high, by.high) * by.low;
#endif
}
// 2^n where that is normal.
template <class V> LITZ_FN V power_of_2(V t) {
  using T = elem<V>;
#if LITZ_KMASK
  return scaled(V(T(1)), t);
#else
  return bitcast<T>(ibits(t - V(T(sizeof(T) == 4 ? 127 : 1023))) << (sizeof(T) == 4 ? 23 : 52));
#endif
}

// The clamp that keeps nan.
template <class V> LITZ_FN V clamp(V x, elem<V> lo, elem<V> hi) {
  return min2(V(hi), max2(V(lo), x));
}

template <class V> LITZ_FN Pair<V> normalise(V high, V low) {  // |high| >= |low| or close
  V s = high + low;
  return {s, low - (s - high)};
}

#if LITZ_LOOKUP
// ``f``, which takes the lanes of a whole register, of more or of fewer.
template <class T, int N, class F> LITZ_FN Vec<T, N> by_registers(F f, Vec<T, N> x) {
  if constexpr (N * sizeof(T) > 64) return join(by_registers(f, low(x)), by_registers(f, high(x)));
  else if constexpr (N * sizeof(T) < 64) return low(by_registers(f, join(x, x)));
  else return f(x);
}
#endif

// 1 / x of numbers of middling size: to 2^-14 at least, or but for the rounding of its last bit.
template <int N> LITZ_FN Vec<float, N> about_inverse(Vec<float, N> x) {
#if LITZ_LOOKUP
  return by_registers([=](auto x) LITZ_LAMBDA {
    return decltype(x)(__builtin_ia32_rcp14ps512_mask(x.v, x.v, (unsigned short)-1));
  }, x);
#else
  return Vec<float, N>(1.0f) / x;
#endif
}
template <int N> LITZ_FN Vec<double, N> inverse(Vec<double, N> x) { return Vec<double, N>(1.0) / x; }
template <int N> LITZ_FN Vec<float, N> inverse(Vec<float, N> x) {
  Vec<float, N> about = about_inverse(x);
  return LITZ_LOOKUP ? mad(about, mad(-about, x, Vec<float, N>(1.0f)), about) : about;
}
template <int N> LITZ_FN Vec<float, N> quotient(Vec<float, N> num, Vec<float, N> den) {
#if LITZ_LOOKUP
  Vec<float, N> inv = inverse(den), q = num * inv;
  return mad(mad(-q, den, num), inv, q);
#else
  return num / den;
#endif
}

}  // namespace detail
}  // namespace litz
