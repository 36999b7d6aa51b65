// erf and erfc of double, within 2 ulp.  Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/math64.h>

namespace litz {
namespace detail {

template <class V> LITZ_FN V erf_small(V x) {  // |x| <= 1
  V p = poly(x * x,
    0x1.06eba8214db68p-3, -0x1.812746b0379b4p-2, 0x1.ce2f21a040a5ep-4, -0x1.b82ce311f49a9p-6,
    0x1.565bccf8bd912p-8, -0x1.c02db035571f1p-11, 0x1.f9a2ba5a675fap-14, -0x1.f4ca4de40ff53p-17,
    0x1.b97ffcd589cc3p-20, -0x1.5c08c58c8ded0p-23, 0x1.d7298f0290a90p-27, -0x1.abe1004c263f1p-31);
  return mad(p, x, x);
}
// (1 + 2 a) e^(a^2) erfc(a) of a >= 0.45, and about 1 / (1 + 2 a): a division serves both.
template <class V> LITZ_FN Pair<V> erfcx_parts(V a) {
  V den = V(1.0) + a + a, more = a + V(3.0), inv = V(1.0) / (den * more);
  return {poly((a - V(3.0)) * den * inv,
      0x1.40c522d7e4987p+0, -0x1.15c084bb9e8d6p-3, -0x1.85a15c58a9b98p-5, 0x1.098366a5b38f7p-3,
      -0x1.e88b803a5d208p-4, 0x1.17ca28782fd62p-4, -0x1.8574c404573e8p-6, 0x1.4b884dbf5caa1p-9,
      0x1.ef1bd79a66881p-10, -0x1.98db3d8dd6a6ap-11, -0x1.b90ff6ea3249ep-14, 0x1.06587824b8414p-13,
      0x1.4b78bd1c7bfb9p-18, -0x1.51089ba0b82c5p-16, -0x1.79ad36342a4b5p-21, 0x1.ce5b4d96c4531p-19,
      0x1.4acb2bf2d5102p-22, -0x1.3574944c4df8bp-21, -0x1.827c453b2b27ap-24, 0x1.242e9bb1b5523p-24,
      0x1.8408c4a2641d0p-27), more * inv};
}
template <class V> LITZ_FN V erfc_large(V a) {
  a = min2(V(27.3), a);
  auto f = erfcx_parts(a);
  V square = a * a, twice = a + a, den = V(1.0) + twice;
  auto e = exp_pair<200>(-square);  // so that no part is subnormal
  V num = f.high * e.high, q = num * f.low;
  V low = mad(f.high, mad(-fma(a, a, -square), e.high, e.low), fma(f.high, e.high, -num));
  return mad(mad(-q, twice - (den - V(1.0)), fma(-q, den, num) + low), f.low, q) * V(0x1p-200);
}
template <class V> LITZ_FN V erf_of(V x) {
  V a = min2(V(6.0), abs(x)), small = erf_small(x);
  auto inner = a < V(1.0);
  if (hall(inner)) return small;
  auto f = erfcx_parts(a);
  return where(inner, small, copysign(V(1.0) - f.high * f.low * exp_of(-(a * a)), x));
}
template <class V> LITZ_FN V erfc_of(V x) {
  V a = abs(x), r = erfc_large(a);
  return where(a < V(0.5), V(1.0) - erf_small(x), where(x < V(0.0), V(2.0) - r, r));
}

}  // namespace detail
LITZ_MATH_(double, erf, detail::erf_of(x))
LITZ_MATH_(double, erfc, detail::erfc_of(x))

}  // namespace litz
