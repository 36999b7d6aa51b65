// Elementary functions of float: exp, log and their kin within 1 ulp, sigmoid within 2.5.
// Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/mathcore.h>

namespace litz {
namespace detail {

template <> struct Core<float> {
  static constexpr float inf = inf32, nan = nan32, exp_min = -104.0f, exp_max = 89.0f, exp_zero = -176.1f;
  static constexpr float expm1_top = 88.0f, tiny = 0x1p-30f, tanh_one = 10.0f;
  static constexpr float least_normal = 0x1p-126f, lift = 0x1p23f;
  static constexpr i32 sqrt_half_bits = 0x3f3504f3, mantissa = 23, bias = 127;
  static constexpr Base<float> base_e{0x1.62e4p-1f, 0x1.7f7d1cp-20f, 1.0f, 0.0f};
  static constexpr Base<float> base_2{1.0f, 0.0f, 0x1.715476p+0f, 0x1.4ae0cp-26f};
  static constexpr Base<float> base_10{0x1.344p-2f, 0x1.3509f8p-18f, 0x1.bcb7b2p-2f,
                                       -0x1.5b235ep-27f};

  // x = n ln2 + r + low
  template <class V> static LITZ_FN FineExpParts<V> reduce(V x) {
    V t = mad(x, V(0x1.715476p+0f), V(biased<float>)), n = t - V(biased<float>);
    V s = mad(n, V(-0x1.62e4p-1f), x);  // exact: the constant has 15 bits
    V r = mad(n, V(-0x1.7f7d1cp-20f), s);
    return {t, r, mad(n, V(-0x1.7f7d1cp-20f), s - r), V(0.0f)};
  }
  template <class V> static LITZ_FN ExpParts<V> exp(V x) {
    auto e = reduce(x);
    V rr = e.r * e.r;  // terms in pairs: of chains of all of them processors hold few vectors ready
    V low = mad(e.r, V(0x1.55549ep-3f), V(0x1.ffffeep-2f)), mid = mad(e.r, V(0x1.12327ap-7f), V(0x1.55642ep-5f));
    return {e.at, mad(mad(mad(V(0x1.61d48cp-10f), rr, mid), rr, low), rr, e.r)};
  }
  template <class V> static LITZ_FN FineExpParts<V> fine_exp(V x) {
    auto e = reduce(x);
    V q = poly(e.r, 0x1.555556p-3f, 0x1.5554e4p-5f, 0x1.110feep-7f, 0x1.6d5168p-10f,
               0x1.a273f2p-13f);
    V rr = e.r * e.r;
    return {e.at, e.r, mad(mad(e.r, e.r, -rr), V(0.5f), e.low), mad(q * e.r, rr, rr * V(0.5f))};
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

#if LITZ_LOOKUP
}  // namespace litz
#include <litz/logs.h>
namespace litz {
namespace detail {

// 2^(j / 16), as a sum.
static constexpr float root_of_2[] = {
    0x1p+0f, 0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f, 0x1.306fep+0f, 0x1.3dea64p+0f,
    0x1.4bfdaep+0f, 0x1.5ab07ep+0f, 0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f,
    0x1.9c4918p+0f, 0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f};
static constexpr float root_low[] = {
    0.0f, 0x1.9f3122p-25f, -0x1.c15742p-27f, 0x1.ceac48p-25f, 0x1.4636e2p-25f, 0x1.824684p-25f,
    -0x1.593abcp-25f, -0x1.5bd5ecp-27f, 0x1.9fcef4p-26f, -0x1.829fdp-25f, 0x1.15506ep-27f,
    0x1.51f848p-27f, -0x1.a94b14p-26f, -0x1.3d56b2p-27f, -0x1.822dbcp-27f, 0x1.52486cp-27f};

LITZ_FN hw::reg<float, 16> pick(const float (&from)[16], hw::reg<int, 16> which) {
  hw::reg<float, 16> all;
  __builtin_memcpy(&all, from, sizeof(all));
  return __builtin_ia32_permvarsf512_mask(all, which, all, (unsigned short)-1);
}

}  // namespace detail

// x = (n + j / 16) ln2 + r: 2^(n + j / 16) times a short polynomial of r.
template <int N> LITZ_FN Vec<float, N> exp(Vec<float, N> x) {
  return detail::by_registers([=](auto x) LITZ_LAMBDA {
    using V = decltype(x);
    const V zero(0.0f), to_sixteenths(0x1.8p19f);
    const auto gone = x < V(detail::F32::exp_min);
    x = where(gone, zero, detail::min2(V(detail::F32::exp_max), x));
    V t = mad(x, V(0x1.715476p+0f), to_sixteenths);
    V n = t - to_sixteenths;
    V r = mad(n, V(0x1.05c61p-29f), mad(n, V(-0x1.62e43p-1f), x));
    V p = mad(mad(r, V(0x1.55572ap-3f), V(0x1.00022ep-1f)), r * r, r);
    auto which = (hw::reg<int, 16>)t.v;
    V root = detail::pick(detail::root_of_2, which);
    V whole = root + mad(root, p, V(detail::pick(detail::root_low, which)));
    return where(gone, zero, V(hw::scale(whole.v, n.v)));  // which rounds n down
  }, x);
}
LITZ_SCALAR_1_(float, exp)
#endif

namespace detail {

// 1 / (1 + e^-x), or e^x / (1 + e^x) below 0
template <class V> LITZ_FN V float_sigmoid(V x) {
  const V one(1.0f);
  V e = exp(-abs(x));
  return quotient(where(x > V(0.0f), one, e), one + e);
}

}  // namespace detail

#if !LITZ_LOOKUP
LITZ_MATH_(float, exp, detail::exp_of(x))
#endif
LITZ_MATH_(float, expm1, detail::expm1_of(x))
LITZ_MATH_(float, sigmoid, detail::float_sigmoid(x))
#if LITZ_LOOKUP
LITZ_MATH_(float, log, detail::log_by_table(x, detail::log_base_e))
LITZ_MATH_(float, log2, detail::log_by_table(x, detail::log_base_2))
LITZ_MATH_(float, log10, detail::log_by_table(x, detail::log_base_10))
LITZ_MATH_(float, log1p, detail::log1p_by_table(x))
#else
LITZ_MATH_(float, log, detail::log_of(x, detail::F32::base_e))
LITZ_MATH_(float, log2, detail::log_of(x, detail::F32::base_2))
LITZ_MATH_(float, log10, detail::log_of(x, detail::F32::base_10))
LITZ_MATH_(float, log1p, detail::log1p_of(x))
#endif

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

}  // namespace litz
