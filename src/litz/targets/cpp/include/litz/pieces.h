// tanh and erf of float: polynomials in pieces where a register looks coefficients up, else through
// exponentials.  Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/math.h>

namespace litz {
#if LITZ_LOOKUP
namespace detail {

// Per piece its centre, then coefficients, lowest order first.  Four pieces to a power of two, from
// 1/8 on; the first reaches down to 0, and is of the function less its argument.
static constexpr float tanh_pieces[][32] = {
    {0.0f, 0x1.5fdcp-3f, 0x1.a038p-3f, 0x1.e02cp-3f, 0x1.1fa8p-2f, 0x1.602cp-2f, 0x1.9f98p-2f,
     0x1.df8cp-2f, 0x1.209p-1f, 0x1.5fcp-1f, 0x1.9fa4p-1f, 0x1.df8cp-1f, 0x1.1fd8p+0f,
     0x1.607p+0f, 0x1.9fb4p+0f, 0x1.df88p+0f, 0x1.1f7p+1f, 0x1.6094p+1f, 0x1.a044p+1f,
     0x1.e02p+1f, 0x1.1fb8p+2f, 0x1.607cp+2f, 0x1.9f84p+2f, 0x1.e0ap+2f, 0x1.1f6p+3f},
    {0.0f, 0x1.5c7012p-3f, 0x1.9a94dcp-3f, 0x1.d79008p-3f, 0x1.185234p-2f, 0x1.52e9f4p-2f,
     0x1.8a2f4ep-2f, 0x1.bf5092p-2f, 0x1.0572f2p-1f, 0x1.312eap-1f, 0x1.575664p-1f,
     0x1.77a2b2p-1f, 0x1.9e4118p-1f, 0x1.c2ab2cp-1f, 0x1.d9b11cp-1f, 0x1.e86308p-1f,
     0x1.f4a6b2p-1f, 0x1.fbde98p-1f, 0x1.fe781ap-1f, 0x1.ff6f6p-1f, 0x1.ffdf5ep-1f,
     0x1.fffbbp-1f, 0x1.ffff66p-1f, 0x1.ffffecp-1f, 0x1.fffffep-1f},
    {0x1.8ade32p-32f, 0x1.f12df8p-1f, 0x1.eb6bf6p-1f, 0x1.e4dae6p-1f, 0x1.d9a182p-1f,
     0x1.c7ea2cp-1f, 0x1.b4214cp-1f, 0x1.9e4cb2p-1f, 0x1.7a7e36p-1f, 0x1.4a17fp-1f,
     0x1.19c3b2p-1f, 0x1.d8d1f4p-2f, 0x1.61a966p-2f, 0x1.cd438ep-3f, 0x1.270018p-3f,
     0x1.71192cp-4f, 0x1.67236p-5f, 0x1.074908p-6f, 0x1.87500cp-8f, 0x1.21172ep-9f,
     0x1.0508d2p-11f, 0x1.13ff04p-14f, 0x1.34024ap-17f, 0x1.41de8p-20f, 0x1.0288cp-24f},
    {-0x1.648374p-23f, -0x1.525956p-3f, -0x1.8a1396p-3f, -0x1.be9092p-3f, -0x1.034e8cp-2f,
     -0x1.2dc7e6p-2f, -0x1.4fc612p-2f, -0x1.69f554p-2f, -0x1.828d1ep-2f, -0x1.8982bp-2f,
     -0x1.79e44p-2f, -0x1.5ae3fp-2f, -0x1.1e24fep-2f, -0x1.960296p-3f, -0x1.10edaap-3f,
     -0x1.601384p-4f, -0x1.5f2dacp-5f, -0x1.052914p-6f, -0x1.8624d6p-8f, -0x1.20c5ecp-9f,
     -0x1.04f228p-11f, -0x1.13e3fp-14f, -0x1.340acp-17f, -0x1.63b962p-20f, 0x1.56562cp-23f},
    {-0x1.555212p-2f, -0x1.2e4b8p-2f, -0x1.1fcd9ep-2f, -0x1.100154p-2f, -0x1.e96e96p-3f,
     -0x1.9814cep-3f, -0x1.431e74p-3f, -0x1.d8b446p-4f, -0x1.b79df8p-5f, 0x1.cf12d6p-7f,
     0x1.06331p-4f, 0x1.83883ap-4f, 0x1.c6846p-4f, 0x1.973dd8p-4f, 0x1.345996p-4f,
     0x1.a99e1p-5f, 0x1.bf5e42p-6f, 0x1.5692eap-7f, 0x1.028662p-8f, 0x1.80278ap-10f,
     0x1.5b6afp-12f, 0x1.6f88e6p-15f, 0x1.9a381ap-18f, 0x1.b776c8p-21f, 0x1.f8ef16p-25f},
    {-0x1.6685e4p-12f, 0x1.84a3p-4f, 0x1.c53214p-4f, 0x1.2a0f84p-3f, 0x1.15d47ep-3f,
     0x1.30297ap-3f, 0x1.5eaf3ep-3f, 0x1.5b751p-3f, 0x1.3bbb0cp-3f, 0x1.ea8aap-4f,
     0x1.47bcc8p-4f, 0x1.632356p-5f, 0x1.bc76ap-9f, -0x1.5f2676p-6f, -0x1.9d2b52p-6f,
     -0x1.564678p-6f, -0x1.96926p-7f, -0x1.4b8418p-8f, -0x1.feafd4p-10f, -0x1.7e413ep-11f,
     -0x1.5be776p-13f, -0x1.7283dcp-16f, -0x1.993fe2p-19f, 0x1.427cbp-21f, -0x1.f433ecp-22f},
    {0x1.19c95cp-3f, -0x1.f15604p-1f, -0x1.9512aep-1f, 0x1.2ee00ep-1f, 0x1.4e0624p-6f,
     0x1.40a186p-6f, 0x1.972a2p-5f, 0x1.8a3d86p-5f, -0x1.5648f2p-5f, -0x1.d8823cp-5f,
     -0x1.ed3cd2p-5f, -0x1.a34d9ep-5f, -0x1.06c6b8p-5f, -0x1.32d41p-7f, 0x1.68c69ep-10f,
     0x1.2b781ap-8f, 0x1.05dab4p-8f, 0x1.f20fb4p-10f, 0x1.925704p-11f, 0x1.324e84p-12f,
     0x1.20f022p-14f, 0x1.33121ap-17f, 0x1.568a8ap-20f, 0x1.7dfbbp-24f, -0x1.fa46b6p-28f},
    {-0x1.92b556p-6f, 0x1.73bebap+4f, 0x1.3dc4cap+4f, -0x1.9eae0ep+4f, 0x1.074fep+3f,
     0x1.2202bp+3f, -0x1.9ebca4p-1f, -0x1.f4d632p-1f, -0x1.5c4f26p-3f, -0x1.b9ebbap-6f,
     0x1.f71d1ap-7f, 0x1.2f2fb8p-5f, 0x1.1fa0ap-6f, 0x1.6798b2p-7f, 0x1.f4fbd8p-9f,
     0x1.9898d6p-14f, -0x1.86d018p-11f, -0x1.16515ap-11f, -0x1.04ddaep-12f, -0x1.9ff31ep-14f,
     -0x1.6f26p-16f, -0x1.632e3p-19f, -0x1.d7ecdcp-22f, -0x1.3a588ep-19f, 0x1.0d97c6p-22f},
};
static constexpr float erf_pieces[][32] = {
    {0.0f, 0x1.5facp-3f, 0x1.9ffp-3f, 0x1.dfd8p-3f, 0x1.2038p-2f, 0x1.5fe8p-2f, 0x1.a09cp-2f,
     0x1.e048p-2f, 0x1.2074p-1f, 0x1.6058p-1f, 0x1.a08p-1f, 0x1.e05cp-1f, 0x1.2008p+0f,
     0x1.6014p+0f, 0x1.9fd8p+0f, 0x1.dffp+0f, 0x1.205cp+1f, 0x1.602cp+1f, 0x1.a05p+1f,
     0x1.df6p+1f},
    {0.0f, 0x1.88f40ap-3f, 0x1.cef61ap-3f, 0x1.09d97ap-2f, 0x1.3cd50ap-2f, 0x1.7dfd84p-2f,
     0x1.bd6522p-2f, 0x1.f8b0ep-2f, 0x1.2618p-1f, 0x1.56d022p-1f, 0x1.800454p-1f,
     0x1.a1802ep-1f, 0x1.c6dfeap-1f, 0x1.e57d5cp-1f, 0x1.f4f022p-1f, 0x1.fbe50cp-1f,
     0x1.ff42e4p-1f, 0x1.fff2eap-1f, 0x1.ffff72p-1f, 0x1.fffffcp-1f},
    {0x1.06eba8p-3f, 0x1.1878d2p+0f, 0x1.15314ap+0f, 0x1.116f5ap+0f, 0x1.0add1ap+0f,
     0x1.00aff2p+0f, 0x1.e999p-1f, 0x1.cfa58ap-1f, 0x1.a49bf6p-1f, 0x1.67cad6p-1f,
     0x1.2a148cp-1f, 0x1.df288cp-2f, 0x1.45d2b2p-2f, 0x1.5c9aa6p-3f, 0x1.4a44ccp-4f,
     0x1.130f22p-5f, 0x1.ce329p-8f, 0x1.311ff2p-11f, 0x1.e213p-16f, 0x1.ead36ep-21f},
    {0x1.0bde1cp-24f, -0x1.814a8ep-3f, -0x1.c25c54p-3f, -0x1.0043eap-2f, -0x1.2c7386p-2f,
     -0x1.60d9c8p-2f, -0x1.8e6164p-2f, -0x1.b2ec2ep-2f, -0x1.d9ed66p-2f, -0x1.ef3296p-2f,
     -0x1.e4f6c8p-2f, -0x1.c18c46p-2f, -0x1.6e974ap-2f, -0x1.df7002p-3f, -0x1.0c3e0ep-3f,
     -0x1.01d592p-4f, -0x1.044f58p-6f, -0x1.a3bc34p-10f, -0x1.88068ep-14f, -0x1.b8c1f8p-19f},
    {-0x1.8126fep-2f, -0x1.60340ep-2f, -0x1.5376c8p-2f, -0x1.44c39p-2f, -0x1.2b9b96p-2f,
     -0x1.056dc8p-2f, -0x1.b4c348p-3f, -0x1.5a08b8p-3f, -0x1.999aecp-4f, -0x1.957296p-7f,
     0x1.010f92p-4f, 0x1.e5dfe8p-4f, 0x1.4cba18p-3f, 0x1.4361b2p-3f, 0x1.d6e32p-4f,
     0x1.14693ap-4f, 0x1.6079eep-6f, 0x1.673c9cp-9f, 0x1.93972cp-13f, 0x1.1421c4p-17f},
    {-0x1.97aa3ep-14f, 0x1.95c8b6p-4f, 0x1.15abeep-4f, 0x1.2ef1c4p-3f, 0x1.21eaa6p-3f,
     0x1.43bd8ep-3f, 0x1.6098cap-3f, 0x1.702e44p-3f, 0x1.7314d6p-3f, 0x1.52e4fp-3f,
     0x1.105d14p-3f, 0x1.74d03ep-4f, 0x1.ca5302p-6f, -0x1.f3f53ap-6f, -0x1.97515ep-5f,
     -0x1.5a54b2p-5f, -0x1.364fdcp-6f, -0x1.a8a2bp-9f, -0x1.274908p-12f, -0x1.3ac28ap-16f},
    {0x1.d50644p-4f, 0x1.e0e142p-1f, 0x1.201aa2p+0f, 0x1.633c7cp-1f, 0x1.87675p-3f,
     0x1.18800ap-4f, 0x1.fb2efp-5f, -0x1.76a444p-5f, -0x1.6e9dc8p-7f, -0x1.5c238ep-5f,
     -0x1.dff8ecp-5f, -0x1.24d3cep-4f, -0x1.f4446cp-5f, -0x1.f5be34p-6f, -0x1.312d26p-9f,
     0x1.736062p-7f, 0x1.592fd8p-7f, 0x1.70a156p-9f, 0x1.58867ap-12f, 0x1.517926p-16f},
    {-0x1.70f7e2p-7f, -0x1.052264p+4f, 0x1.7403eep+6f, -0x1.ff42ecp+5f, -0x1.4bcfcep+0f,
     0x1.5ee2aep-2f, 0x1.190808p-1f, 0x1.593d9p-1f, 0x1.154002p-3f, -0x1.38dc52p-5f,
     -0x1.c2589ep-4f, -0x1.a442dp-5f, 0x1.cbbf92p-7f, 0x1.5657fap-6f, 0x1.e341fap-7f,
     0x1.15f3cep-8f, -0x1.6c739p-9f, -0x1.b2fe54p-10f, -0x1.241d7p-12f, 0x1.534322p-16f},
};

// An odd function that is 1 from ``one`` on.
template <int K> LITZ_FN Vec<float, 16> in_pieces(const float (&table)[K][32], Vec<float, 16> x, float one) {
  using V = Vec<float, 16>;
  constexpr int first = 0x3e000000;  // 1/8
  V a = min2(V(one), abs(x));
  auto bits = max2(Vec<i32, 16>(first), ibits(a)) - Vec<i32, 16>(first);
  hw::reg<int, 16> which = (hw::reg<int, 16>)(bits >> 21).v;
  V y = a - V(pick(table[0], which));
  V r = V(pick(table[K - 1], which));
  LITZ_UNROLL
  for (int k = K - 2; k > 1; k--) r = mad(r, y, V(pick(table[k], which)));
  r = mad(r, y, where(a < V(0x1.4p-3f), a, V(pick(table[1], which))));
  return copysign(r, x);
}
// Of fewer lanes, or of more.
template <int N, int K> LITZ_FN Vec<float, N> in_pieces(const float (&table)[K][32], Vec<float, N> x, float one) {
  if constexpr (N > 16) return join(in_pieces(table, low(x), one), in_pieces(table, high(x), one));
  else return low(in_pieces(table, join(x, x), one));
}

}  // namespace detail

template <int N> LITZ_FN Vec<float, N> tanh(Vec<float, N> x) {
  return detail::in_pieces(detail::tanh_pieces, x, 0x1.2cp+3f);
}
template <int N> LITZ_FN Vec<float, N> erf(Vec<float, N> x) {
  return detail::in_pieces(detail::erf_pieces, x, 0x1.f7p+1f);
}
#else
template <int N> LITZ_FN Vec<float, N> tanh(Vec<float, N> x) { return detail::tanh_of(x); }
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
#endif
LITZ_SCALAR_1_(float, tanh)
LITZ_SCALAR_1_(float, erf)

}  // namespace litz
