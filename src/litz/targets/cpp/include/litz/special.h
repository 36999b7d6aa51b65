// erfc, erfinv, digamma and lgamma of float, computed in double (see wide.h).
#pragma once
#include <litz/math64.h>
#include <litz/rare.h>
#include <litz/wide.h>

namespace litz {
namespace wide {

template <class D> LITZ_FN D erfc(D x) {
  D a = detail::min2(D(10.5), abs(x));
  D u = (a - D(4.0)) / (a + D(4.0));
  D scaled = poly(u, 0x1.18932bf08e630p-3, -0x1.09492273736e3p-2, 0x1.bff01a5f39a29p-3,
                  -0x1.506666f7707b5p-3, 0x1.be502c552e8d5p-4, -0x1.027d56f9f6b19p-4,
                  0x1.0066dd35fd90ep-5, -0x1.a4df00e7051a1p-7, 0x1.0a189fbaa9b62p-8,
                  -0x1.a2e07072ebd4ap-11, -0x1.6d42b4db43313p-16, 0x1.4862883eef391p-14,
                  -0x1.86c23dbd02bb6p-16, -0x1.59591bf66b2d9p-20, 0x1.3dd594a71ddf1p-18,
                  0x1.f1fc116b93d64p-21);
  D r = scaled * wide::exp(-a * a);
  return where(x < D(0.0), D(2.0) - r, r);
}

// erfinv(x) / x as a function of w = -log(1 - x^2); of w for small ones, of sqrt(w) above.
template <class D> LITZ_FN D erfinv(D x) {
  D w = -wide::log(detail::max2(D(0x1p-60), (D(1.0) - x) * (D(1.0) + x)));
  D c = w - D(2.5);
  D central = poly(c, 0x1.805c5cff94d32p+0, 0x1.f91e8b466d8cbp-3, -0x1.11c3e1eca9f9fp-8,
                   -0x1.486685ea48e7fp-10, 0x1.c9bb8d2d7ab33p-13, -0x1.4cd7be9331756p-18,
                   -0x1.cbda8261ffc25p-19, 0x1.f3c01344b90cap-22, 0x1.1b3f5ee28ee01p-26,
                   -0x1.2c4c5dc1bbf6ep-27, 0x1.de69e890b0325p-32);
  D t = sqrt(w) - D(3.0);
  D tail = poly(t, 0x1.6a9efbe264662p+1, 0x1.006dca31238b7p+0, 0x1.357fa590a2a39p-7,
                -0x1.f4e6d948e6e99p-8, 0x1.74d6c6c6e9499p-8, -0x1.d356f3fbc0cd5p-9,
                0x1.819721c6809f8p-10, -0x1.ff5bc23f555cdp-14, -0x1.1de56002fd446p-12,
                0x1.5151a086beb2ap-13, -0x1.0409f5b7fe79ap-15);
  D r = x * where(w < D(5.0), central, tail);
  r = where(abs(x) == D(1.0), x * D(inf64), r);
  return where(abs(x) <= D(1.0), r, D(nan64));
}

// log |gamma(x)|, lanes near its zeros below 0 left to others: (y - 1) (y - 2) times a polynomial on
// 1 .. 3, to which the recurrence leads from 0 and from 6 on, and Stirling's series above.
template <class D> LITZ_FN D lgamma(D x) {
  const D zero(0.0), one(1.0);
  D a = abs(x), y = a, product = one;
  LITZ_UNROLL
  for (int i = 0; i < 3; i++) {
    auto above = y >= D(3.0);
    y = where(above, y - one, y);
    product = where(above, product * y, product);
  }
  auto below = a < one, series = a >= D(6.0);
  y = where(below, y + one, y);
  D l = wide::log(where(below | series, a, product));
  D p = poly(y - D(2.0), 0x1.b0ee6072136a4p-2, -0x1.9ae65094189a5p-4, 0x1.0e0c9dbfca2ffp-5,
             -0x1.95ce31c328b83p-7, 0x1.479771e6d43c7p-8, -0x1.144dcea9146c2p-9,
             0x1.dfdec5241d420p-11, -0x1.aa0ccd0b0c5dbp-12, 0x1.7fdb9fdd9a065p-13,
             -0x1.54624ef2143ddp-14, 0x1.34e6290c92e0bp-15, -0x1.62755cfefba70p-16,
             0x1.5c05352d4198ep-17, -0x1.e3eb07ecd6be1p-22, -0x1.fc6083f3ee4c6p-24,
             -0x1.4a246838f72c5p-19, 0x1.4eb16c91df0bap-20);
  D r = mad((y - one) * (y - D(2.0)), p, where(below, -l, l));
  D w = one / a;
  D s = poly(w * w, 0x1.555555544923dp-4, -0x1.6c1682006a409p-9, 0x1.9f97a3752f998p-11,
             -0x1.1ee13e41932a3p-11);
  D half_log_2pi_less_half = D(0x1.acfe390c97d6ap-2);
  r = where(series, mad(a - D(0.5), l - one, mad(s, w, half_log_2pi_less_half)), r);
  auto negative = x < zero;
  if (hany(negative)) {  // gamma(x) gamma(-x) = -pi / (x sin(pi x))
    D part = abs(a - round(a));
    auto outer = part > D(0.25);
    D angle = D(pi) * where(outer, D(0.5) - part, part), z = angle * angle;
    D sine = where(outer, cos_poly(z), sin_poly(angle, z));
    D mirrored = wide::log(D(pi) / (a * sine)) - r;
    r = where(negative, where(part == zero, D(inf64), mirrored), r);
  }
  return where((a == zero) | (a == D(inf64)), D(inf64), r);
}

// The recurrence over ten steps, whose factors are u + k (9 - k) in pairs, then the asymptotic
// series; below 0 reflection. Lanes at 0 and near the zeros below it are left to others.
template <class D> LITZ_FN D digamma(D given) {
  auto negative = given < D(0.0);
  D x = where(negative, D(1.0) - given, given);
  D c = detail::min2(D(0x1p40), x), u = c * (c + D(9.0));
  D steps = (c + c + D(9.0)) * poly(u, 40320.0, 24352.0, 3924.0, 240.0, 5.0) / (u * poly(u, 40320.0, 12176.0, 1308.0, 60.0, 1.0));
  D z = x + D(10.0), w = D(1.0) / z;
  D s = poly(w * w, 0x1.55555555547f2p-4, -0x1.111110ec49104p-7, 0x1.040fbcb7d7821p-8,
             -0x1.10a87905ea374p-8, 0x1.ca71a238dbcc1p-8);
  D r = litz::log(z) - mad(s * w, w, w * D(0.5)) - steps;
  if (hany(negative)) {  // digamma(1 - x) = digamma(x) + pi / tan(pi x)
    D part = given - round(given), a = abs(part);
    auto outer = a > D(0.25);
    D angle = D(pi) * where(outer, D(0.5) - a, a), square = angle * angle;
    D sine = sin_poly(angle, square), cosine = cos_poly(square);
    D ratio = where(outer, sine, cosine) / where(outer, cosine, sine);
    D mirrored = r - D(pi) * where(part < D(0.0), -ratio, ratio);
    r = where(negative, where(part == D(0.0), D(nan64), mirrored), r);
  }
  return r;
}

}  // namespace wide

LITZ_WIDE_1_(erfc)
LITZ_WIDE_1_(erfinv)
template <int N> LITZ_FN Vec<float, N> lgamma(Vec<float, N> x) {
  using V = Vec<float, N>;
  V r = cast<float>(wide::lgamma(cast<double>(x)));
  return rare::but_where((x < V(0.0f)) & (abs(r) < V(0x1p-6f)), x, r, rare::by_lane<::lgamma, N>);
}
template <int N> LITZ_FN Vec<float, N> digamma(Vec<float, N> x) {
  using V = Vec<float, N>;
  V r = cast<float>(wide::digamma(cast<double>(x)));
  auto hard = (x == V(0.0f)) | ((x < V(0.0f)) & (abs(r) < V(0x1p-6f)));
  return rare::but_where(hard, x, r, rare::by_lane<rare::digamma, N>);
}
LITZ_SCALAR_1_(float, lgamma)
LITZ_SCALAR_1_(float, digamma)

}  // namespace litz
