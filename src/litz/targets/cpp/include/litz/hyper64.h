// sinh, cosh, atanh and hypot of double, within 2 ulp.  Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/math64.h>

namespace litz {
namespace detail {

inline constexpr double hyper_top = 0x1.633ce8fb9f87dp+9;  // up to here cosh is finite
template <class V> LITZ_FN V sinh_of(V x) {
  V a = abs(x), z = x * x;
  auto half = exp_pair<-1>(a);
  V tail = V(0.25) / half.high, whole = half.high - tail;
  V large = whole + ((half.high - whole) - tail + half.low);
  V p = poly(z, 0x1.5555555555556p-3, 0x1.1111111111040p-7, 0x1.a01a01a0318c3p-13,
             0x1.71de3a4058655p-19, 0x1.ae646b4b21f1bp-26, 0x1.6118e07ffded2p-33,
             0x1.b52e61175a1d4p-41);
  V r = where(a < V(1.0), mad(p * z, a, a), large);
  return copysign(where(a > V(hyper_top), V(inf64), r), x);
}
template <class V> LITZ_FN V cosh_of(V x) {
  V a = abs(x);
  auto half = exp_pair<-1>(a);
  V tail = V(0.25) / half.high, whole = half.high + tail;
  return where(a > V(hyper_top), V(inf64), whole + ((half.high - whole) + tail + half.low));
}
template <class V> LITZ_FN V atanh_of(V x) {
  V a = abs(x);
  return copysign(log1p_of((a + a) / (V(1.0) - a)) * V(0.5), x);
}

}  // namespace detail

LITZ_MATH_(double, sinh, detail::sinh_of(x))
LITZ_MATH_(double, cosh, detail::cosh_of(x))
LITZ_MATH_(double, atanh, detail::atanh_of(x))
template <int N> LITZ_FN Vec<double, N> hypot(Vec<double, N> x, Vec<double, N> y) {
  using V = Vec<double, N>;
  V large = detail::max2(abs(x), abs(y)), one(1.0);
  auto over = large > V(0x1p500), under = large < V(0x1p-480);
  V scale = where(over, V(0x1p-600), where(under, V(0x1p600), one));
  V back = where(over, V(0x1p600), where(under, V(0x1p-600), one));
  V u = x * scale, v = y * scale, uu = u * u, vv = v * v;
  auto square = detail::normalise(detail::max2(uu, vv), detail::min2(uu, vv));
  V low = square.low + (mad(u, u, -uu) + mad(v, v, -vv));
  V root = sqrt(square.high), rest = mad(-root, root, square.high) + low;
  root = root + rest * V(0.5) / detail::max2(V(0x1p-600), root);
  auto infinite = (abs(x) == V(inf64)) | (abs(y) == V(inf64));
  return where(infinite, V(inf64), root * back);
}
LITZ_FORMS_2_(double, hypot)

}  // namespace litz
