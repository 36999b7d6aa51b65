// erf and erfc of double, within 2 ulp, and erfc of float.  Coefficients: tests/ops/minimax.py.
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
// (1 + 2 a) e^(a^2) erfc(a) of a >= 0.45, by u = (a - 3) / (a + 3); erfc is 0 from
// ``most`` on, and times 2^more no part of it is subnormal.
template <class T> struct Erfcx;
template <> struct Erfcx<double> {
  static constexpr double most = 27.3, less = 0x1p-200;
  static constexpr int more = 200;
  template <class V> static LITZ_FN Pair<V> scaled(V u) {
    return {poly(u,
      0x1.40c522d7e4987p+0, -0x1.15c084bb9e8d6p-3, -0x1.85a15c58a9b98p-5, 0x1.098366a5b38f7p-3,
      -0x1.e88b803a5d208p-4, 0x1.17ca28782fd62p-4, -0x1.8574c404573e8p-6, 0x1.4b884dbf5caa1p-9,
      0x1.ef1bd79a66881p-10, -0x1.98db3d8dd6a6ap-11, -0x1.b90ff6ea3249ep-14, 0x1.06587824b8414p-13,
      0x1.4b78bd1c7bfb9p-18, -0x1.51089ba0b82c5p-16, -0x1.79ad36342a4b5p-21, 0x1.ce5b4d96c4531p-19,
      0x1.4acb2bf2d5102p-22, -0x1.3574944c4df8bp-21, -0x1.827c453b2b27ap-24, 0x1.242e9bb1b5523p-24,
      0x1.8408c4a2641d0p-27), V(0.0)};
  }
};
template <> struct Erfcx<float> {
  static constexpr float most = 10.06f, less = 0x1p-64f;
  static constexpr int more = 64;
  template <class V> static LITZ_FN Pair<V> scaled(V u) {
    V p = poly(u, -0x1.15c08ap-3f, -0x1.85a176p-5f, 0x1.098422p-3f, -0x1.e88984p-4f, 0x1.17bbd8p-4f,
               -0x1.85d7d4p-6f, 0x1.5159cep-9f, 0x1.05f52ep-9f, -0x1.9d2a20p-11f, -0x1.1e2080p-12f);
    const V first(0x1.40c522p+0f), first_low(0x1.b1f0a8p-25f);
    V high = mad(u, p, first);
    return {high, mad(u, p, first - high) + first_low};
  }
};
// That as a sum, and about 1 / (1 + 2 a): a division serves both.
template <class V> struct ErfcxParts {
  V high, rest, low;
};
template <class V> LITZ_FN ErfcxParts<V> erfcx_parts(V a) {
  using T = elem<V>;
  V den = V(T(1)) + a + a, more = a + V(T(3)), inv = V(T(1)) / (den * more);
  auto f = Erfcx<T>::scaled((a - V(T(3))) * den * inv);
  return {f.high, f.low, more * inv};
}
template <class V> LITZ_FN V erfc_large(V a) {
  using T = elem<V>;
  using E = Erfcx<T>;
  a = min2(V(E::most), a);
  auto f = erfcx_parts(a);
  V square = a * a, twice = a + a, den = V(T(1)) + twice;
  auto e = exp_pair<E::more>(-square);
  V num = f.high * e.high, q = num * f.low;
  V low = mad(f.high, mad(-fma(a, a, -square), e.high, e.low), fma(f.high, e.high, -num));
  if constexpr (is_same<T, float>) low = mad(f.rest, e.high, low);
  return mad(mad(-q, twice - (den - V(T(1))), fma(-q, den, num) + low), f.low, q) * V(E::less);
}
template <class V> LITZ_FN V erf_of(V x) {
  V a = min2(V(6.0), abs(x)), small = erf_small(x);
  auto inner = a < V(1.0);
  if (hall(inner)) return small;
  auto f = erfcx_parts(a);
  return where(inner, small, copysign(V(1.0) - f.high * f.low * exp_of(-(a * a)), x));
}
template <class V> LITZ_FN V erfc_of(V x) {
  using T = elem<V>;
  V a = abs(x), r = erfc_large(a);
  V inner;
  if constexpr (is_same<T, float>)
    inner = mad(-x, poly(x * x, 0x1.06eba8p-3f, -0x1.81272ep-2f, 0x1.ce2360p-4f, -0x1.b63a40p-6f,
                         0x1.33e998p-8f), V(T(1)) - x);
  else
    inner = V(T(1)) - erf_small(x);
  return where(a < V(T(0.47)), inner, where(x < V(T(0)), V(T(2)) - r, r));
}

}  // namespace detail
LITZ_MATH_(double, erf, detail::erf_of(x))
LITZ_MATH_(double, erf_plus_one, decltype(x)(1.0) + detail::erf_of(x))
LITZ_MATH_(double, erfc, detail::erfc_of(x))

}  // namespace litz
