// log, log2, log10 and log1p of float where a register looks coefficients up: x = 2^e m, and m times
// an inverse out of a table is near 1.  Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/poly.h>

namespace litz {
namespace detail {

LITZ_FN hw::reg<float, 16> pick(const float (&from)[32], hw::reg<int, 16> which) {
  hw::reg<float, 16> low, high;
  __builtin_memcpy(&low, from, sizeof(low));
  __builtin_memcpy(&high, from + 16, sizeof(high));
  return __builtin_ia32_vpermt2varps512_mask(which, low, high, (unsigned short)-1);
}

// A polynomial whose coefficients are rows of a table, from ``First`` on, lowest order first.
template <int First, int K>
LITZ_FN Vec<float, 16> poly_of(const float (&table)[K][32], Vec<float, 16> x, hw::reg<int, 16> which) {
  using V = Vec<float, 16>;
  V r = V(pick(table[K - 1], which));
  LITZ_UNROLL
  for (int k = K - 2; k >= First; k--) r = mad(r, x, V(pick(table[k], which)));
  return r;
}

// Per 32nd of a mantissa in 3/4 .. 3/2, from 1 on: an inverse of so few bits that a product with it
// less 1 has no error, and minus its logarithms, as sums: to the heads whole multiples of the
// logarithm of two are added without an error.
static constexpr float log_inverses[] = {
    0x1p+0f, 0x1.e8p-1f, 0x1.dcp-1f, 0x1.ccp-1f, 0x1.cp-1f, 0x1.b4p-1f, 0x1.a8p-1f, 0x1.ap-1f,
    0x1.94p-1f, 0x1.8cp-1f, 0x1.8p-1f, 0x1.78p-1f, 0x1.7p-1f, 0x1.68p-1f, 0x1.6p-1f, 0x1.58p-1f,
    0x1.5p+0f, 0x1.4cp+0f, 0x1.44p+0f, 0x1.4p+0f, 0x1.38p+0f, 0x1.34p+0f, 0x1.2cp+0f, 0x1.28p+0f,
    0x1.2p+0f, 0x1.1cp+0f, 0x1.18p+0f, 0x1.14p+0f, 0x1.1p+0f, 0x1.0cp+0f, 0x1.08p+0f, 0x1p+0f};
static constexpr float log_values[][32] = {
    {0.0f, 0x1.894p-5f, 0x1.2aap-4f, 0x1.b6bp-4f, 0x1.1178p-3f, 0x1.491p-3f, 0x1.824p-3f,
    0x1.a94p-3f, 0x1.e53p-3f, 0x1.0714p-2f, 0x1.2698p-2f, 0x1.3c24p-2f, 0x1.522cp-2f,
    0x1.68acp-2f, 0x1.7fbp-2f, 0x1.973cp-2f, -0x1.1674p-2f, -0x1.0a34p-2f, -0x1.e27p-3f,
    -0x1.c9p-3f, -0x1.9528p-3f, -0x1.7ab8p-3f, -0x1.44dp-3f, -0x1.2958p-3f, -0x1.e27p-4f,
    -0x1.a92p-4f, -0x1.6f1p-4f, -0x1.342p-4f, -0x1.f0ap-5f, -0x1.774p-5f, -0x1.f84p-6f, 0.0f},
    {0.0f, 0x1.54294p-18f, 0x1.2911c6p-22f, -0x1.bb9296p-19f, 0x1.d044fcp-20f, 0x1.ec199ep-18f,
    -0x1.f4d572p-18f, -0x1.2c3752p-19f, 0x1.dffce2p-20f, -0x1.e7ecaap-20f, -0x1.deecb2p-18f,
    0x1.277334p-18f, -0x1.1f8c76p-18f, 0x1.07d38ep-19f, -0x1.7109fap-20f, -0x1.cbcecap-18f,
    -0x1.cababap-18f, 0x1.b1d8c6p-18f, -0x1.db8abcp-21f, 0x1.070cacp-20f, 0x1.2b185ep-18f,
    -0x1.20421cp-20f, -0x1.5b665cp-18f, 0x1.683fp-18f, -0x1.db8abcp-22f, -0x1.b4e92cp-18f,
    0x1.6ba8d4p-19f, 0x1.434f22p-19f, -0x1.86008cp-20f, -0x1.63d8ccp-19f, 0x1.64f188p-18f, 0.0f}};
static constexpr float log2_values[][32] = {
    {0.0f, 0x1.1bcp-4f, 0x1.aeep-4f, 0x1.3c7p-3f, 0x1.8a9p-3f, 0x1.dacp-3f, 0x1.16ap-2f,
    0x1.32cp-2f, 0x1.5ep-2f, 0x1.7b88p-2f, 0x1.a9p-2f, 0x1.c818p-2f, 0x1.e7ep-2f, 0x1.042cp-1f,
    0x1.14c4p-1f, 0x1.25cp-1f, -0x1.91b8p-2f, -0x1.8008p-2f, -0x1.5cp-2f, -0x1.49a8p-2f,
    -0x1.244p-2f, -0x1.113p-2f, -0x1.d4ap-3f, -0x1.acfp-3f, -0x1.5cp-3f, -0x1.32bp-3f,
    -0x1.08cp-3f, -0x1.bc8p-4f, -0x1.664p-4f, -0x1.0ecp-4f, -0x1.6bcp-5f, 0.0f},
    {0.0f, -0x1.9ab4p-17f, -0x1.8dca94p-17f, -0x1.26bcc8p-21f, -0x1.9fd502p-17f, 0x1.169f22p-18f,
    -0x1.fd64ep-17f, -0x1.1c8f12p-22f, -0x1.18708ap-17f, 0x1.f02cf2p-18f, -0x1.a39fbep-20f,
    0x1.dc2d46p-18f, -0x1.40358ep-19f, -0x1.5a32c2p-20f, 0x1.60fe68p-17f, 0x1.408c78p-18f,
    -0x1.d448f8p-17f, -0x1.2b18bp-17f, -0x1.a39fbep-18f, 0x1.ed0cbap-20f, -0x1.eac382p-20f,
    -0x1.f6b4c2p-20f, 0x1.1b3cdap-19f, -0x1.78b6d4p-17f, -0x1.a39fbep-19f, 0x1.61d876p-19f,
    -0x1.62336ap-17f, -0x1.0902b6p-18f, 0x1.20a6dep-21f, 0x1.8ec0bap-17f, 0x1.2c8a72p-17f, 0.0f}};
static constexpr float log10_values[][32] = {
    {0.0f, 0x1.558p-6f, 0x1.036p-5f, 0x1.7dp-5f, 0x1.db2p-5f, 0x1.1ddp-4f, 0x1.4f8p-4f,
    0x1.716p-4f, 0x1.a57p-4f, 0x1.c9p-4f, 0x1.ffcp-4f, 0x1.1298p-3f, 0x1.25b8p-3f, 0x1.3948p-3f,
    0x1.4d4p-3f, 0x1.61b8p-3f, -0x1.e3cp-4f, -0x1.ce7p-4f, -0x1.a31p-4f, -0x1.8cfp-4f,
    -0x1.5ffp-4f, -0x1.48fp-4f, -0x1.1a2p-4f, -0x1.024p-4f, -0x1.a3p-5f, -0x1.714p-5f,
    -0x1.3eep-5f, -0x1.0bap-5f, -0x1.af4p-6f, -0x1.46p-6f, -0x1.b6p-7f, 0.0f},
    {0.0f, 0x1.bd2406p-18f, 0x1.120f32p-20f, 0x1.c0517ep-19f, -0x1.c25132p-18f, 0x1.518322p-18f,
    -0x1.54991p-18f, -0x1.798e4cp-19f, -0x1.7cda0ap-20f, 0x1.50cf32p-19f, -0x1.ea21c4p-23f,
    0x1.a4fb3ep-19f, 0x1.410ad8p-18f, -0x1.fe10d6p-20f, 0x1.fc13aep-18f, -0x1.6c667cp-19f,
    0x1.f2a79p-19f, 0x1.be1b9cp-20f, 0x1.58a7d8p-18f, -0x1.838864p-20f, 0x1.feddd4p-18f,
    -0x1.f68efap-19f, -0x1.a22a8p-19f, -0x1.460f84p-19f, -0x1.53ac14p-18f, -0x1.0684fap-18f,
    0x1.dcccb4p-18f, -0x1.a817p-25f, -0x1.f92bp-18f, 0x1.614a68p-19f, 0x1.6f714ep-19f, 0.0f}};
// log(1 + r) - r over r^2, in the base; the base's log(2) and log(e), each as a sum.
struct Logarithm {
  const float (&values)[2][32];
  float q[4], two, two_low, unit, unit_low;
};
static constexpr Logarithm log_base_e{
    log_values, {-0x1p-1f, 0x1.5555cp-2f, -0x1.0009d8p-2f, 0x1.8e938ap-3f},
    0x1.62e4p-1f, 0x1.7f7d1cp-20f, 1.0f, 0.0f};
static constexpr Logarithm log_base_2{
    log2_values, {-0x1.715476p-1f, 0x1.ec712ap-2f, -0x1.716b3cp-2f, 0x1.207e9cp-2f},
    1.0f, 0.0f, 0x1.715476p+0f, 0x1.4ae0cp-26f};
static constexpr Logarithm log_base_10{
    log10_values, {-0x1.bcb7b2p-3f, 0x1.287aep-3f, -0x1.bcb70ep-4f, 0x1.58367ap-4f},
    0x1.344p-2f, 0x1.3509f8p-18f, 0x1.bcb7b2p-2f, -0x1.5b235ep-27f};

// log(x + c), c what rounding lost in x.  Zeros, infinities, nan and negative numbers take the way
// of all: the instructions give their exponents, and 1, 1, nan and nan as their mantissas.
template <bool Sum> LITZ_FN Vec<float, 16> log_by_table(Vec<float, 16> x, Vec<float, 16> c, Logarithm b) {
  using V = Vec<float, 16>;
  const hw::reg<float, 16> none{};
  V m = V(__builtin_ia32_getmantps512_mask(x.v, 0xf, none, (unsigned short)-1, 4));
  V e = V(__builtin_ia32_getexpps512_mask(x.v, none, (unsigned short)-1, 4)) -
        V(__builtin_ia32_getexpps512_mask(m.v, none, (unsigned short)-1, 4));
  auto which = (hw::reg<int, 16>)(ibits(m) >> 18).v;
  V inverse = V(pick(log_inverses, which));
  V r = mad(m, inverse, V(-1.0f));
  V low = V(pick(b.values[1], which));
  if (b.two_low != 0.0f) low = mad(e, V(b.two_low), low);
  if constexpr (Sum) {
    V scaled = V(hw::scale(c.v, (-max2(e, V(-24.0f))).v));  // the exponent of zero is infinite
    V whole = mad(scaled, inverse, r);
    low = low + mad(scaled, inverse, r - whole);
    r = whole;
  }
  V q = poly(r, b.q[0], b.q[1], b.q[2], b.q[3]);
  V y = b.unit == 1.0f ? r + mad(r * r, q, low)
                       : mad(r, V(b.unit), mad(r, mad(r, q, V(b.unit_low)), low));
  return mad(e, V(b.two), V(pick(b.values[0], which))) + y;
}
template <int N> LITZ_FN Vec<float, N> log_by_table(Vec<float, N> x, Logarithm b) {
  return by_registers([=](auto x) LITZ_LAMBDA { return log_by_table<false>(x, x, b); }, x);
}
template <int N> LITZ_FN Vec<float, N> log1p_by_table(Vec<float, N> x) {
  return by_registers([=](auto x) LITZ_LAMBDA {
    using V = decltype(x);
    V u = V(1.0f) + x;
    V c = min2(x - (u - V(1.0f)), V(1.0f));  // 1 where u is infinite
    return copysign(log_by_table<true>(u, c, log_base_e), x);
  }, x);
}

}  // namespace detail
}  // namespace litz
