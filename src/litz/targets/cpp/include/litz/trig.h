// sin, cos, tan and their inverses of float: in float where the machine multiplies and adds at once,
// with what rounding loses carried in a second value, else in double (see wide.h).
// Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/rare.h>
#include <litz/wide.h>

namespace litz {
namespace wide {

struct Sin {
  static constexpr auto lane = ::sin;
  template <class D> static LITZ_FN D of(Turn<D> t) { return sin_turned(t, 0); }
};
struct Cos {
  static constexpr auto lane = ::cos;
  template <class D> static LITZ_FN D of(Turn<D> t) { return sin_turned(t, 1); }
};
struct Tan {
  static constexpr auto lane = ::tan;
  template <class D> static LITZ_FN D of(Turn<D> t) { return sin_turned(t, 0) / sin_turned(t, 1); }
};
// Arguments that the reduction in float is not made for; nor the one in double: by the C library.
template <class F, int N> LITZ_SLOW Vec<float, N> far(Vec<float, N> x) {
  if (hany(abs(x) > Vec<float, N>(0x1p26f))) return rare::by_lane<F::lane>(x);
  return cast<float>(F::of(quarter_turns(cast<double>(x))));
}

}  // namespace wide
namespace detail {

#if LITZ_FMA
// x = n pi/2 + r + low for |x| <= 2^17, quarter the last bits of n.
template <class V> struct Quarter {
  V r, low;
  Vec<i32, lanes<V>> quarter;
};
template <class V> LITZ_FN Quarter<V> quarter_of(V x) {
  V t = mad(x, V(0x1.45f306p-1f), V(magic<float>));
  V n = t - V(magic<float>);
  V s = mad(n, V(-0x1.921fb4p+0f), x);  // exact
  V p = n * V(0x1.4442dp-24f), r = s - p, back = r - s;
  V lost = (s - (r - back)) - (p + back) - mad(n, V(0x1.4442dp-24f), -p);
  return {r, mad(n, V(-0x1.84698ap-48f), lost), ibits(t)};
}
// Fine: with what rounding lost in z, which a quotient would show.
template <bool Fine, class V> LITZ_FN Pair<V> sin_pair(Quarter<V> q, V z) {
  V p = poly(z, -0x1.555556p-3f, 0x1.111164p-7f, -0x1.a04802p-13f, 0x1.77b00ep-19f);
  if (Fine) q.low = mad(mad(q.r, q.r, -z) * q.r, V(-1.0f / 6), q.low);
  return {q.r, mad(p, q.r * z, q.low)};
}
template <bool Fine, class V> LITZ_FN Pair<V> cos_pair(Quarter<V> q, V z) {
  const V one(1.0f), half(-0.5f);
  V p = poly(z, 0x1.55554ap-5f, -0x1.6c0c1cp-10f, 0x1.99e1d6p-16f);
  V high = mad(z, half, one);
  V low = mad(-q.r, q.low, mad(z, half, one - high));
  if (Fine) low = mad(mad(q.r, q.r, -z), half, low);
  return {high, mad(p, z * z, low)};
}
template <class V> LITZ_FN auto odd_quarter(Quarter<V> q, int shift) {
  using I = decltype(q.quarter);
  return (q.quarter & I(1)) != I(shift);
}
// sin(x + shift pi/2)
template <class V> LITZ_FN V sin_quarter(V x, int shift) {
  auto q = quarter_of(x);
  using I = decltype(q.quarter);
  V z = q.r * q.r;
  auto s = sin_pair<false>(q, z), c = cos_pair<false>(q, z);
  V v = where(odd_quarter(q, shift), c.high + c.low, s.high + s.low);
  return bitcast<float>(ibits(v) ^ (((q.quarter + I(shift)) & I(2)) << 30));
}
template <class V> LITZ_FN V tan_quarter(V x) {
  auto q = quarter_of(x);
  V z = q.r * q.r;
  auto s = sin_pair<true>(q, z), c = cos_pair<true>(q, z);
  s = normalise(s.high, s.low);
  c = normalise(c.high, c.low);
  auto odd = odd_quarter(q, 0);
  V num = where(odd, -c.high, s.high), num_low = where(odd, -c.low, s.low);
  V den = where(odd, s.high, c.high), den_low = where(odd, s.low, c.low);
  V inv = inverse(den), ratio = num * inv;
  return mad(mad(-ratio, den_low, mad(-ratio, den, num) + num_low), inv, ratio);
}

// A root as a sum; nan of negative numbers.
template <class V> LITZ_FN Pair<V> sqrt_pair(V z) {
  V half, s;
#if LITZ_LOOKUP
  if constexpr (lanes<V> > 16) {
    auto a = sqrt_pair(low(z)), b = sqrt_pair(high(z));
    return {join(a.high, b.high), join(a.low, b.low)};
  } else if constexpr (lanes<V> < 16) {
    auto a = sqrt_pair(join(z, z));
    return {low(a.high), low(a.low)};
  } else {
    V about = z + V(0x1p-100f);  // not of zero
    about = V(__builtin_ia32_rsqrt14ps512_mask(about.v, about.v, (unsigned short)-1));
    half = about * V(0.5f);
    s = z * about;
    s = mad(mad(-s, s, z), half, s);
  }
#else
  s = sqrt(z);
  half = V(0.5f) / max2(V(0x1p-50f), s);
#endif
  return {s, mad(-s, s, z) * half};
}
// base + factor * asin(y): y is x or, beyond 1/2, sqrt((1 - |x|) / 2), of which asin is twice.
template <class V> LITZ_FN Pair<V> asin_parts(V a, Vec<bool, lanes<V>> inner) {
  V z = where(inner, a * a, mad(a, V(-0.5f), V(0.5f)));
  auto root = sqrt_pair(z);
  V s = where(inner, a, root.high);
  V p = poly(z, 0x1.55554cp-3f, 0x1.33389ap-4f, 0x1.6cabap-5f, 0x1.04a60cp-5f, 0x1.d82adcp-7f,
             0x1.339b94p-5f);
  return {s, mad(p, s * z, where(inner, V(0.0f), root.low))};
}
// base (of which base_low is the rest) + factor * (y.high + y.low), |base| larger or 0
template <class V> LITZ_FN V from_base(V base, V base_low, V factor, Pair<V> y) {
  V whole = mad(factor, y.high, base);
  V low = mad(factor, y.high, base - whole) + base_low;
  return whole + mad(factor, y.low, low);
}
inline constexpr float half_pi = 0x1.921fb6p+0f, half_pi_low = -0x1.777a5cp-25f;

template <class V> LITZ_FN V asin_of(V x) {
  const V zero(0.0f);
  V a = abs(x);
  auto inner = a <= V(0.5f);
  V base = where(inner, zero, V(half_pi)), base_low = where(inner, zero, V(half_pi_low));
  return copysign(from_base(base, base_low, where(inner, V(1.0f), V(-2.0f)), asin_parts(a, inner)), x);
}
template <class V> LITZ_FN V acos_of(V x) {
  const V zero(0.0f);
  V a = abs(x);
  auto inner = a <= V(0.5f);
  auto negative = x < zero;
  V base = where(inner, V(half_pi), where(negative, V(2 * half_pi), zero));
  V base_low = where(inner, V(half_pi_low), where(negative, V(2 * half_pi_low), zero));
  V factor = where(inner, V(-1.0f), V(2.0f));
  return from_base(base, base_low, where(negative, -factor, factor), asin_parts(a, inner));
}
template <class V> LITZ_FN V atan_of(V x) {
  const V zero(0.0f), one(1.0f);
  V a = min2(V(0x1p60f), abs(x));
  auto middle = a > V(0.5f), upper = a > V(2.0f);
  V num = where(upper, -one, where(middle, a - one, a));  // without an error
  V den = where(upper, a, where(middle, a + one, one));
  V den_low = where(upper, zero, where(middle, a - (den - one), zero));
  V base = where(upper, V(half_pi), where(middle, V(half_pi / 2), zero));
  V base_low = where(upper, V(half_pi_low), where(middle, V(half_pi_low / 2), zero));
  V inv = inverse(den), s = num * inv;
  V rest = mad(-s, den_low, mad(-s, den, num)) * inv;
  V z = s * s;
  V p = poly(z, -0x1.55555p-2f, 0x1.99968ep-3f, -0x1.2444d8p-3f, 0x1.bfcdbp-4f, -0x1.45e05cp-4f,
             0x1.3a44c2p-5f);
  return copysign(from_base(base, base_low, one, Pair<V>{s, mad(p, s * z, rest)}), x);
}
inline constexpr float far_from = 0x1p17f;
#else
template <class V> LITZ_FN V sin_quarter(V x, int shift) {
  return cast<float>(wide::sin_turned(wide::quarter_turns(cast<double>(x)), shift));
}
template <class V> LITZ_FN V tan_quarter(V x) {
  return cast<float>(wide::Tan::of(wide::quarter_turns(cast<double>(x))));
}
template <class V> LITZ_FN V asin_of(V x) { return cast<float>(wide::asin(cast<double>(x))); }
template <class V> LITZ_FN V acos_of(V x) { return cast<float>(wide::acos(cast<double>(x))); }
template <class V> LITZ_FN V atan_of(V x) {
  auto d = cast<double>(x);
  auto r = copysign(wide::atan_ratio(abs(d), decltype(d)(1.0)), d);
  return where(x == x, cast<float>(r), x);
}
inline constexpr float far_from = 0x1p26f;
#endif
template <class F, class V> LITZ_FN V with_far(V x, V near) {
  return rare::but_where(abs(x) > V(far_from), x, near, wide::far<F, lanes<V>>);
}

}  // namespace detail

template <int N> LITZ_FN Vec<float, N> sin(Vec<float, N> x) {
  auto near = where(x == Vec<float, N>(0.0f), x, detail::sin_quarter(x, 0));
  return detail::with_far<wide::Sin>(x, near);
}
template <int N> LITZ_FN Vec<float, N> cos(Vec<float, N> x) {
  return detail::with_far<wide::Cos>(x, detail::sin_quarter(x, 1));
}
template <int N> LITZ_FN Vec<float, N> tan(Vec<float, N> x) {
  auto near = where(x == Vec<float, N>(0.0f), x, detail::tan_quarter(x));
  return detail::with_far<wide::Tan>(x, near);
}
template <int N> LITZ_FN Vec<float, N> asin(Vec<float, N> x) { return detail::asin_of(x); }
template <int N> LITZ_FN Vec<float, N> acos(Vec<float, N> x) { return detail::acos_of(x); }
template <int N> LITZ_FN Vec<float, N> atan(Vec<float, N> x) { return detail::atan_of(x); }
LITZ_SCALAR_1_(float, sin)
LITZ_SCALAR_1_(float, cos)
LITZ_SCALAR_1_(float, tan)
LITZ_SCALAR_1_(float, asin)
LITZ_SCALAR_1_(float, acos)
LITZ_SCALAR_1_(float, atan)

}  // namespace litz
