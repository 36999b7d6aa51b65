// sin, cos, tan, their inverses and atan2 of double (see trigcore.h), sines and tangents of large
// arguments by the C library.  Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/trigcore.h>

namespace litz {
namespace detail {

template <> struct Circle<double> {
  static constexpr double per_turn = 0x1.45f306dc9c883p-1;
  static constexpr double least = 0x1p-900, half_pi = 0x1.921fb54442d18p+0, half_pi_low = 0x1.1a62633145c07p-54;
#if LITZ_FMA
  static constexpr double turn[] = {half_pi, half_pi_low, -0x1.f1976b7ed8fbcp-110}, far_from = 0x1p30;
#else  // of so few bits that products with them have no error
  static constexpr double turn[] = {0x1.921fb5p+0, 0x1.110b46p-26, half_pi_low}, far_from = 0x1p26;
#endif
  template <class V> static LITZ_FN V sin(V z) {
    return poly(z, -0x1.5555555555547p-3, 0x1.111111110f59ap-7, -0x1.a01a019bb47d0p-13,
                0x1.71de3525c38f1p-19, -0x1.ae5e25121cc97p-26, 0x1.5d7fd48b3625ap-33);
  }
  template <class V> static LITZ_FN V cos(V z) {
    return poly(z, 0x1.555555555554ap-5, -0x1.6c16c16c14df3p-10, 0x1.a01a019c593ffp-16,
                -0x1.27e4f7c9bae0bp-22, 0x1.1ee9bff82d070p-29, -0x1.8f97add31f3b2p-37);
  }
  template <class V> static LITZ_FN V asin(V z) {
    return poly(z, 0x1.5555555555577p-3, 0x1.333333332e1d7p-4, 0x1.6db6db72067c3p-5,
                0x1.f1c71a9a612bcp-6, 0x1.6e8bde357e3ffp-6, 0x1.1c49fd309612cp-6,
                0x1.ca1e4bde65f16p-7, 0x1.759020e3f57d1p-7, 0x1.60fff6c6f49f2p-7,
                0x1.e995aa7ea282cp-9, 0x1.627f8e45fcf05p-6, -0x1.5667f5d274d99p-6,
                0x1.0ac783d4e1577p-5);
  }
  template <class V> static LITZ_FN V atan(V z) {
    return poly(z, -0x1.5555555555513p-2, 0x1.9999999990ccap-3, -0x1.249249214a0f0p-3,
                0x1.c71c708b3793fp-4, -0x1.745cf44eecf12p-4, 0x1.3b1136fd49c9fp-4,
                -0x1.10f2e0b746017p-4, 0x1.dfe674938dd62p-5, -0x1.a38c0e2ded5a2p-5,
                0x1.56d59c72d6b5dp-5, -0x1.c11f4f26f7471p-6, 0x1.4b051bba8711ap-7);
  }
};
template <class V> LITZ_FN V tan_by_quotient(V x) {
  auto q = quarter_of(abs(x));
  V z = q.r * q.r;
  auto c = cos_pair(q, z), s = sin_pair(q, z, c);
  auto odd = odd_quarter(q, 0);
  auto num = normalise(where(odd, c.high, s.high), where(odd, c.low, s.low));
  auto den = normalise(where(odd, s.high, c.high), where(odd, s.low, c.low));
  V inv = inverse(den.high), t = num.high * inv;
  return turned<0>(mad(mad(-t, den.low, mad(-t, den.high, num.high) + num.low), inv, t), q.quarter, x);
}
template <double F(double), class V> LITZ_FN V with_far(V x, V near) {
  auto hard = abs(x) > V(Circle<double>::far_from);
  if (!LITZ_FMA)  // near multiples of pi/2 its parts are too few
    hard = hard | ((abs(x) > V(1.0)) & ((abs(near) < V(0x1p-25)) | (abs(near) > V(0x1p25))));
  return LITZ_UNLIKELY(hany(hard)) ? rare::by_lane<F>(hard, near, x) : near;
}

}  // namespace detail

LITZ_MATH_(double, sin, detail::with_far<::sin>(x, detail::sin_quarter(x, detail::quarter_of(abs(x)), 0)))
LITZ_MATH_(double, cos, detail::with_far<::cos>(x, detail::sin_quarter(x, detail::quarter_of(abs(x)), 1)))
LITZ_MATH_(double, tan, detail::with_far<::tan>(x, detail::tan_by_quotient(x)))
LITZ_MATH_(double, asin, detail::asin_of(x))
LITZ_MATH_(double, acos, detail::acos_of(x))
LITZ_MATH_(double, atan, detail::atan_by_quotient(x))
template <int N> LITZ_FN Vec<double, N> atan2(Vec<double, N> y, Vec<double, N> x) {
  return detail::atan2_of(y, x);
}
LITZ_FORMS_2_(double, atan2)

}  // namespace litz
