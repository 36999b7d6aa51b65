// sin, cos, tan, their inverses and atan2 of float: in float where the machine multiplies and adds at
// once (see trigcore.h), else in double.
// Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/math.h>
#include <litz/trig64.h>

namespace litz {
#if LITZ_FMA
namespace detail {

template <> struct Circle<float> {
  static constexpr float per_turn = 0x1.45f306p-1f;
  static constexpr float turn[] = {0x1.921fb4p+0f, 0x1.4442dp-24f, 0x1.84698ap-48f};
  static constexpr float rest[] = {0x1.444p-24f, 0x1.68c234p-39f}, near = 0x1p13f;
  static constexpr float least = 0x1p-100f, half_pi = 0x1.921fb6p+0f, half_pi_low = -0x1.777a5cp-25f;
  template <class V> static LITZ_FN V sin(V z) {
    return poly(z, -0x1.555556p-3f, 0x1.111164p-7f, -0x1.a04802p-13f, 0x1.77b00ep-19f);
  }
  template <class V> static LITZ_FN V cos(V z) {
    return poly(z, 0x1.55554ap-5f, -0x1.6c0c1cp-10f, 0x1.99e1d6p-16f);
  }
  template <class V> static LITZ_FN V asin(V z) {
    return poly(z, 0x1.55554cp-3f, 0x1.33389ap-4f, 0x1.6cabap-5f, 0x1.04a60cp-5f, 0x1.d82adcp-7f,
                0x1.339b94p-5f);
  }
  template <class V> static LITZ_FN V atan(V z) {
    return poly(z, -0x1.55555p-2f, 0x1.99968ep-3f, -0x1.2444d8p-3f, 0x1.bfcdbp-4f, -0x1.45e05cp-4f,
                0x1.3a44c2p-5f);
  }
};
// The tangent, or what is -1 over it.
template <class V> LITZ_FN V tan_quarter(V x, Quarter<V> q) {
  V z = q.r * q.r;
  V p = poly(z, 0x1.555564p-2f, 0x1.110ca8p-3f, 0x1.bb029p-5f, 0x1.5b2c9p-6f, 0x1.6ac124p-7f,
             -0x1.ab50e6p-13f, 0x1.283222p-8f);
  V tail = mad(p, q.r * z, mad(q.r, q.r, -z) * (q.r * V(0.45f)));
  auto t = normalise(q.r, tail);
  V low = mad(q.low, mad(t.high, t.high, V(1.0f)), t.low);
  V sum = t.high + low;
  V about = about_inverse(sum), over = mad(about, low, mad(about, t.high, V(-1.0f)));
  V inv = mad(about, mad(over, over, -over), about);
  return turned<0>(where((q.quarter << 31) < decltype(q.quarter)(0), inv, sum), q.quarter, x);
}

#if LITZ_LOOKUP
// Pieces of |x| by its exponent and two bits, from 2^-3 up to 2^5, in the order of those bits: a
// centre, then coefficients.  From 2 on they are of -1/|x|; the first is of atan(x) - x.
static constexpr float atan_pieces[][32] = {
    {-0x1.cc2666p-2f, -0x1.778444p-2f, -0x1.3ce494p-2f, -0x1.125924p-2f, -0x1.cc4cccp-3f,
    -0x1.778444p-3f, -0x1.3d2494p-3f, -0x1.120248p-3f, -0x1.cc0666p-4f, -0x1.78088ap-4f,
    -0x1.3d430cp-4f, -0x1.1296dap-4f, -0x1.cdp-5f, -0x1.77d112p-5f, -0x1.3d6186p-5f,
    -0x1.222494p-6f, 0.0f, 0x1.5f7p-3f, 0x1.9f7cp-3f, 0x1.e08p-3f, 0x1.2068p-2f, 0x1.5f8p-2f,
    0x1.a058p-2f, 0x1.e0ap-2f, 0x1.1fb4p-1f, 0x1.6068p-1f, 0x1.a09cp-1f, 0x1.e05cp-1f,
    0x1.2088p+0f, 0x1.5ffp+0f, 0x1.9fbp+0f, 0x1.e05cp+0f},
    {0x1.260228p+0f, 0x1.38249ap+0f, 0x1.454b2ap+0f, 0x1.4f1c52p+0f, 0x1.5986ep+0f, 0x1.63b33p+0f,
    0x1.6acb1cp+0f, 0x1.70133p+0f, 0x1.757e06p+0f, 0x1.7aaffep+0f, 0x1.7e55a2p+0f, 0x1.80fcd8p+0f,
    0x1.83bb98p+0f, 0x1.866348p+0f, 0x1.8835eep+0f, 0x1.8d9742p+0f, 0.0f, 0x1.5c0c32p-3f,
    0x1.99ebc8p-3f, 0x1.d7f6b2p-3f, 0x1.191fb8p-2f, 0x1.52985cp-2f, 0x1.8b705ap-2f,
    0x1.c15e72p-2f, 0x1.061e2ap-1f, 0x1.34a59ap-1f, 0x1.5db682p-1f, 0x1.81cdfep-1f,
    0x1.b0ace2p-1f, 0x1.e242c2p-1f, 0x1.04d076p+0f, 0x1.14c63ap+0f},
    {0x1.a9fb5cp-1f, 0x1.c34ed8p-1f, 0x1.d34072p-1f, 0x1.ddb5bcp-1f, 0x1.e76142p-1f,
    0x1.ef58bp-1f, 0x1.f4027ep-1f, 0x1.f6fefcp-1f, 0x1.f99f4ap-1f, 0x1.fbb88ap-1f, 0x1.fcf252p-1f,
    0x1.fdb594p-1f, 0x1.fe623ap-1f, 0x1.feecb8p-1f, 0x1.ff3b8ep-1f, 0x1.ffd6e8p-1f,
    -0x1.6d66acp-27f, 0x1.f15ac4p-1f, 0x1.ebc2a6p-1f, 0x1.e5496ep-1f, 0x1.da5eep-1f,
    0x1.ca07e6p-1f, 0x1.b75e0ap-1f, 0x1.a391bap-1f, 0x1.852162p-1f, 0x1.5b69ep-1f, 0x1.340baap-1f,
    0x1.104ee4p-1f, 0x1.c30acp-2f, 0x1.6254b8p-2f, 0x1.1993bep-2f, 0x1.c5020ep-3f},
    {0x1.3e866p-2f, 0x1.23c434p-2f, 0x1.080c4ep-2f, 0x1.ddabacp-3f, 0x1.a11776p-3f,
    0x1.5f7c34p-3f, 0x1.2e6f0cp-3f, 0x1.086f3ep-3f, 0x1.c08698p-4f, 0x1.71c81ap-4f,
    0x1.397c5cp-4f, 0x1.0fe188p-4f, 0x1.ca2f1p-5f, 0x1.73b67ap-5f, 0x1.3ce932p-5f, 0x1.220a24p-6f,
    0x1.b7817cp-19f, -0x1.4b9e8cp-3f, -0x1.7f490ep-3f, -0x1.afabecp-3f, -0x1.ef23fep-3f,
    -0x1.194d96p-2f, -0x1.3298aap-2f, -0x1.42c164p-2f, -0x1.4c5f42p-2f, -0x1.44826ep-2f,
    -0x1.2d9cc8p-2f, -0x1.0fc14cp-2f, -0x1.bfd632p-3f, -0x1.511ce4p-3f, -0x1.f6e69cp-4f,
    -0x1.780b12p-4f},
    {-0x1.3613e8p-4f, -0x1.16db94p-3f, -0x1.71449ap-3f, -0x1.b29062p-3f, -0x1.f3b1bap-3f,
    -0x1.163aecp-2f, -0x1.26ab8ap-2f, -0x1.3284b2p-2f, -0x1.3c4724p-2f, -0x1.45443ep-2f,
    -0x1.484f62p-2f, -0x1.4acp-2f, -0x1.4c8ea8p-2f, -0x1.47c25ap-2f, -0x1.51b90ep-2f,
    -0x1.548c94p-2f, -0x1.557eaap-2f, -0x1.1d0952p-2f, -0x1.08f854p-2f, -0x1.e56d68p-3f,
    -0x1.9db09p-3f, -0x1.3bdff8p-3f, -0x1.b2ef7p-4f, -0x1.fd0c88p-5f, -0x1.f8e33ap-8f,
    0x1.6730dap-5f, 0x1.255be2p-4f, 0x1.50e8d8p-4f, 0x1.47ff0ep-4f, 0x1.082b52p-4f,
    0x1.884f72p-5f, 0x1.1a992ep-5f},
    {-0x1.6069ccp-3f, -0x1.8827c8p-3f, -0x1.799e9ep-2f, -0x1.9750ep-3f, -0x1.60bbd8p-3f,
    -0x1.3d1832p-3f, -0x1.d4292cp-5f, -0x1.f25e4cp-7f, 0x1.086e0ep-5f, -0x1.c6bf4cp-4f,
    -0x1.c3d0fp-5f, 0x1.3b35a8p+1f, -0x1.1d3afp-2f, 0x1.c69318p+3f, -0x1.5667eep+2f,
    -0x1.e81202p-6f, 0x1.4a9d24p-9f, 0x1.2eacp-3f, 0x1.548222p-3f, 0x1.7833eep-3f, 0x1.85621ep-3f,
    0x1.8c920ep-3f, 0x1.77f41ep-3f, 0x1.519312p-3f, 0x1.068edep-3f, 0x1.3b0a3ep-4f, 0x1.28471p-5f,
    0x1.2a28f2p-7f, -0x1.6e4586p-7f, -0x1.1dc864p-6f, -0x1.f14632p-7f, -0x1.735cf6p-7f},
    {-0x1.de809ap-5f, -0x1.6f9ab6p-5f, -0x1.8cc3dap-2f, -0x1.0a9d88p-1f, 0x1.0b2c5ep-3f,
    0x1.c61f9ep-1f, -0x1.d220bcp+0f, 0x1.7847acp+1f, 0x1.28020ep-1f, 0x1.15df12p+3f,
    -0x1.1ff56p+4f, -0x1.381b22p+6f, -0x1.4a014cp+5f, -0x1.d6c5b4p+8f, 0x1.6f08a2p+5f,
    -0x1.0a7f1ep-3f, 0x1.7d135ep-3f, -0x1.c07a34p-2f, -0x1.fdeedcp-3f, 0x1.175a0ap-2f,
    0x1.f8a7a6p-7f, -0x1.9bc276p-5f, -0x1.65be58p-5f, -0x1.dfd896p-4f, -0x1.61cde2p-4f,
    -0x1.246fap-4f, -0x1.db1fc6p-5f, -0x1.e25704p-6f, -0x1.9af178p-7f, -0x1.7a9bbp-13f,
    0x1.85eb44p-9f, 0x1.841b32p-9f},
};
LITZ_FN Vec<float, 16> atan_in_pieces(Vec<float, 16> x) {
  using V = Vec<float, 16>;
  V a = min2(V(0x1p60f), abs(x)), within = max2(V(0x1p-3f), min2(V(31.0f), a));
  auto which = (hw::reg<int, 16>)(ibits(within) >> 21).v;
  V y = where(a < V(2.0f), a, -inverse(a)) - V(pick(atan_pieces[0], which));
  V r = poly_of<1>(atan_pieces, y, which);
  r = r + where(a < V(0.15625f), a, V(0.0f));
  return bitcast<float>(ibits(r) | (ibits(x) & Vec<i32, 16>(1 << 31)));
}
template <int N> LITZ_FN Vec<float, N> atan_of(Vec<float, N> x) {
  return by_registers([](auto v) LITZ_LAMBDA { return atan_in_pieces(v); }, x);
}
#else
template <class V> LITZ_FN V atan_of(V x) { return atan_by_quotient(x); }
#endif
// Arguments that the short reduction is not made for: by the long one, the largest in double.
template <class F, int N> LITZ_SLOW Vec<float, N> far(F of, Vec<float, N> x) {
  using V = Vec<float, N>;
  auto hard = abs(x) > V(0x1p17f);  // each lane the same, whatever its neighbours are
  V r = of(x, quarter_of(abs(x)));
  return hany(hard) ? where(hard, cast<float>(of(cast<double>(x))), r) : r;
}
template <class F, class V> LITZ_FN V by_quarters(F of, V x) {
  V a = abs(x), r = of(x, near_quarter_of(a));
  auto hard = a > V(Circle<float>::near);
  return LITZ_UNLIKELY(hany(hard)) ? where(hard, far(of, x), r) : r;
}
struct Sin {
  template <int N> LITZ_FN Vec<double, N> operator()(Vec<double, N> x) const { return sin(x); }
  template <class V> LITZ_FN V operator()(V x, Quarter<V> q) const { return sin_quarter(x, q, 0); }
};
struct Cos {
  template <int N> LITZ_FN Vec<double, N> operator()(Vec<double, N> x) const { return cos(x); }
  template <class V> LITZ_FN V operator()(V x, Quarter<V> q) const { return sin_quarter(x, q, 1); }
};
struct Tan {
  template <int N> LITZ_FN Vec<double, N> operator()(Vec<double, N> x) const { return tan(x); }
  template <class V> LITZ_FN V operator()(V x, Quarter<V> q) const { return tan_quarter(x, q); }
};

}  // namespace detail

LITZ_MATH_(float, sin, detail::by_quarters(detail::Sin(), x))
LITZ_MATH_(float, cos, detail::by_quarters(detail::Cos(), x))
LITZ_MATH_(float, tan, detail::by_quarters(detail::Tan(), x))
LITZ_MATH_(float, asin, detail::asin_of(x))
LITZ_MATH_(float, acos, detail::acos_of(x))
LITZ_MATH_(float, atan, detail::atan_of(x))
template <int N> LITZ_FN Vec<float, N> atan2(Vec<float, N> y, Vec<float, N> x) {
  return detail::atan2_of(y, x);
}
#else
LITZ_MATH_(float, sin, cast<float>(sin(cast<double>(x))))
LITZ_MATH_(float, cos, cast<float>(cos(cast<double>(x))))
LITZ_MATH_(float, tan, cast<float>(tan(cast<double>(x))))
LITZ_MATH_(float, asin, cast<float>(asin(cast<double>(x))))
LITZ_MATH_(float, acos, cast<float>(acos(cast<double>(x))))
LITZ_MATH_(float, atan, cast<float>(atan(cast<double>(x))))
template <int N> LITZ_FN Vec<float, N> atan2(Vec<float, N> y, Vec<float, N> x) {
  return cast<float>(atan2(cast<double>(y), cast<double>(x)));
}
#endif
LITZ_FORMS_2_(float, atan2)

}  // namespace litz
