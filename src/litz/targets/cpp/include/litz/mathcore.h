// The algorithms of exp, log and their kin, for float and double; constants are in math.h, math64.h.
//
// Branch-free: Cody-Waite reduction, a polynomial, and the rounding errors that would show carried
// in a second value.
#pragma once
#include <litz/poly.h>

namespace litz {
namespace detail {

// Per element type: the limits and the two kernels below.
template <class T> struct Core;

// e^x = 2^n (1 + p), at = n + biased
template <class V> struct ExpParts {
  V at, p;
};
// p = r + t, |r| <= ln2 / 2; low is what rounding lost in r and t.
template <class V> struct FineExpParts {
  V at, r, low, t;
};
// x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2)
template <class V> struct LogParts {
  V e, f;
};
// Below exp_zero both powers are 0, and so is the result; nothing there is computed that is not normal,
// for which x86 takes its time: masked scores are -inf.
template <class V> LITZ_FN V exp_of(V x) {
  using C = Core<elem<V>>;
  auto e = C::exp(clamp(x, C::exp_zero, C::exp_max));
  return scaled_1p(e.p, e.at);
}
// e^x - 1
template <class V> LITZ_FN Pair<V> expm1_pair(V x) {
  const V one = V(elem<V>(1));
  auto e = Core<elem<V>>::fine_exp(x);
  V s = power_of_2(e.at);
  V base = s - one;
  V base_low = (s - base) - one;
  V high = mad(s, e.r, base);
  V low = mad(s, e.r, base - high) + base_low;
  return normalise(high, mad(s, e.t + e.low, low));
}
template <class V> LITZ_FN V expm1_of(V x) {
  using C = Core<elem<V>>;
  using T = elem<V>;
  V r = expm1_pair(clamp(x, T(-40), C::expm1_top)).high;
  r = where(x > V(C::expm1_top), exp_of(x), r);  // 2^n alone could overflow there
  return where(abs(x) < V(C::tiny), x, r);
}

template <class V> LITZ_FN V tanh_of(V x) {
  using T = elem<V>;
  const V two = V(T(2));
  V a = min2(V(Core<T>::tanh_one), abs(x));
  auto m = expm1_pair(a + a);  // tanh = m / (m + 2)
  V den = m.high + two;
  V part = den - m.high;
  V den_low = (m.high - (den - part)) + (two - part) + m.low;
  V inv = V(T(1)) / den;
  V q = m.high * inv;
  V rest = mad(-q, den_low, mad(-q, den, m.high) + m.low);
  return copysign(mad(rest, inv, q), x);
}

// e^x times 2^More as a sum; x in range, for More > 0 of a normal result.
template <int More = 0, class V> LITZ_FN Pair<V> exp_pair(V x) {
  using T = elem<V>;
  auto e = Core<T>::fine_exp(x);
  const V one(T(1));
  V one_r = one + e.r, at = More ? e.at + V(T(More)) : e.at;
  auto m = normalise(one_r, e.r - (one_r - one) + (e.t + e.low));
  if constexpr (More > 0) {
    V by = power_of_2(at);
    return {m.high * by, m.low * by};
  }
  return {scaled(m.high, at), scaled(m.low, at)};
}
template <class V> LITZ_FN V sigmoid_of(V x) {
  using T = elem<V>;
  const V one = V(T(1)), zero = V(T(0));
  V a = max2(V(Core<T>::exp_min), -abs(x));
  auto e = exp_pair(a);  // 1 / (1 + e) or e / (1 + e)
  V den = one + e.high;
  V den_low = e.high - (den - one) + e.low;
  V inv = one / den;
  auto positive = x > zero;
  V num = where(positive, one, e.high);
  V num_low = where(positive, zero, e.low);
  V q = num * inv;
  V rest = mad(-q, den_low, mad(-q, den, num) + num_low);
  return mad(rest, inv, q);
}

// Of a normal number.
template <class V> LITZ_FN LogParts<V> log_parts(V x) {
  using C = Core<elem<V>>;
  using I = int_of<elem<V>>;
  using VI = Vec<I, lanes<V>>;
  VI b = ibits(x);
  // The shift is of a positive number: arithmetic shifts of 8 bytes are rare in hardware.
  using U = uint_of<elem<V>>;
  auto biased = bitcast<U>(b + VI(I(((U)C::bias << C::mantissa) - (U)C::sqrt_half_bits)));
  VI e = bitcast<I>(biased >> C::mantissa) - VI(I(C::bias));
  V m = bitcast<elem<V>>(b - (e << C::mantissa));
  return {small_float<elem<V>>(e), m - V(elem<V>(1))};
}
// A logarithm's base: log_b(2) and 1 / log(b), each as a sum; the first's head has few bits.
template <class T> struct Base {
  T two, two_low, unit, unit_low;
};
template <class V> LITZ_FN Pair<V> log_pair(V e, V f, V tail, Base<elem<V>> b) {
  using T = elem<V>;
  V a = e * V(b.two);
  V h = f * V(b.unit);
  V h_low = V(T(0));
  if (b.unit != T(1)) {  // what rounding lost in f * unit, and in the f^2 of the tail
    V ff = f * f;
    V ff_low = fma(f, f, -ff) * V(T(-0.5));
    h_low = mad(ff_low, V(b.unit), mad(f, V(b.unit_low), fma(f, V(b.unit), -h)));
  }
  V s = a + h;
  V low = h - (s - a) + h_low;
  return {s, mad(tail, V(b.unit), mad(e, V(b.two_low), low))};
}
template <class V> LITZ_FN V log_sum(V e, V f, V tail, Base<elem<V>> b) {
  auto sum = log_pair(e, f, tail, b);
  return sum.high + sum.low;
}
template <class V> LITZ_FN V log_special(V x, V r) {
  using C = Core<elem<V>>;
  const V zero = V(elem<V>(0));
  r = where(x == V(C::inf), x, r);
  r = where(x == zero, V(-C::inf), r);
  return where(x >= zero, r, V(C::nan));
}
template <class V> LITZ_FN V log_of(V x, Base<elem<V>> b) {
  using C = Core<elem<V>>;
  using T = elem<V>;
  auto plain = (x >= V(C::least_normal)) & (x < V(C::inf));
  const bool all = LITZ_LIKELY(hall(plain));
  V lifted = x, e = V(T(0));
  if (!all) {
    auto subnormal = x < V(C::least_normal);
    lifted = where(subnormal, x * V(C::lift), x), e = where(subnormal, V(T(-C::mantissa)), e);
  }
  auto p = log_parts(lifted);
  V r = log_sum(p.e + e, p.f, C::log_tail(p.f), b);
  return all ? r : log_special(x, r);
}
template <class V> LITZ_FN V log1p_of(V x) {
  using T = elem<V>;
  using C = Core<T>;
  using I = int_of<T>;
  using VI = Vec<I, lanes<V>>;
  const V one = V(T(1));
  V u = one + x;
  V c = where(x < one, x - (u - one), one - (u - x));  // 1 + x = u + c
  auto p = log_parts(u);
  VI e = small_int(min2(V(T(C::bias - 1)), p.e));
  c = c * bitcast<T>((VI(I(C::bias)) - e) << C::mantissa);
  V f = p.f + c;
  V low = c - (f - p.f);
  V r = log_sum(p.e, f, C::log_tail(f) + low, C::base_e);
  return where(x == V(T(0)), x, log_special(u, r));
}

}  // namespace detail
}  // namespace litz
