// Elementary functions of float, within 1 ulp: exp, log and their kin, tanh, sigmoid, erf.
//
// Branch-free: Cody-Waite reduction, a polynomial, and the rounding errors that would show carried
// in a second float.  Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/poly.h>

namespace litz {
namespace detail {

// e^x = 2^n (1 + r + t), |r| <= ln2 / 2; low is what rounding lost in r (and t).
template <class V> struct ExpParts {
  V n, r, low, t;
};
template <bool Fine, class V> LITZ_FN ExpParts<V> exp_parts(V x) {
  V n = litz::round(x * V(0x1.715476p+0f));
  V s = mad(n, V(-0x1.62e4p-1f), x);  // exact: the constant has 14 bits
  V r = mad(n, V(-0x1.7f7d1cp-20f), s);
  V low = mad(n, V(-0x1.7f7d1cp-20f), s - r);
  if constexpr (Fine) {
    V q = poly(r, 0x1.555556p-3f, 0x1.5554e4p-5f, 0x1.110feep-7f, 0x1.6d5168p-10f,
               0x1.a273f2p-13f);
    V rr = r * r;
    return {n, r, mad(mad(r, r, -rr), V(0.5f), low), mad(q * r, rr, rr * V(0.5f))};
  } else {
    V q = poly(r, 0x1p-1f, 0x1.55548ap-3f, 0x1.5554e4p-5f, 0x1.123e4cp-7f, 0x1.6d5168p-10f);
    return {n, r, low, q * r * r};
  }
}
// An unevaluated sum, |low| <= ulp(high) / 2 once normalised.
template <class V> struct Pair {
  V high, low;
};
template <class V> LITZ_FN Pair<V> normalise(V high, V low) {  // |high| >= |low| or close
  V s = high + low;
  return {s, low - (s - high)};
}
// e^x - 1
template <class V> LITZ_FN Pair<V> expm1_pair(V x) {
  ExpParts<V> e = exp_parts<true>(x);
  V s = ldexp(V(1.0f), e.n);
  V base = s - V(1.0f);
  V base_low = (s - base) - V(1.0f);
  V high = mad(s, e.r, base);
  V low = mad(s, e.r, base - high) + base_low;
  return normalise(high, mad(s, e.t + e.low, low));
}

// x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); for finite positive x.
template <class V> struct LogParts {
  V e, f;
};
template <class V> LITZ_FN LogParts<V> log_parts(V x) {
  using VI = Vec<i32, lanes<V>>;
  Vec<bool, lanes<V>> tiny = x < V(0x1p-126f);
  VI b = ibits(where(tiny, x * V(0x1p23f), x));
  VI e = (b - VI(0x3f3504f3)) >> 23;
  V m = bitcast<float>(b - (e << 23));
  return {cast<float>(e) - where(tiny, V(23.0f), V(0.0f)), m - V(1.0f)};
}
// log(1 + f) - f
template <class V> LITZ_FN V log_tail(V f) {
  V p = poly(f, 0x1.555546p-2f, -0x1.0p-2f, 0x1.99a546p-3f, -0x1.555f16p-3f, 0x1.232fe8p-3f,
             -0x1.fbc1e6p-4f, 0x1.e6f4eep-4f, -0x1.e04a3ap-4f, 0x1.16babcp-4f);
  V f2 = f * f;
  return mad(p * f, f2, f2 * V(-0.5f));
}
// e * (eh + el) + (f + y) * (fh + fl); eh has few bits, |f| < |e eh| or e = 0.
template <class V>
LITZ_FN V log_sum(V e, V f, V y, float eh, float el, float fh, float fl) {
  V a = e * V(eh);
  V h = f * V(fh);
  V h_low = fh == 1.0f ? V(0.0f) : mad(f, V(fl), fma(f, V(fh), -h));
  V s = a + h;
  V low = h - (s - a) + h_low;
  return s + mad(y, V(fh), mad(e, V(el), low));
}
template <class V> LITZ_FN V log_special(V x, V r) {
  r = where(x == V(inf32), x, r);
  r = where(x == V(0.0f), V(-inf32), r);
  return where(x >= V(0.0f), r, V(nan32));
}
}  // namespace detail

template <int N> LITZ_FN Vec<float, N> exp(Vec<float, N> x) {
  using V = Vec<float, N>;
  auto e = detail::exp_parts<false>(detail::clamp(x, -104.0f, 89.0f));
  return detail::ldexp(V(1.0f) + (e.r + e.t), e.n);
}
LITZ_SCALAR_1_(float, exp)

template <int N> LITZ_FN Vec<float, N> exp2(Vec<float, N> x) {
  using V = Vec<float, N>;
  x = detail::clamp(x, -151.0f, 129.0f);
  V n = round(x);
  V r = x - n;
  V p = detail::poly(r, 0x1.62e43p-1f, 0x1.ebfbep-3f, 0x1.c6af72p-5f, 0x1.3b2a48p-7f,
                     0x1.5f0dccp-10f, 0x1.4424bp-13f);
  return detail::ldexp(mad(p, r, V(1.0f)), n);
}
LITZ_SCALAR_1_(float, exp2)

template <int N> LITZ_FN Vec<float, N> expm1(Vec<float, N> x) {
  using V = Vec<float, N>;
  auto p = detail::expm1_pair(detail::clamp(x, -18.0f, 88.5f));
  V r = p.high;
  // At the top 2^n itself overflows: there -1 does not matter.
  r = where(x > V(88.0f), exp(x), r);
  return where(abs(x) < V(0x1p-30f), x, r);
}
LITZ_SCALAR_1_(float, expm1)

template <int N> LITZ_FN Vec<float, N> log(Vec<float, N> x) {
  auto p = detail::log_parts(x);
  auto r = detail::log_sum(p.e, p.f, detail::log_tail(p.f), 0x1.62e4p-1f, 0x1.7f7d1cp-20f, 1.0f,
                           0.0f);
  return detail::log_special(x, r);
}
LITZ_SCALAR_1_(float, log)

template <int N> LITZ_FN Vec<float, N> log2(Vec<float, N> x) {
  auto p = detail::log_parts(x);
  auto r = detail::log_sum(p.e, p.f, detail::log_tail(p.f), 1.0f, 0.0f, 0x1.715476p+0f,
                           0x1.4ae0cp-26f);
  return detail::log_special(x, r);
}
LITZ_SCALAR_1_(float, log2)

template <int N> LITZ_FN Vec<float, N> log10(Vec<float, N> x) {
  auto p = detail::log_parts(x);
  auto r = detail::log_sum(p.e, p.f, detail::log_tail(p.f), 0x1.344p-2f, 0x1.3509f8p-18f,
                           0x1.bcb7b2p-2f, -0x1.5b235ep-27f);
  return detail::log_special(x, r);
}
LITZ_SCALAR_1_(float, log10)

template <int N> LITZ_FN Vec<float, N> log1p(Vec<float, N> x) {
  using V = Vec<float, N>;
  using VI = Vec<i32, N>;
  V u = V(1.0f) + x;
  V c = where(x < V(1.0f), x - (u - V(1.0f)), V(1.0f) - (u - x));  // 1 + x = u + c
  auto p = detail::log_parts(u);
  VI e = cast<i32>(p.e);
  V scale = bitcast<float>((VI(127) - where(e > VI(100), VI(100), e)) << 23);
  c = c * scale;
  V f = p.f + c;
  V low = c - (f - p.f);
  V r = detail::log_sum(p.e, f, detail::log_tail(f) + low, 0x1.62e4p-1f, 0x1.7f7d1cp-20f, 1.0f,
                        0.0f);
  return where(x == V(0.0f), x, detail::log_special(u, r));
}
LITZ_SCALAR_1_(float, log1p)

template <int N> LITZ_FN Vec<float, N> tanh(Vec<float, N> x) {
  using V = Vec<float, N>;
  V a = detail::min2(V(10.0f), abs(x));
  auto m = detail::expm1_pair(a + a);  // tanh = m / (m + 2)
  V den = m.high + V(2.0f);
  V two = den - m.high;
  V den_low = (m.high - (den - two)) + (V(2.0f) - two) + m.low;
  V inv = V(1.0f) / den;
  V q = m.high * inv;
  V rest = mad(-q, den_low, mad(-q, den, m.high) + m.low);
  return copysign(mad(rest, inv, q), x);
}
LITZ_SCALAR_1_(float, tanh)

template <int N> LITZ_FN Vec<float, N> sigmoid(Vec<float, N> x) {
  using V = Vec<float, N>;
  V a = detail::max2(V(-104.0f), -abs(x));
  auto e = detail::exp_parts<true>(a);  // 1 / (1 + e) or e / (1 + e), with e = 2^n (high + low)
  V one_r = V(1.0f) + e.r;
  auto m = detail::normalise(one_r, e.r - (one_r - V(1.0f)) + (e.t + e.low));
  V eh = detail::ldexp(m.high, e.n), el = detail::ldexp(m.low, e.n);
  V den = V(1.0f) + eh;
  V den_low = eh - (den - V(1.0f)) + el;
  V inv = V(1.0f) / den;
  auto positive = x > V(0.0f);
  V num = where(positive, V(1.0f), eh);
  V num_low = where(positive, V(0.0f), el);
  V q = num * inv;
  V rest = mad(-q, den_low, mad(-q, den, num) + num_low);
  return mad(rest, inv, q);
}
LITZ_SCALAR_1_(float, sigmoid)

template <int N> LITZ_FN Vec<float, N> erf(Vec<float, N> x) {
  using V = Vec<float, N>;
  V a = abs(x);
  V z = x * x;
  V small = detail::poly(z, 0x1.06eba8p-3f, -0x1.81274p-2f, 0x1.ce2d5p-4f, -0x1.b7fe8ep-6f,
                         0x1.542deep-8f, -0x1.a5099ep-11f, 0x1.4c2f4cp-14f);
  small = mad(small, x, x);
  V t = detail::min2(V(4.0f), a);
  // erfc(t) = exp(-q); what rounding q loses is put back as a factor
  V p = detail::poly(t, 0x1.209396p+0f, 0x1.469824p-1f, 0x1.a7409ep-4f, -0x1.678a3ep-6f,
                     0x1.85ca28p-9f, -0x1.8c61dap-13f);
  V c = V(0x1.3b42c0p-12f);
  V q = mad(p, t, c);
  V q_low = mad(p, t, c - q);
  auto e = detail::exp_parts<false>(-q);
  V large = V(1.0f) - detail::ldexp(V(1.0f) + (e.r + (e.t - q_low)), e.n);
  return where(a < V(1.0f), small, copysign(large, x));
}
LITZ_SCALAR_1_(float, erf)

}  // namespace litz
