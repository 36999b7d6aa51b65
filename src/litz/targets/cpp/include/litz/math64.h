// Elementary functions of double, within 2 ulp; after the same algorithms as math.h.
#pragma once
#include <litz/mathcore.h>

namespace litz {
namespace detail {

template <> struct Core<double> {
  static constexpr double inf = inf64, nan = nan64, exp_min = -746.0, exp_max = 710.0, exp_zero = -1418.3;
  static constexpr double expm1_top = 709.0, tiny = 0x1p-60, tanh_one = 22.0;
  static constexpr double least_normal = 0x1p-1022, lift = 0x1p52;
  static constexpr i64 sqrt_half_bits = 0x3fe6a09e667f3bcd, mantissa = 52, bias = 1023;
  static constexpr Base<double> base_e{0x1.62e42feep-1, 0x1.a39ef35793c76p-33, 1.0, 0.0};
  static constexpr Base<double> base_2{1.0, 0.0, 0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56};
  static constexpr Base<double> base_10{0x1.3441350800000p-2, 0x1.f79fef311f12bp-34, 0x1.bcb7b1526e50ep-2,
                                        0x1.95355baaafad3p-57};

  // x = n ln2 + r + low
  template <class V> static LITZ_FN FineExpParts<V> reduce(V x) {
    V t = mad(x, V(0x1.71547652b82fep+0), V(biased<double>)), n = t - V(biased<double>);
    V s = mad(n, V(-0x1.62e42feep-1), x);  // exact: the constant has 32 bits
    V r = mad(n, V(-0x1.a39ef35793c76p-33), s);
    return {t, r, mad(n, V(-0x1.a39ef35793c76p-33), s - r), V(0.0)};
  }
  // (e^r - 1 - r - r^2 / 2) / r^3
  template <class V> static LITZ_FN V exp_tail(V r) {
    return poly(r, 0x1.555555555555cp-3, 0x1.5555555555558p-5, 0x1.111111110e9dep-7,
                0x1.6c16c16c15000p-10, 0x1.a01a01b455d91p-13, 0x1.a01a01ad7d6b0p-16,
                0x1.71ddee3ecd7a3p-19, 0x1.27e4cc1405417p-22, 0x1.af6ee586ebd03p-26,
                0x1.1f8bd99d1b7c7p-29);
  }
  template <class V> static LITZ_FN ExpParts<V> exp(V x) {
    auto e = reduce(x);
    V q = mad(exp_tail(e.r), e.r, V(0.5));
    return {e.at, mad(q * e.r, e.r, e.r)};
  }
  template <class V> static LITZ_FN FineExpParts<V> fine_exp(V x) {
    auto e = reduce(x);
    V rr = e.r * e.r;
    return {e.at, e.r, mad(mad(e.r, e.r, -rr), V(0.5), e.low),
            mad(exp_tail(e.r) * e.r, rr, rr * V(0.5))};
  }
  // log(1 + f) - f: with s = f / (2 + f), log(1 + f) = 2 atanh(s) = f - f^2/2 + s (f^2/2 + R(s^2))
  template <class V> static LITZ_FN V log_tail(V f) {
    V s = f / (V(2.0) + f);
    V z = s * s;
    V p = poly(z, 0x1.5555555555554p-1, 0x1.999999999a246p-2, 0x1.24924923e972ap-2,
               0x1.c71c7297f5148p-3, 0x1.745ccd9b316b0p-3, 0x1.3b23201080e3fp-3,
               0x1.0f2bed5c4bcb6p-3, 0x1.10f10b8c60c25p-3);
    V half = f * f * V(0.5);
    return mad(s, mad(p, z, half), -half);
  }
};
using F64 = Core<double>;

}  // namespace detail

LITZ_MATH_(double, exp, detail::exp_of(x))
LITZ_MATH_(double, expm1, detail::expm1_of(x))
LITZ_MATH_(double, tanh, detail::tanh_of(x))
LITZ_MATH_(double, sigmoid, detail::sigmoid_of(x))
LITZ_MATH_(double, log, detail::log_of(x, detail::F64::base_e))
LITZ_MATH_(double, log2, detail::log_of(x, detail::F64::base_2))
LITZ_MATH_(double, log10, detail::log_of(x, detail::F64::base_10))
LITZ_MATH_(double, log1p, detail::log1p_of(x))

template <int N> LITZ_FN Vec<double, N> exp2(Vec<double, N> x) {
  using V = Vec<double, N>;
  x = detail::clamp(x, -1076.0, 1025.0);
  V n = round(x);
  V r = x - n;
  V p = detail::poly(r, 0x1.62e42fefa39efp-1, 0x1.ebfbdff82c58fp-3, 0x1.c6b08d704a183p-5,
                     0x1.3b2ab6fba4d80p-7, 0x1.5d87fe7888b62p-10, 0x1.430912f8a93b7p-13,
                     0x1.ffcbfcdbb0815p-17, 0x1.62c021635f524p-20, 0x1.b524224fbe196p-24,
                     0x1.e4d2017c60869p-28, 0x1.eafe8868eac99p-32, 0x1.c0e2e02dac2bfp-36);
  return detail::ldexp(mad(p, r, V(1.0)), n);
}
LITZ_SCALAR_1_(double, exp2)

}  // namespace litz
