// erfc, erfinv, digamma and lgamma of float, computed in double (see wide.h); erfc and erfinv in
// float where a register looks coefficients up.  Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/math.h>
#include <litz/erf64.h>
#include <litz/rare.h>
#include <litz/wide.h>

namespace litz {
namespace detail {

// a * b + c of an exact product, on every machine.
template <int N> LITZ_FN Vec<float, N> exact_mad(Vec<float, N> a, Vec<float, N> b, Vec<float, N> c) {
  if constexpr (LITZ_FMA) return fma(a, b, c);
  else return cast<float>(mad(cast<double>(a), cast<double>(b), cast<double>(c)));
}
// erfinv(x) / x of z = 1 - x^2 as a sum, by w = -log(z), from 17 on good to 2^-22.
template <class V> LITZ_FN Pair<V> erfinv_ratio(V z) {
  auto parts = log_parts(z);
  auto l = log_pair(parts.e, parts.f, F32::log_tail(parts.f), F32::base_e);
  V w = -(l.high + l.low), w_low = -(w + l.high) - l.low;
  V c = w - V(2.5f), c_low = w - (c + V(2.5f)) + w_low, first(0x1.805c5cp+0f), first_low(0x1.f9dbdep-25f);
  const V slope(0x1.f91e8ap-3f);
  V q = poly(c, -0x1.11c4a4p-8f, -0x1.4864fep-10f, 0x1.c9e1d2p-13f, -0x1.4dc406p-18f, -0x1.d08024p-19f,
             0x1.f6fa2ep-22f, 0x1.8cde94p-26f, -0x1.33c02ep-27f);
  V rise = mad(c, q, slope);
  first_low = mad(c, mad(c, q, slope - rise), first_low);
  auto tail = w >= V(5.0f);
  if (LITZ_UNLIKELY(hany(tail))) {
    auto far = w >= V(17.0f);
    V root = sqrt(w), d = root - V(3.0f), e = root - V(5.0f);
    V p = poly(d, 0x1.006dc4p+0f, 0x1.357d16p-7f, -0x1.f470d8p-8f, 0x1.74e56cp-8f, -0x1.d8325cp-9f,
               0x1.837fe8p-10f, -0x1.8f96eap-15f, -0x1.3f3d8cp-12f, 0x1.ccf82ep-14f);
    V farther = poly(e, 0x1.02a314p+0f, -0x1.2798bp-13f, -0x1.c697fap-13f, 0x1.597476p-14f, -0x1.3a84c2p-16f);
    c = where(tail, where(far, e, d), c), rise = where(tail, where(far, farther, p), rise);
    first = where(tail, where(far, V(0x1.3664dep+2f), V(0x1.6a9efcp+1f)), first);
    c_low = where(tail, (mad(-root, root, w) + w_low) / (root + root), c_low), first_low = where(tail, V(0.0f), first_low);
  }
  V high = mad(c, rise, first);
  return {high, exact_mad(c, rise, first - high) + mad(c_low, rise, first_low)};
}

}  // namespace detail
namespace wide {

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

#if LITZ_LOOKUP
namespace detail {

// A function in pieces of one width, as a sum.
template <int K>
LITZ_FN Pair<Vec<float, 16>> in_piece(const float (&table)[K][32], Vec<float, 16> x,
                                      Vec<float, 16> per_width) {
  using V = Vec<float, 16>;
  auto which = (hw::reg<int, 16>)mad(x, per_width, V(magic<float>)).v;
  V y = x - V(pick(table[0], which));
  return normalise(V(pick(table[1], which)), y * poly_of<2>(table, y, which));
}

// e^(a^2) erfc(a) of a in 0 .. 10.06 in pieces of one width: their centres, then coefficients.
static constexpr float erfcx_pieces[][32] = {
    {0x1.4733p-4f, 0x1.45ad8p-2f, 0x1.4785p-1f, 0x1.eae1p-1f, 0x1.478a2p+0f, 0x1.9951cp+0f,
    0x1.ebc28p+0f, 0x1.1f1ecp+1f, 0x1.47dc2p+1f, 0x1.70d1ep+1f, 0x1.99a13p+1f, 0x1.c2f85p+1f,
    0x1.ec215p+1f, 0x1.0a785p+2f, 0x1.1ed848p+2f, 0x1.338148p+2f, 0x1.4810a8p+2f, 0x1.5c51ep+2f,
    0x1.70e14p+2f, 0x1.858b88p+2f, 0x1.99ea38p+2f, 0x1.ae614p+2f, 0x1.c31858p+2f, 0x1.d75328p+2f,
    0x1.ebd7p+2f, 0x1.0048f8p+3f, 0x1.0a68fp+3f, 0x1.14b51cp+3f, 0x1.1f0b88p+3f, 0x1.29452p+3f,
    0x1.3367a8p+3f, 0x1.3dc52p+3f},
    {0x1.d4ee22p-1f, 0x1.71d95cp-1f, 0x1.19de72p-1f, 0x1.c1a956p-2f, 0x1.72725p-2f,
    0x1.3976aep-2f, 0x1.0e7278p-2f, 0x1.da83fap-3f, 0x1.a6920ep-3f, 0x1.7c4618p-3f,
    0x1.59883ap-3f, 0x1.3c16e4p-3f, 0x1.23408p-3f, 0x1.0e1eaap-3f, 0x1.f7a0dcp-4f, 0x1.d72906p-4f,
    0x1.bab118p-4f, 0x1.a1c656p-4f, 0x1.8b28f4p-4f, 0x1.76bdccp-4f, 0x1.648eep-4f, 0x1.53f7a2p-4f,
    0x1.44a958p-4f, 0x1.36fa48p-4f, 0x1.2a38c2p-4f, 0x1.1e586p-4f, 0x1.139dfep-4f, 0x1.097ed4p-4f,
    0x1.000d2p-4f, 0x1.eeb0ap-5f, 0x1.de8e2cp-5f, 0x1.cf1a46p-5f},
    {-0x1.f6cfb6p-1f, -0x1.56791ep-1f, -0x1.b23aacp-2f, -0x1.253c8p-2f, -0x1.9f0c18p-3f,
    -0x1.3220d2p-3f, -0x1.d1bf2p-4f, -0x1.6c3facp-4f, -0x1.2457fep-4f, -0x1.dde65ap-5f,
    -0x1.8d6b5ep-5f, -0x1.4e8144p-5f, -0x1.1d50dcp-5f, -0x1.eca966p-6f, -0x1.ad76dap-6f,
    -0x1.78d8f4p-6f, -0x1.4d66b6p-6f, -0x1.2975fap-6f, -0x1.0a8b3p-6f, -0x1.e010bap-7f,
    -0x1.b31b66p-7f, -0x1.8bf486p-7f, -0x1.696d2p-7f, -0x1.4bdaf6p-7f, -0x1.31661p-7f,
    -0x1.19bb62p-7f, -0x1.052842p-7f, -0x1.e4e4bcp-8f, -0x1.c33594p-8f, -0x1.a5367ap-8f,
    -0x1.8a5304p-8f, -0x1.71642p-8f},
    {0x1.acc3aep-1f, 0x1.04ed5ep-1f, 0x1.1df794p-2f, 0x1.510b2ep-3f, 0x1.a3b85ep-4f,
    0x1.12ea4ep-4f, 0x1.763d0ap-5f, 0x1.07f358p-5f, 0x1.815224p-6f, 0x1.202502p-6f,
    0x1.b92d64p-7f, 0x1.5750bap-7f, 0x1.1023ccp-7f, 0x1.b6dc4cp-8f, 0x1.66b4c8p-8f, 0x1.27e8ap-8f,
    0x1.edf9b6p-9f, 0x1.a15ab8p-9f, 0x1.62caacp-9f, 0x1.2fc896p-9f, 0x1.068dep-9f,
    0x1.c88382p-10f, 0x1.8ea31cp-10f, 0x1.5f1d42p-10f, 0x1.364a02p-10f, 0x1.132b42p-10f,
    0x1.eb8f2p-11f, 0x1.b802p-11f, 0x1.8b3366p-11f, 0x1.64ad82p-11f, 0x1.433c6cp-11f,
    0x1.253662p-11f},
    {-0x1.38614cp-1f, -0x1.59f7dp-2f, -0x1.4f0f28p-3f, -0x1.5f1a5ap-4f, -0x1.86c57ep-5f,
    -0x1.cc81a8p-6f, -0x1.1b7746p-6f, -0x1.6bc852p-7f, -0x1.e6725cp-8f, -0x1.4ec15cp-8f,
    -0x1.da2b9cp-9f, -0x1.568e8cp-9f, -0x1.fa5952p-10f, -0x1.7e6b62p-10f, -0x1.25cc78p-10f,
    -0x1.c8adf4p-11f, -0x1.683ddap-11f, -0x1.20a3b4p-11f, -0x1.d23d58p-12f, -0x1.7bf79p-12f,
    -0x1.3970cp-12f, -0x1.04a5f4p-12f, -0x1.b3bd12p-13f, -0x1.704d62p-13f, -0x1.38d048p-13f,
    -0x1.0af14p-13f, -0x1.cb7504p-14f, -0x1.8cc9c8p-14f, -0x1.581c92p-14f, -0x1.2c49aap-14f,
    -0x1.07894p-14f, -0x1.cf3fa4p-15f},
    {0x1.93ca68p-2f, 0x1.9bdbf4p-3f, 0x1.65a77ap-4f, 0x1.516c58p-5f, 0x1.539968p-6f,
    0x1.6b6a1cp-7f, 0x1.978992p-8f, 0x1.dfb2bcp-9f, 0x1.2797d2p-9f, 0x1.783d86p-10f,
    0x1.ef0a04p-11f, 0x1.4ceca4p-11f, 0x1.cc77f4p-12f, 0x1.46fb72p-12f, 0x1.d01f34p-13f,
    0x1.5a02f4p-13f, 0x1.027fa8p-13f, 0x1.874f4cp-14f, 0x1.314ff6p-14f, 0x1.d13076p-15f,
    0x1.7abe38p-15f, 0x1.2a1ee8p-15f, 0x1.c6d536p-16f, 0x1.814d62p-16f, 0x1.2219e8p-16f,
    0x1.0d1a22p-16f, 0x1.99c67ap-17f, 0x1.4941dep-17f, 0x1.725668p-17f, 0x1.c7143cp-18f,
    0x1.c9edb8p-18f, 0x1.72f622p-18f},
    {-0x1.d816c2p-3f, -0x1.c57616p-4f, -0x1.63f458p-5f, -0x1.3146e6p-6f, -0x1.177c4ep-7f,
    -0x1.11fdf2p-8f, -0x1.1b14eap-9f, -0x1.32fbb4p-10f, -0x1.571ea8p-11f, -0x1.9f650ap-12f,
    -0x1.eeacb4p-13f, -0x1.31e566p-13f, -0x1.ae469p-14f, -0x1.12605ap-14f, -0x1.694832p-15f,
    -0x1.ddd66p-16f, -0x1.6046ccp-16f, -0x1.0fce32p-16f, -0x1.640376p-17f, -0x1.27f5d8p-17f,
    -0x1.fe52f8p-18f, -0x1.c588p-19f, -0x1.c746cep-19f, -0x1.1dc276p-18f, -0x1.4d9feep-19f,
    -0x1.25a858p-21f, -0x1.0c7deap-19f, -0x1.4afeacp-20f, -0x1.736102p-20f, -0x1.7b1f2p-20f,
    -0x1.3a2d18p-20f, -0x1.380f7p-21f},
    {0x1.028e78p-3f, 0x1.c3b654p-5f, 0x1.424038p-6f, 0x1.046014p-7f, 0x1.97cd2ep-9f,
    0x1.79d4a6p-10f, 0x1.b14988p-11f, 0x1.56e728p-12f, 0x1.2b8caap-13f, 0x1.53239cp-14f,
    0x1.49e48p-15f, 0x1.13ffccp-15f, 0x1.232fc8p-16f, 0x1.021d16p-20f, 0x1.8ec01ep-14f,
    0x1.66e31ap-17f, 0x1.bc1fd4p-18f, 0x1.0e5fd8p-16f, -0x1.bff70ep-17f, 0x1.d112bp-17f,
    -0x1.5d043ap-16f, -0x1.2e8042p-17f, 0x1.89658p-16f, -0x1.9d1b14p-20f, 0x1.013048p-15f,
    -0x1.07f8c4p-16f, 0x1.87c75ap-17f, 0x1.27fdcep-16f, -0x1.925adap-15f, 0x1.0cef18p-16f,
    -0x1.42b582p-17f, -0x1.2464f4p-19f},
};
// e^-(a^2) times that, both as sums.
LITZ_FN Vec<float, 16> erfc_of(Vec<float, 16> x) {
  using V = Vec<float, 16>;
  const V to_sixteenths(0x1.8p19f);
  V a = min2(V(10.06f), abs(x));
  V square = a * a;
  V t = mad(square, V(-0x1.715476p+0f), to_sixteenths);
  V n = t - to_sixteenths;
  V r = mad(n, V(0x1.05c61p-29f), mad(n, V(-0x1.62e43p-1f), -square)) - mad(a, a, -square);
  V p = mad(mad(r, V(0x1.55572ap-3f), V(0x1.00022ep-1f)), r * r, r);
  auto which = (hw::reg<int, 16>)t.v;
  V root = pick(root_of_2, which);
  auto e = normalise(root, mad(root, p, V(pick(root_low, which))));
  auto f = in_piece(erfcx_pieces, a, V(128.0f / 41));
  V whole = e.high * f.high;
  V low = mad(e.high, f.low, mad(e.low, f.high, mad(e.high, f.high, -whole)));
  V v = V(hw::scale((whole + low).v, n.v));
  return where(x < V(0.0f), V(2.0f) - v, v);
}

// erfinv(x) / x of w = -log(1 - x^2) in 0 .. 16, likewise.
static constexpr float erfinv_pieces[][32] = {
    {0x1.07ef8p-3f, 0x1.03aecp-1f, 0x1.0469ap+0f, 0x1.85efcp+0f, 0x1.03cb3p+1f, 0x1.44f3dp+1f,
    0x1.861c7p+1f, 0x1.c7145p+1f, 0x1.03b6ep+2f, 0x1.242ecp+2f, 0x1.4541p+2f, 0x1.65cb28p+2f,
    0x1.85d558p+2f, 0x1.a6c1p+2f, 0x1.c6b0c8p+2f, 0x1.e7639p+2f, 0x1.040b2cp+3f, 0x1.1435d8p+3f,
    0x1.248514p+3f, 0x1.34e8ap+3f, 0x1.45041p+3f, 0x1.5529a8p+3f, 0x1.6569a8p+3f, 0x1.75b1c8p+3f,
    0x1.86082p+3f, 0x1.964c3p+3f, 0x1.a69a68p+3f, 0x1.b6bdf8p+3f, 0x1.c7145p+3f, 0x1.d71e7cp+3f,
    0x1.e78a28p+3f, 0x1.f7b9e8p+3f},
    {0x1.d5272ap-1f, 0x1.01ae0cp+0f, 0x1.21b3a6p+0f, 0x1.4203c6p+0f, 0x1.627634p+0f,
    0x1.82cd56p+0f, 0x1.a2939ep+0f, 0x1.c17dd6p+0f, 0x1.df3be6p+0f, 0x1.fc4cc8p+0f, 0x1.0c749p+1f,
    0x1.1a0c92p+1f, 0x1.26fc48p+1f, 0x1.33d6a2p+1f, 0x1.3fe87cp+1f, 0x1.4be2cep+1f,
    0x1.5781a2p+1f, 0x1.62abb4p+1f, 0x1.6da0d2p+1f, 0x1.785a04p+1f, 0x1.82a11ap+1f,
    0x1.8cb082p+1f, 0x1.969594p+1f, 0x1.a04826p+1f, 0x1.a9cecap+1f, 0x1.b319bp+1f, 0x1.bc3c06p+1f,
    0x1.c51b4p+1f, 0x1.cdececp+1f, 0x1.d66ef4p+1f, 0x1.deff2p+1f, 0x1.e74cap+1f},
    {0x1.e10528p-3f, 0x1.ef5ca2p-3f, 0x1.fbdb7ep-3f, 0x1.0068d2p-2f, 0x1.ff46e8p-3f,
    0x1.f87224p-3f, 0x1.edb9b6p-3f, 0x1.e07bcap-3f, 0x1.d1f328p-3f, 0x1.c2b554p-3f,
    0x1.b339c2p-3f, 0x1.a47296p-3f, 0x1.9693cap-3f, 0x1.8927acp-3f, 0x1.7cfadp-3f, 0x1.715ea6p-3f,
    0x1.669648p-3f, 0x1.5caf3cp-3f, 0x1.536638p-3f, 0x1.4ab83p-3f, 0x1.42c40cp-3f, 0x1.3b500ap-3f,
    0x1.3449cp-3f, 0x1.2daf0ep-3f, 0x1.2773f8p-3f, 0x1.219b84p-3f, 0x1.1c1302p-3f, 0x1.16e43ep-3f,
    0x1.11eafap-3f, 0x1.0d47a4p-3f, 0x1.08c35cp-3f, 0x1.0485aep-3f},
    {0x1.5c7b54p-7f, 0x1.0195e2p-7f, 0x1.0e88f2p-8f, 0x1.814434p-11f, -0x1.15884ep-9f,
    -0x1.1b2a2cp-8f, -0x1.7fba9ep-8f, -0x1.bd40fep-8f, -0x1.db693cp-8f, -0x1.e2bd44p-8f,
    -0x1.d9dc74p-8f, -0x1.c6fd0ap-8f, -0x1.aefbc2p-8f, -0x1.93d19ap-8f, -0x1.7901acp-8f,
    -0x1.5e5f4cp-8f, -0x1.4545ap-8f, -0x1.2e47p-8f, -0x1.19034cp-8f, -0x1.0593e8p-8f,
    -0x1.e89b22p-9f, -0x1.c93666p-9f, -0x1.ac90b6p-9f, -0x1.929692p-9f, -0x1.7ae32ep-9f,
    -0x1.656cd6p-9f, -0x1.51d4d4p-9f, -0x1.401aeap-9f, -0x1.2fa1d8p-9f, -0x1.20c578p-9f,
    -0x1.12bd52p-9f, -0x1.060622p-9f},
    {-0x1.3987d4p-9f, -0x1.438a2ap-9f, -0x1.36286ap-9f, -0x1.0fd846p-9f, -0x1.b4bb54p-10f,
    -0x1.3fa43p-10f, -0x1.a3848ap-11f, -0x1.d5a68p-12f, -0x1.75b126p-13f, 0x1.163e28p-16f,
    0x1.335092p-13f, 0x1.d1f1eap-13f, 0x1.10a026p-12f, 0x1.1ecb0cp-12f, 0x1.1bac62p-12f,
    0x1.0eb17ap-12f, 0x1.f9417cp-13f, 0x1.d14262p-13f, 0x1.a81554p-13f, 0x1.80b588p-13f,
    0x1.5cdc2p-13f, 0x1.3c1d08p-13f, 0x1.1e16b2p-13f, 0x1.03820ap-13f, 0x1.d77954p-14f,
    0x1.adb2bep-14f, 0x1.883fe8p-14f, 0x1.66dcb4p-14f, 0x1.499222p-14f, 0x1.2ffcd8p-14f,
    0x1.18284cp-14f, 0x1.02c806p-14f},
    {-0x1.a15222p-14f, -0x1.1767ecp-17f, 0x1.ae3a4cp-14f, 0x1.77dd54p-13f, 0x1.c4f58cp-13f,
    0x1.c6bb14p-13f, 0x1.92490ap-13f, 0x1.4349acp-13f, 0x1.df4e2p-14f, 0x1.41befap-14f,
    0x1.a24f8cp-15f, 0x1.a2ccdp-16f, 0x1.96e71ep-17f, 0x1.293c72p-18f, -0x1.07c49cp-18f,
    -0x1.0dff6ep-17f, -0x1.1fe1dp-17f, -0x1.37b478p-17f, -0x1.9f3c1ep-17f, -0x1.094cecp-16f,
    -0x1.67985ap-17f, -0x1.ed3f64p-18f, -0x1.efc4cep-18f, -0x1.132f92p-18f, -0x1.613e18p-18f,
    -0x1.a06594p-18f, -0x1.40b63p-18f, -0x1.6e5878p-19f, -0x1.974a6cp-19f, -0x1.7628c2p-19f,
    -0x1.070a06p-18f, 0x1.3f1d28p-24f},
};
LITZ_FN Vec<float, 16> erfinv_of(Vec<float, 16> x) {
  using V = Vec<float, 16>;
  V w = -log_by_table<false>(mad(-x, x, V(1.0f)), x, log_base_e);
  auto f = in_piece(erfinv_pieces, w, V(128.0f / 65));
  V scaled = x * V(0x1p24f);  // so that no part is subnormal
  V whole = scaled * f.high;
  V r = whole + mad(scaled, f.low, mad(scaled, f.high, -whole));
  return copysign(where(w == V(inf32), w, r * V(0x1p-24f)), x);
}

}  // namespace detail
template <int N> LITZ_FN Vec<float, N> erfc(Vec<float, N> x) {
  return detail::by_registers([](auto v) LITZ_LAMBDA { return detail::erfc_of(v); }, x);
}
template <int N> LITZ_FN Vec<float, N> erfinv(Vec<float, N> x) {
  return detail::by_registers([](auto v) LITZ_LAMBDA { return detail::erfinv_of(v); }, x);
}
LITZ_SCALAR_1_(float, erfc)
LITZ_SCALAR_1_(float, erfinv)
#else
LITZ_MATH_(float, erfc, detail::erfc_of(x))
template <int N> LITZ_FN Vec<float, N> erfinv(Vec<float, N> x) {
  using V = Vec<float, N>;
  const V one(1.0f);
  V z = LITZ_FMA ? mad(-x, x, one) : (one - x) * (one + x);
  auto f = detail::erfinv_ratio(z);
  V more = x * V(0x1p24f), whole = more * f.high;  // so that no part is subnormal
  V r = copysign((whole + mad(more, f.low, detail::exact_mad(more, f.high, -whole))) * V(0x1p-24f), x);
  auto inside = z > V(0.0f);
  return LITZ_LIKELY(hall(inside)) ? r : where(inside, r, x * rsqrt(z));
}
LITZ_SCALAR_1_(float, erfinv)
#endif
// One of Halley's steps on erf, where it has lost its digits on erfc.
template <int N> LITZ_FN Vec<double, N> erfinv(Vec<double, N> x) {
  using V = Vec<double, N>;
  const V one(1.0);
  V a = abs(x), z = (one - x) * (one + x);
  V r = x * cast<double>(detail::erfinv_ratio(cast<float>(z)).high), square = r * r, f = exp(square);
  f = mad(fma(r, r, -square), f, f);
  V e = (detail::erf_small(r) - x) * f;
  auto outer = a > V(0.8);
  if (hany(outer)) {
    auto part = detail::erfcx_parts(abs(r));
    V large = mad(one - a, f, -(part.high * part.low));
    e = where(outer, where(x < V(0.0), -large, large), e);
  }
  e = e * V(0x1.c5bf891b4ef6bp-1);
  r = r - mad(-r * e, e, e);
  auto inside = z > V(0.0);
  return LITZ_LIKELY(hall(inside)) ? r : where(inside, r, x * rsqrt(z));
}
LITZ_SCALAR_1_(double, erfinv)
template <int N> LITZ_FN Vec<float, N> lgamma(Vec<float, N> x) {
  using V = Vec<float, N>;
  V r = cast<float>(wide::lgamma(cast<double>(x)));
  auto hard = (x < V(0.0f)) & (abs(r) < V(0x1p-6f));
  return LITZ_UNLIKELY(hany(hard)) ? rare::by_lane<::lgamma>(hard, r, x) : r;
}
template <int N> LITZ_FN Vec<float, N> digamma(Vec<float, N> x) {
  using V = Vec<float, N>;
  V r = cast<float>(wide::digamma(cast<double>(x)));
  auto hard = (x == V(0.0f)) | ((x < V(0.0f)) & (abs(r) < V(0x1p-6f)));
  return LITZ_UNLIKELY(hany(hard)) ? rare::by_lane<rare::digamma>(hard, r, x) : r;
}
LITZ_SCALAR_1_(float, lgamma)
LITZ_SCALAR_1_(float, digamma)

}  // namespace litz
