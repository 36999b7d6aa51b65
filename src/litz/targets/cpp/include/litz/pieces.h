// tanh and erf of float: polynomials in pieces where a register looks coefficients up, else through
// exponentials.  Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/math.h>

namespace litz {
#if LITZ_LOOKUP
namespace detail {

// Per piece its centre, then coefficients, lowest order first.  Pieces have one width, about whole
// multiples of it; the first reaches down to 0.  The first two are of the function less its argument.
static constexpr float tanh_pieces[][32] = {
    {0.0f, 0x1.34199ap-2f, 0x1.32p-1f, 0x1.ce2666p-1f, 0x1.338e68p+0f, 0x1.7fbcccp+0f,
     0x1.cd6666p+0f, 0x1.0cab32p+1f, 0x1.338cp+1f, 0x1.59af34p+1f, 0x1.80399ap+1f,
     0x1.a62f32p+1f, 0x1.cc9598p+1f, 0x1.f3119ap+1f, 0x1.0cc8p+2f, 0x1.2004ccp+2f,
     0x1.332268p+2f, 0x1.46679ap+2f, 0x1.596f9ap+2f, 0x1.6cdb32p+2f, 0x1.802eccp+2f,
     0x1.933ep+2f, 0x1.a6739ap+2f, 0x1.b9accep+2f, 0x1.cc9cccp+2f, 0x1.e03p+2f, 0x1.f30334p+2f,
     0x1.034b34p+3f, 0x1.0cb4ccp+3f, 0x1.164e66p+3f, 0x1.1fe8p+3f, 0x1.29b19ap+3f},
    {0.0f, -0x1.1f1e8p-7f, 0x1.121d4ap-1f, 0x1.6f668ep-1f, 0x1.ab0c5ap-1f, 0x1.cf5748p-1f,
     0x1.e4e38p-1f, 0x1.f0d73ep-1f, 0x1.f7afb4p-1f, 0x1.fb66ep-1f, 0x1.fd7a16p-1f,
     0x1.fe9aacp-1f, 0x1.ff3bc6p-1f, 0x1.ff946ap-1f, 0x1.ffc508p-1f, 0x1.ffdfacp-1f,
     0x1.ffee36p-1f, 0x1.fff642p-1f, 0x1.fffaap-1f, 0x1.fffd12p-1f, 0x1.fffe66p-1f,
     0x1.ffff1ep-1f, 0x1.ffff84p-1f, 0x1.ffffbcp-1f, 0x1.ffffdap-1f, 0x1.ffffecp-1f,
     0x1.fffff4p-1f, 0x1.fffffap-1f, 0x1.fffffcp-1f, 0x1.fffffep-1f, 0x1.fffffep-1f, 0x1p+0f},
    {0x1.36b1ap-32f, -0x1.5d8548p-4f, 0x1.6d3ea6p-1f, 0x1.f0b8ccp-2f, 0x1.379dcap-2f,
     0x1.72c656p-3f, 0x1.a64be6p-4f, 0x1.dde9d6p-5f, 0x1.07e09p-5f, 0x1.24f5b6p-6f,
     0x1.42294ap-7f, 0x1.64d754p-8f, 0x1.8828ccp-9f, 0x1.ae2abap-10f, 0x1.d7a528p-11f,
     0x1.029804p-11f, 0x1.1c9fp-12f, 0x1.37bd04p-13f, 0x1.57fdd6p-14f, 0x1.76fdaap-15f,
     0x1.99fc28p-16f, 0x1.c3fc72p-17f, 0x1.eff808p-18f, 0x1.0ffe62p-18f, 0x1.2bd824p-19f,
     0x1.44018ap-20f, 0x1.625e32p-21f, 0x1.85c314p-22f, 0x1.97cca2p-23f, 0x1.d2fbdap-24f,
     0x1.4d854cp-25f, 0x1.5db71p-26f},
    {-0x1.2420f4p-23f, -0x1.119a2ap-2f, -0x1.8716dap-2f, -0x1.646ff6p-2f, -0x1.03e998p-2f,
     -0x1.4f8994p-3f, -0x1.8fef5p-4f, -0x1.cfc384p-5f, -0x1.039814p-5f, -0x1.2252f4p-6f,
     -0x1.4093b8p-7f, -0x1.63e10ep-8f, -0x1.8792eep-9f, -0x1.adc68p-10f, -0x1.d7a606p-11f,
     -0x1.02a84ap-11f, -0x1.1efd06p-12f, -0x1.37b33cp-13f, -0x1.57ca6ep-14f, -0x1.75fca6p-15f,
     -0x1.9667bap-16f, -0x1.c191aep-17f, -0x1.e9f2aep-18f, -0x1.0eb7fap-18f, 0x1.cb93d8p-20f,
     -0x1.7376e2p-18f, 0x1.abcde4p-18f, -0x1.01a04cp-19f, 0x1.92447cp-18f, 0x1.4966ep-20f,
     0x1.56773cp-17f, -0x1.8d920ap-18f},
    {-0x1.55528cp-2f, -0x1.d09062p-3f, -0x1.1104bep-5f, 0x1.68c7d6p-4f, 0x1.c3ad04p-4f,
     0x1.682036p-4f, 0x1.dbfe48p-5f, 0x1.22babcp-5f, 0x1.4ed776p-6f, 0x1.7c2138p-7f,
     0x1.a7373p-8f, 0x1.d7e4d4p-9f, 0x1.0443e8p-9f, 0x1.1e136cp-10f, 0x1.39fe2cp-11f,
     0x1.588b1ap-12f, 0x1.7a74a6p-13f, 0x1.9f8d78p-14f, 0x1.cac364p-15f, 0x1.f3a344p-16f,
     0x1.0f80f2p-16f, 0x1.2d07c8p-17f, 0x1.49c6e4p-18f, 0x1.6a1eeap-19f, 0x1.dba7a4p-19f,
     0x1.992148p-19f, 0x1.134e12p-18f, 0x1.19909cp-20f, 0x1.c12ee4p-19f, 0x1.9c52fap-21f,
     0x1.67b0cap-18f, 0x1.9c99bep-19f},
    {-0x1.3ec55p-12f, 0x1.3e0efap-3f, 0x1.294426p-3f, 0x1.b0c8cep-5f, -0x1.e321dp-8f,
     -0x1.98c35p-6f, -0x1.706e6ap-6f, -0x1.fe084cp-7f, -0x1.381c1cp-7f, -0x1.7007cep-8f,
     -0x1.9da3bep-9f, -0x1.cee534p-10f, -0x1.02688ep-10f, -0x1.23f6bp-11f, -0x1.131b5ep-12f,
     -0x1.2aebdap-13f, 0x1.dcce9cp-14f, -0x1.a4c6eap-15f, -0x1.06799cp-15f, -0x1.aacdd4p-16f,
     -0x1.c54412p-16f, -0x1.6d1bbcp-17f, -0x1.5dfaf2p-17f, -0x1.97a4b6p-19f, -0x1.70d31p-12f,
     0x1.917f56p-12f, -0x1.482df2p-11f, 0x1.20d032p-13f, -0x1.206d0ap-11f, -0x1.f28544p-14f,
     -0x1.ddc75cp-11f, 0x1.121d4p-11f},
    {0x1.192298p-3f, 0x1.9d73c2p-5f, -0x1.96609ap-5f, -0x1.cc21a4p-5f, -0x1.8a494p-6f,
     -0x1.7b089cp-9f, 0x1.0f495ap-8f, 0x1.2ac00cp-8f, 0x1.adf7e4p-9f, 0x1.10934p-9f,
     0x1.3ec8p-10f, 0x1.6f5192p-11f, 0x1.9a2a5ep-12f, 0x1.c4946p-13f, 0x1.f94bfep-14f,
     0x1.11f21ap-14f, 0x1.cc4352p-15f, 0x1.4db556p-16f, 0x1.522834p-17f, 0x1.c8aefap-18f,
     0x1.0de918p-17f, 0x1.246436p-19f, 0x1.a27746p-20f, 0x1.818858p-21f, -0x1.7ca9e8p-14f,
     -0x1.a05fa4p-14f, -0x1.5433c8p-13f, -0x1.2b94d6p-15f, -0x1.2b3b02p-13f, -0x1.0274bap-15f,
     -0x1.efbd68p-13f, -0x1.1c734ap-13f},
    {-0x1.839566p-6f, -0x1.22b772p-4f, -0x1.e8e0f6p-6f, 0x1.ddb75cp-7f, 0x1.134774p-6f,
     0x1.d112c6p-8f, 0x1.93623cp-10f, -0x1.2c60bcp-11f, -0x1.3b091p-10f, 0x1.33ada6p-14f,
     -0x1.3bcce6p-11f, -0x1.3793fp-11f, -0x1.4651aap-13f, 0x1.10586cp-12f, -0x1.fb7a62p-11f,
     -0x1.2ae32ap-11f, -0x1.547284p-8f, 0x1.412602p-17f, 0x1.9673e4p-14f, 0x1.16a088p-12f,
     0x1.f56b2p-12f, 0x1.53251ap-13f, 0x1.a7a11ap-13f, 0x1.65b85ap-15f, 0x1.24165ap-7f,
     -0x1.3efb7cp-7f, 0x1.045c74p-6f, -0x1.cad598p-9f, 0x1.c9c112p-7f, 0x1.8b850ep-9f,
     0x1.7b2c9cp-6f, -0x1.b31a88p-7f},
};
static constexpr float erf_pieces[][16] = {
    {0.0f, 0x1.04c3p-2f, 0x1.053cep-1f, 0x1.84db8p-1f, 0x1.038e4p+0f, 0x1.449a7p+0f,
     0x1.864d3p+0f, 0x1.c7082p+0f, 0x1.04p+1f, 0x1.24bef8p+1f, 0x1.44ebbp+1f, 0x1.65841p+1f,
     0x1.864f38p+1f, 0x1.a68208p+1f, 0x1.c7514p+1f, 0x1.e7d14p+1f},
    {0.0f, 0x1.b3cf3cp-6f, 0x1.0f134p-1f, 0x1.6f3664p-1f, 0x1.b25fbcp-1f, 0x1.daa76ap-1f,
     0x1.f01726p-1f, 0x1.f9e224p-1f, 0x1.fdea6ep-1f, 0x1.ff603cp-1f, 0x1.ffd4a4p-1f,
     0x1.fff5c2p-1f, 0x1.fffde2p-1f, 0x1.ffff9ap-1f, 0x1.fffffp-1f, 0x1.fffffep-1f},
    {0x1.06eba8p-3f, 0x1.d74828p-5f, 0x1.bd4f88p-1f, 0x1.44800cp-1f, 0x1.9d585p-2f,
     0x1.cef3ccp-3f, 0x1.c42ff8p-4f, 0x1.8868a4p-5f, 0x1.2a875ap-6f, 0x1.8b9a6cp-8f,
     0x1.d67956p-10f, 0x1.e42206p-12f, 0x1.b179f2p-14f, 0x1.5efcdep-16f, 0x1.e2a01ep-19f,
     0x1.24ce2cp-21f},
    {0x1.1886ap-23f, -0x1.13c35ep-2f, -0x1.c66be8p-2f, -0x1.ece868p-2f, -0x1.a31624p-2f,
     -0x1.2581d8p-2f, -0x1.58b426p-3f, -0x1.5cbf4p-4f, -0x1.2f30b8p-5f, -0x1.c46416p-7f,
     -0x1.2a89e6p-8f, -0x1.52090ap-10f, -0x1.4a688ap-12f, -0x1.2204d6p-14f, -0x1.3bee74p-16f,
     -0x1.fac2ep-18f},
    {-0x1.812868p-2f, -0x1.3a26b6p-2f, -0x1.1c9ce2p-3f, 0x1.09e8e8p-5f, 0x1.22f8c2p-3f,
     0x1.55e53ap-3f, 0x1.12ff96p-3f, 0x1.5bdc5p-4f, 0x1.68d328p-5f, 0x1.37eaeep-6f,
     0x1.d20dep-8f, 0x1.268d08p-9f, 0x1.3dc39ap-11f, 0x1.2ffeb8p-13f, 0x1.13e046p-15f,
     0x1.1dc6bep-17f},
    {0x1.1b7124p-15f, 0x1.07cfep-3f, 0x1.777962p-3f, 0x1.2f740ep-3f, 0x1.07fc1ep-4f,
     -0x1.528e62p-7f, -0x1.7c024ep-5f, -0x1.81c7d4p-5f, -0x1.09c2c4p-5f, -0x1.191744p-6f,
     -0x1.efa012p-8f, -0x1.645e1ap-9f, -0x1.afec1ap-11f, -0x1.ade4b8p-13f, 0x1.6ccae6p-11f,
     0x1.5c353cp-11f},
    {0x1.cff0a4p-4f, 0x1.417566p-4f, 0x1.2f65aap-8f, -0x1.bdf4fp-5f, -0x1.17cccep-4f,
     -0x1.6e8374p-5f, -0x1.8ec886p-7f, 0x1.014f18p-7f, 0x1.aace78p-7f, 0x1.470412p-7f,
     0x1.6897fap-8f, 0x1.368dfep-9f, 0x1.b2412cp-11f, 0x1.01daaep-12f, -0x1.5f503cp-13f,
     -0x1.96030ap-13f},
    {-0x1.da2c92p-8f, -0x1.497ca2p-5f, -0x1.8844a6p-5f, -0x1.bbf552p-6f, 0x1.08fef6p-8f,
     0x1.75e06ap-6f, 0x1.7b2b6ap-6f, 0x1.fad56p-8f, 0x1.6c4c5ap-10f, -0x1.c45e12p-9f,
     -0x1.659032p-11f, -0x1.22fcep-10f, -0x1.d98d98p-12f, -0x1.3fdfa8p-11f, -0x1.b0d4b4p-6f,
     -0x1.875b16p-6f},
};

// An odd function that is 1 from ``one`` on.
template <int K, int S>
LITZ_FN Vec<float, 16> in_pieces(const float (&table)[K][S], Vec<float, 16> x, float one, float per_width) {
  using V = Vec<float, 16>;
  V a = min2(V(one), abs(x));
  V piece = mad(a, V(per_width), V(magic<float>));
  auto which = (hw::reg<int, 16>)piece.v;
  V y = a - V(pick(table[0], which));
  V c[K - 1], square = y * y;
  LITZ_UNROLL
  for (int k = 0; k < K - 1; k++) c[k] = V(pick(table[k + 1], which));
  // In pairs, since a processor holds few operations that wait for others
  V r = mad(mad(mad(c[6], y, c[5]), square, mad(c[4], y, c[3])), square, mad(c[2], y, c[1]));
  r = mad(r, y, c[0]);
  r = r + where(piece < V(magic<float> + 2), a, V(0.0f));
  return bitcast<float>(ibits(r) | (ibits(x) & Vec<i32, 16>(1 << 31)));
}
// Of fewer lanes, or of more.
template <int N, int K, int S>
LITZ_FN Vec<float, N> in_pieces(const float (&table)[K][S], Vec<float, N> x, float one, float per_width) {
  return by_registers([&](auto v) LITZ_LAMBDA {
    return in_pieces(table, v, one, per_width);
  }, x);
}

// 1 + erf of quarters from 0 on, and from -4 on, which has nothing left: what is small has its own
// coefficients, that none of its digits cancel.
static constexpr float erf_plus_one_pieces[][32] = {
    {0x1p+0f, 0x1.46bd54p+0f, 0x1.853f7ap+0f, 0x1.b60e4cp+0f, 0x1.d7bb3ep+0f, 0x1.ec432ep+0f,
     0x1.f752aap+0f, 0x1.fc9684p+0f, 0x1.fecd7p+0f, 0x1.ffa024p+0f, 0x1.ffe554p+0f, 0x1.fff968p+0f,
     0x1.fffe8ep+0f, 0x1.ffffb8p+0f, 0x1.fffff4p+0f, 0x1.fffffep+0f, 0.0f, 0x1.e875fp-24f,
     0x1.8ef37ap-21f, 0x1.20c18ep-18f, 0x1.729e3cp-16f, 0x1.a60a2p-14f, 0x1.aab86cp-12f,
     0x1.7f7144p-10f, 0x1.328f5ep-8f, 0x1.b4be1ep-7f, 0x1.15aaa8p-5f, 0x1.3bcd12p-4f,
     0x1.422616p-3f, 0x1.27c6d2p-2f, 0x1.eb0214p-2f, 0x1.72855ap-1f},
    {0x1.20dd74p+0f, 0x1.0f5d18p+0f, 0x1.c1efcap-1f, 0x1.492e44p-1f, 0x1.a911f2p-2f,
     0x1.e4652ep-3f, 0x1.e7237p-4f, 0x1.b0553p-5f, 0x1.529b9cp-6f, 0x1.d4143ap-8f, 0x1.1d8318p-9f,
     0x1.3360d6p-11f, 0x1.2409p-13f, 0x1.e9b638p-16f, 0x1.6a59dep-18f, 0x1.d9381p-21f, 0.0f,
     0x1.d92cfap-21f, 0x1.6a5492p-18f, 0x1.e9b1fap-16f, 0x1.24079cp-13f, 0x1.33601ap-11f,
     0x1.1d82dp-9f, 0x1.d41416p-8f, 0x1.529b9ep-6f, 0x1.b0553ap-5f, 0x1.e7237ep-4f, 0x1.e46534p-3f,
     0x1.a911f2p-2f, 0x1.492e42p-1f, 0x1.c1efc6p-1f, 0x1.0f5d16p+0f},
    {-0x1.033fdp-32f, -0x1.0f5dd2p-2f, -0x1.c1eae2p-2f, -0x1.edc5fp-2f, -0x1.a91528p-2f,
     -0x1.2ebca4p-2f, -0x1.6d55e6p-3f, -0x1.7a4f9p-4f, -0x1.528794p-5f, -0x1.075e1p-6f,
     -0x1.646478p-8f, -0x1.a738aap-10f, -0x1.bfd782p-12f, -0x1.99d85ep-14f, -0x1.b47f88p-16f,
     -0x1.fdff04p-20f, 0.0f, 0x1.bb598p-19f, 0x1.3ce7e8p-16f, 0x1.8dc292p-14f, 0x1.b5f59cp-12f,
     0x1.a6978cp-10f, 0x1.64de06p-8f, 0x1.0749e2p-6f, 0x1.529bd4p-5f, 0x1.7a4bc6p-4f,
     0x1.6d5bdep-3f, 0x1.2ec022p-2f, 0x1.a91228p-2f, 0x1.edc3fp-2f, 0x1.c1eee6p-2f, 0x1.0f59dp-2f},
    {-0x1.812322p-2f, -0x1.3c9e12p-2f, -0x1.2bf3a8p-3f, 0x1.b6bbeap-6f, 0x1.1b5d7cp-3f,
     0x1.571e7cp-3f, 0x1.1c2b76p-3f, 0x1.7149ap-4f, 0x1.8b0ce8p-5f, 0x1.63efd6p-6f, 0x1.119ce4p-7f,
     0x1.69caa8p-9f, 0x1.9dac14p-11f, 0x1.9a90dep-13f, 0x1.62b1fcp-15f, 0x1.0b4c4ep-17f, 0.0f,
     0x1.0c08ep-17f, 0x1.6364dp-15f, 0x1.9b1efep-13f, 0x1.9e08b4p-11f, 0x1.69fb3p-9f,
     0x1.11af66p-7f, 0x1.63f912p-6f, 0x1.8b0c06p-5f, 0x1.714478p-4f, 0x1.1c2486p-3f,
     0x1.571898p-3f, 0x1.1b5df2p-3f, 0x1.b6f466p-6f, -0x1.2be522p-3f, -0x1.3c974ap-2f},
    {0x1.370e24p-26f, 0x1.02fe6ap-3f, 0x1.734edep-3f, 0x1.33ec5ap-3f, 0x1.1e41dp-4f,
     -0x1.9e25c6p-8f, -0x1.6e8278p-5f, -0x1.86d668p-5f, -0x1.1e1dcp-5f, -0x1.35b3b8p-6f,
     -0x1.28c78ap-7f, -0x1.9fdba6p-9f, -0x1.2f516ep-11f, -0x1.3008b6p-13f, 0x1.35dca4p-12f,
     -0x1.6937f8p-14f, 0.0f, 0x1.de9a7ap-17f, 0x1.2339cap-14f, 0x1.32a0bap-12f, 0x1.161b4cp-10f,
     0x1.afecbap-9f, 0x1.1c9bc6p-7f, 0x1.39bb1ap-6f, 0x1.1a10f4p-5f, 0x1.885c6p-5f, 0x1.69bf46p-5f,
     0x1.717fc4p-8f, -0x1.1bdb6ep-4f, -0x1.331f9p-3f, -0x1.74eadap-3f, -0x1.0163ap-3f},
    {0x1.c94caap-4f, 0x1.4c0448p-4f, 0x1.d9fcfcp-8f, -0x1.ad49a6p-5f, -0x1.18d0d4p-4f,
     -0x1.833368p-5f, -0x1.ee4894p-7f, 0x1.a8c3f4p-8f, 0x1.a97a62p-7f, 0x1.5cafcep-7f,
     0x1.91c8c4p-8f, 0x1.6b856cp-9f, 0x1.0d492ep-10f, 0x1.4df036p-12f, 0x1.5f229ep-14f,
     0x1.3bbccap-16f, 0.0f, 0x1.284f0cp-16f, 0x1.4cc716p-14f, 0x1.3f66eep-12f, 0x1.03d71ep-10f,
     0x1.61a8d6p-9f, 0x1.8a4764p-8f, 0x1.58f25ap-7f, 0x1.aa24d4p-7f, 0x1.b97f36p-8f,
     -0x1.d827ep-7f, -0x1.7e863ep-5f, -0x1.191438p-4f, -0x1.b29d3p-5f, 0x1.811438p-8f,
     0x1.470284p-4f},
};
LITZ_FN Vec<float, 16> erf_plus_one_in_pieces(Vec<float, 16> x) {
  using V = Vec<float, 16>;
  V a = clamp(x, -4.0f, 3.87f), piece = mad(a, V(4.0f), V(magic<float>));
  V y = mad(piece - V(magic<float>), V(-0.25f), a);
  return poly_of<0>(erf_plus_one_pieces, y, (hw::reg<int, 16>)piece.v);
}

}  // namespace detail

template <int N> LITZ_FN Vec<float, N> erf_plus_one(Vec<float, N> x) {
  return detail::by_registers([](auto v) LITZ_LAMBDA { return detail::erf_plus_one_in_pieces(v); }, x);
}
template <int N> LITZ_FN Vec<float, N> tanh(Vec<float, N> x) {
  return detail::in_pieces(detail::tanh_pieces, x, 0x1.2cp+3f, 1 / 0.3f);
}
template <int N> LITZ_FN Vec<float, N> erf(Vec<float, N> x) {
  return detail::in_pieces(detail::erf_pieces, x, 0x1.f7p+1f, 256.0f / 65);
}
#else
template <int N> LITZ_FN Vec<float, N> tanh(Vec<float, N> x) { return detail::tanh_of(x); }
template <int N> LITZ_FN Vec<float, N> erf(Vec<float, N> x) {
  using V = Vec<float, N>;
  const V one(1.0f);
  V t = detail::min2(V(4.0f), abs(x));
  // erfc(t) = e^-q = s (1 - e), s a power of two: erf(t) = (1 - s) + s e, which of small t is e
  V p = detail::poly(t, 0x1.06eba8p-3f, 0x1.45f3p-1f, 0x1.a4f8a2p-4f, -0x1.39b412p-6f,
                     -0x1.683cc0p-13f, 0x1.b80018p-10f, -0x1.4f17p-11f, 0x1.f4deb6p-14f,
                     -0x1.3d4aaap-17f);
  V q = mad(p, t, t), q_low = mad(p, t, t - q);
  const V to_exponent(0x1.8p23f + 127);
  V m = mad(q, V(-0x1.715476p+0f), to_exponent);
  V n = m - to_exponent, s = bitcast<float>(ibits(m) << 23);
  V r = mad(n, V(0x1.62e43p-1f), q);
  V e = detail::poly(r, -0x1p-1f, 0x1.555556p-3f, -0x1.5554e4p-5f, 0x1.110feep-7f,
                     -0x1.6d5168p-10f, 0x1.a273f2p-13f);
  e = r + mad(e, r * r, q_low);
  return bitcast<float>(ibits(mad(s, e, one - s)) | (ibits(x) & Vec<i32, N>(1 << 31)));
}
template <int N> LITZ_FN Vec<float, N> erf_plus_one(Vec<float, N> x) { return Vec<float, N>(1.0f) + erf(x); }
#endif
LITZ_SCALAR_1_(float, tanh)
LITZ_SCALAR_1_(float, erf)
LITZ_SCALAR_1_(float, erf_plus_one)

}  // namespace litz
