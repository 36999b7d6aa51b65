// Elementary functions of float, within 1 ulp: exp, log and their kin, tanh, sigmoid, erf.
// Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/mathcore.h>

namespace litz {
namespace detail {

template <> struct Core<float> {
  static constexpr float inf = inf32, nan = nan32, exp_min = -104.0f, exp_max = 89.0f;
  static constexpr float expm1_top = 88.0f, tiny = 0x1p-30f, tanh_one = 10.0f;
  static constexpr float least_normal = 0x1p-126f, lift = 0x1p23f;
  static constexpr i32 sqrt_half_bits = 0x3f3504f3, mantissa = 23, bias = 127;
  static constexpr Base<float> base_e{0x1.62e4p-1f, 0x1.7f7d1cp-20f, 1.0f, 0.0f};
  static constexpr Base<float> base_2{1.0f, 0.0f, 0x1.715476p+0f, 0x1.4ae0cp-26f};
  static constexpr Base<float> base_10{0x1.344p-2f, 0x1.3509f8p-18f, 0x1.bcb7b2p-2f,
                                       -0x1.5b235ep-27f};

  // x = n ln2 + r + low
  template <class V> static LITZ_FN FineExpParts<V> reduce(V x) {
    V n = litz::round(x * V(0x1.715476p+0f));
    V s = mad(n, V(-0x1.62e4p-1f), x);  // exact: the constant has 15 bits
    V r = mad(n, V(-0x1.7f7d1cp-20f), s);
    return {n, r, mad(n, V(-0x1.7f7d1cp-20f), s - r), V(0.0f)};
  }
  template <class V> static LITZ_FN ExpParts<V> exp(V x) {
    auto e = reduce(x);
    V q = poly(e.r, 0x1p-1f, 0x1.555556p-3f, 0x1.5554e4p-5f, 0x1.110feep-7f, 0x1.6d5168p-10f,
               0x1.a273f2p-13f);
    return {e.n, mad(q * e.r, e.r, e.r)};
  }
  template <class V> static LITZ_FN FineExpParts<V> fine_exp(V x) {
    auto e = reduce(x);
    V q = poly(e.r, 0x1.555556p-3f, 0x1.5554e4p-5f, 0x1.110feep-7f, 0x1.6d5168p-10f,
               0x1.a273f2p-13f);
    V rr = e.r * e.r;
    return {e.n, e.r, mad(mad(e.r, e.r, -rr), V(0.5f), e.low), mad(q * e.r, rr, rr * V(0.5f))};
  }
  // log(1 + f) - f
  template <class V> static LITZ_FN V log_tail(V f) {
    V p = poly(f, 0x1.555546p-2f, -0x1.0p-2f, 0x1.99a546p-3f, -0x1.555f16p-3f, 0x1.232fe8p-3f,
               -0x1.fbc1e6p-4f, 0x1.e6f4eep-4f, -0x1.e04a3ap-4f, 0x1.16babcp-4f);
    V f2 = f * f;
    return mad(p * f, f2, f2 * V(-0.5f));
  }
};
using F32 = Core<float>;

}  // namespace detail

#define LITZ_MATH_(name, ...)                                                \
  template <int N> LITZ_FN Vec<float, N> name(Vec<float, N> x) { return __VA_ARGS__; } \
  LITZ_SCALAR_1_(float, name)
LITZ_MATH_(exp, detail::exp_of(x))
LITZ_MATH_(expm1, detail::expm1_of(x))
LITZ_MATH_(tanh, detail::tanh_of(x))
LITZ_MATH_(sigmoid, detail::sigmoid_of(x))
LITZ_MATH_(log, detail::log_of(x, detail::F32::base_e))
LITZ_MATH_(log2, detail::log_of(x, detail::F32::base_2))
LITZ_MATH_(log10, detail::log_of(x, detail::F32::base_10))
LITZ_MATH_(log1p, detail::log1p_of(x))
#undef LITZ_MATH_

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
  V large = V(1.0f) - detail::exp_in_range(-q, -q_low);
  return where(a < V(1.0f), small, copysign(large, x));
}
LITZ_SCALAR_1_(float, erf)

}  // namespace litz
