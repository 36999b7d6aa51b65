// Functions of float that run in double: the range reduction, the cancellations and the products
// that a float would lose cost nothing there, and one rounding at the end leaves about 0.5 ulp.
//
// The kernels below are good to some 2^-35, which is all that a float can see.
// Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/poly.h>

namespace litz {
namespace wide {

using detail::clamp;
using detail::ldexp;
using detail::poly;

inline constexpr double pi = 0x1.921fb54442d18p+1;

// D: a Vec of double throughout.
template <class D> LITZ_FN D exp(D x) {
  D n = round(x * D(0x1.71547652b82fep+0));
  D r = mad(n, D(-0x1.62e42fefa39efp-1), x);
  D q = poly(r, 0x1.ffffffffedbefp-2, 0x1.5555557ffdb52p-3, 0x1.55555582d3f8bp-5,
             0x1.11109f2bae6efp-7, 0x1.6c1633b42dc19p-10, 0x1.a189d5ef7c000p-13,
             0x1.a176ba7661439p-16);
  return ldexp(D(1.0) + mad(q * r, r, r), n);
}
#if LITZ_LOOKUP
// Of x = 2^e m: inverses of few bits per 16th of m in 3/4 .. 3/2, from 1 on, and minus their
// logarithms; powers of two.
static constexpr double log2_inverses[] = {
    1.0, 0.9140625, 0.8671875, 0.8203125, 0.78125, 0.7421875, 0.7109375, 0.6796875, 1.3046875,
    1.2578125, 1.2109375, 1.1640625, 1.125, 1.0859375, 1.046875, 1.0};
static constexpr double log2_values[] = {
    0.0, 0x1.097e38ce60649p-3, 0x1.a5094b54d2828p-3, 0x1.249cd2b13cd6cp-2, 0x1.6cb0f6865c8eap-2,
    0x1.b877c57b1b070p-2, 0x1.f804ae8d0cd02p-2, 0x1.1d368296b5255p-1, -0x1.88e9c72e0b226p-2,
    -0x1.52dbdfc4c96b3p-2, -0x1.1ac05b291f070p-2, -0x1.c0db6cdd94deep-3, -0x1.5c01a39fbd688p-3,
    -0x1.e72ec117fa5b2p-4, -0x1.0eb389fa29f9bp-4, 0.0};
static constexpr double exp2_values[] = {
    1.0, 0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.2387a6e756238p+0, 0x1.306fe0a31b715p+0,
    0x1.3dea64c123422p+0, 0x1.4bfdad5362a27p+0, 0x1.5ab07dd485429p+0, 0x1.6a09e667f3bcdp+0,
    0x1.7a11473eb0187p+0, 0x1.8ace5422aa0dbp+0, 0x1.9c49182a3f090p+0, 0x1.ae89f995ad3adp+0,
    0x1.c199bdd85529cp+0, 0x1.d5818dcfba487p+0, 0x1.ea4afa2a490dap+0};
template <class I> LITZ_FN Vec<double, 8> pick(const double (&from)[16], I which) {
  return Vec<double, 8>(__builtin_ia32_vpermt2varpd512_mask(
      (hw::reg<long long, 8>)which.v, load<8>(from).v, load<8>(from + 8).v, (unsigned char)-1));
}
struct Mantissa {
  Vec<double, 8> m, e;  // x = 2^e m, m in 3/4 .. 3/2
};
LITZ_FN Mantissa mantissa(Vec<double, 8> x) {
  const hw::reg<double, 8> none{};
  auto m = __builtin_ia32_getmantpd512_mask(x.v, 0xf, none, (unsigned char)-1, 4);
  return {m, __builtin_ia32_getexppd512_mask(x.v, none, (unsigned char)-1, 4) -
                 __builtin_ia32_getexppd512_mask(m, none, (unsigned char)-1, 4)};
}
template <class D> LITZ_FN D exp2(D x) {
  return detail::by_registers([](auto x) LITZ_LAMBDA {
    using V = decltype(x);
    V sixteenths = x + V(0x1.8p48), n = sixteenths - V(0x1.8p48), r = x - n;
    V p = pick(exp2_values, sixteenths);
    V q = poly(r, 0x1.62e42fec39c77p-1, 0x1.ebfbdff5f7073p-3, 0x1.c6b3f746e8377p-5,
               0x1.3b2c7b3ca5d5bp-7);
    return ldexp(mad(q * r, p, p), n);
  }, x);
}
// Of negative numbers nan.
template <class D> LITZ_FN D log2_any(D x) {
  return detail::by_registers([](auto x) LITZ_LAMBDA {
    using V = decltype(x);
    auto [m, e] = mantissa(x);
    auto which = ibits(m) >> 48;
    V r = mad(m, pick(log2_inverses, which), V(-1.0));
    V p = poly(r, 0x1.71547652b92b8p+0, -0x1.715476517f720p-1, 0x1.ec709cf7ab839p-2,
               -0x1.715496db699b9p-2, 0x1.277e14261468dp-2, -0x1.ec1311e796e6ap-3,
               0x1.811fcfd39684dp-3);
    return mad(p, r, e + pick(log2_values, which));
  }, x);
}
template <class D> LITZ_FN D log(D x) { return log2_any(x) * D(0x1.62e42fefa39efp-1); }
#else
template <class D> LITZ_FN D exp2(D x) {
  D n = round(x);
  D r = x - n;
  D q = poly(r, 0x1.62e42fefa3a19p-1, 0x1.ebfbdff81af25p-3, 0x1.c6b08d703cf01p-5,
             0x1.3b2ab72566630p-7, 0x1.5d87fe9d692d6p-10, 0x1.430895bbd9dadp-13,
             0x1.ffcb542ea7811p-17, 0x1.63e8d842b8601p-20, 0x1.b6759baaf843ep-24);
  return ldexp(mad(q, r, D(1.0)), n);
}
// log(x) * per_e, for normal positive x.
template <class D> LITZ_FN D log(D x, double per_e, double per_2) {
  using I = Vec<i64, lanes<D>>;
  using U = Vec<u64, lanes<D>>;
  I b = ibits(x);
  U biased = bitcast<u64>(b) + U(0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
  I e = bitcast<i64>(biased >> 52) - I(1023);
  D f = bitcast<double>(b - (e << 52)) - D(1.0);
  D s = f / (D(2.0) + f);
  D z = s * s;
  D p = poly(z, 0x1.555555562327bp-1, 0x1.9999969f50a6ap-2, 0x1.2494155700aaap-2,
             0x1.c62a1f85ed30fp-3, 0x1.9121bb65cecf3p-3);
  D l = mad(p * z, s, s + s);
  return mad(detail::small_float<double>(e), D(per_2), l * D(per_e));
}
template <class D> LITZ_FN D log(D x) { return wide::log(x, 1.0, 0x1.62e42fefa39efp-1); }
// Of positive finite numbers, zero (-inf) and infinity.
template <class D> LITZ_FN D log2_any(D x) {
  D r = wide::log(x, 0x1.71547652b82fep+0, 1.0);
  r = where(x == D(0.0), D(-inf64), r);
  return where(x < D(inf64), r, x);
}
#endif

template <class D> LITZ_FN D sin_poly(D r, D z) {
  D p = poly(z, -0x1.5555555555167p-3, 0x1.1111110fd2b19p-7, -0x1.a019fd986844bp-13,
             0x1.71d9a7ce73386p-19, -0x1.aa275684a6c04p-26);
  return mad(p * z, r, r);
}
template <class D> LITZ_FN D cos_poly(D z) {
  D p = poly(z, -0x1.ffffffffffffap-2, 0x1.55555555540a9p-5, -0x1.6c16c1691259cp-10,
             0x1.a019fc6fda95ep-16, -0x1.27e0f0653cb37p-22, 0x1.1c04a7c02ba62p-29);
  return mad(p, z, D(1.0));
}
template <class D> LITZ_FN D sinh(D x) {
  D a = abs(x), z = x * x;
  D e = wide::exp(clamp(a, 0.0, 200.0));
  D large = (e - D(1.0) / e) * D(0.5);
  D p = poly(z, 0x1.555555555820fp-3, 0x1.1111110855ff1p-7, 0x1.a01a1312ba9c7p-13,
             0x1.71d207c7eb29cp-19, 0x1.b557fe371b52bp-26);
  return copysign(where(a < D(1.0), mad(p * z, a, a), large), x);
}
template <class D> LITZ_FN D cosh(D x) {
  D e = wide::exp(clamp(abs(x), 0.0, 200.0));
  return (e + D(1.0) / e) * D(0.5);
}
template <class D> LITZ_FN D asinh(D x) {
  D a = abs(x), z = x * x;
  D large = wide::log(a + sqrt(z + D(1.0)));
  D small = mad(z * a, D(-1.0 / 6), a);
  D r = where(a < D(0x1p-9), small, large);
  return copysign(where(a < D(inf64), r, a), x);
}
template <class D> LITZ_FN D acosh(D x) {
  D r = wide::log(x + sqrt((x - D(1.0)) * (x + D(1.0))));
  r = where(x < D(inf64), r, x);
  return where(x < D(1.0), D(nan64), r);
}
template <class D> LITZ_FN D hypot(D x, D y) {
  D r = sqrt(x * x + y * y);
  auto infinite = (abs(x) == D(inf64)) | (abs(y) == D(inf64));
  return where(infinite, D(inf64), r);
}

// |x|^y of finite numbers, x not 0.
template <class D> LITZ_FN D pow_of_size(D x, D y) {
  return wide::exp2(clamp(y * log2_any(abs(x)), -400.0, 400.0));
}
// x^y of r = |x|^y, which is right where both are finite and x is not 0.
template <class V> LITZ_FN V signed_pow(V x, V y, V r) {
  using T = elem<V>;
  const V zero = V(T(0)), one = V(T(1)), inf = V(T(inf64)), nan = V(T(nan64));
  V a = abs(x), half = y * V(T(0.5));
  auto size = (a > zero) & (a < inf) & (abs(y) < inf);
  r = where(size, r, where((a > one) ^ (y > zero), zero, inf));
  r = where(a == one, one, r);
  auto whole = trunc(y) == y;
  auto odd = whole & (trunc(half) != half) & (abs(y) < inf);
  r = where(signbit(x) & odd, -r, r);
  r = where((x < zero) & !whole & (a < inf), nan, r);
  r = where((x == x) & (y == y), r, nan);
  return where((x == one) | (y == zero), one, r);
}

}  // namespace wide

#define LITZ_WIDE_1_(name)                                              \
  template <int N> LITZ_FN Vec<float, N> name(Vec<float, N> x) {        \
    return cast<float>(wide::name(cast<double>(x)));                    \
  }                                                                     \
  LITZ_SCALAR_1_(float, name)
#define LITZ_WIDE_2_(name)                                                        \
  template <int N> LITZ_FN Vec<float, N> name(Vec<float, N> x, Vec<float, N> y) { \
    return cast<float>(wide::name(cast<double>(x), cast<double>(y)));             \
  }                                                                               \
  LITZ_FORMS_2_(float, name)
LITZ_WIDE_1_(sinh)
LITZ_WIDE_1_(cosh)
LITZ_WIDE_1_(asinh)
LITZ_WIDE_1_(acosh)
// In float: n ln2 / 2 + atanh(s), where (1 + a) / (1 - a) = 2^n (1 + s) / (1 - s), |s| < 0.43.
template <int N> LITZ_FN Vec<float, N> atanh(Vec<float, N> x) {
  using V = Vec<float, N>;
  using I = Vec<i32, N>;
  const V one(1.0f), zero(0.0f);
  V a = abs(x), less = one - a, more = one + a;
  I exponent = ibits(less * V(1.25f)) >> 23;
  V n = detail::small_float<float>(I(127) - exponent), by = bitcast<float>((I(254) - exponent) << 23);
  V num = mad(-by, less, more), den = mad(by, less, more), inv = one / den, s = num * inv;
  V more_low = a - (more - one), scaled_low = by * ((one - less) - a);
  V num_low = mad(-by, less, more - num) + (more_low - scaled_low);
  V den_low = mad(by, less, more - den) + (more_low + scaled_low);
  V low = mad(-s, den_low, mad(-s, den, num) + num_low) * inv;
  auto small = n == zero;
  s = where(small, a, s);
  low = mad(n, V(0x1.7f7d1cp-21f), where(small, zero, low));
  V z = s * s, head = n * V(0x1.62e4p-2f), sum = head + s;
  V p = detail::poly(z, 0x1.555586p-2f, 0x1.997d6ep-3f, 0x1.273534p-3f, 0x1.90f034p-4f, 0x1.32606p-3f);
  V r = copysign(sum + mad(p, z * s, (s - (sum - head)) + low), x);
  auto inside = less > zero;
  return LITZ_LIKELY(hall(inside)) ? r : where(inside, r, x * rsqrt(less));
}
LITZ_SCALAR_1_(float, atanh)
LITZ_WIDE_2_(hypot)
template <int N> LITZ_FN Vec<float, N> pow(Vec<float, N> x, Vec<float, N> y) {
  using V = Vec<float, N>;
  V r = cast<float>(wide::pow_of_size(cast<double>(x), cast<double>(y)));
  auto plain = (x > V(0.0f)) & (x < V(inf32)) & (abs(y) < V(inf32));
  return LITZ_LIKELY(hall(plain)) ? r : wide::signed_pow(x, y, r);
}
LITZ_FORMS_2_(float, pow)
}  // namespace litz
