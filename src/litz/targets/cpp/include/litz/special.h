// erfc, erfinv, digamma and lgamma of float, computed in double (see wide.h).
#pragma once
#include <litz/rare.h>
#include <litz/wide.h>

namespace litz {
namespace wide {

template <class D> LITZ_FN D erfc(D x) {
  D a = detail::min2(D(10.5), abs(x));
  D u = (a - D(4.0)) / (a + D(4.0));
  D scaled = poly(u, 0x1.18932bf08e630p-3, -0x1.09492273736e3p-2, 0x1.bff01a5f39a29p-3,
                  -0x1.506666f7707b5p-3, 0x1.be502c552e8d5p-4, -0x1.027d56f9f6b19p-4,
                  0x1.0066dd35fd90ep-5, -0x1.a4df00e7051a1p-7, 0x1.0a189fbaa9b62p-8,
                  -0x1.a2e07072ebd4ap-11, -0x1.6d42b4db43313p-16, 0x1.4862883eef391p-14,
                  -0x1.86c23dbd02bb6p-16, -0x1.59591bf66b2d9p-20, 0x1.3dd594a71ddf1p-18,
                  0x1.f1fc116b93d64p-21);
  D r = scaled * wide::exp(-a * a);
  return where(x < D(0.0), D(2.0) - r, r);
}

// erfinv(x) / x as a function of w = -log(1 - x^2); of w for small ones, of sqrt(w) above.
template <class D> LITZ_FN D erfinv(D x) {
  D w = -wide::log(detail::max2(D(0x1p-60), (D(1.0) - x) * (D(1.0) + x)));
  D c = w - D(2.5);
  D central = poly(c, 0x1.805c5cff94d32p+0, 0x1.f91e8b466d8cbp-3, -0x1.11c3e1eca9f9fp-8,
                   -0x1.486685ea48e7fp-10, 0x1.c9bb8d2d7ab33p-13, -0x1.4cd7be9331756p-18,
                   -0x1.cbda8261ffc25p-19, 0x1.f3c01344b90cap-22, 0x1.1b3f5ee28ee01p-26,
                   -0x1.2c4c5dc1bbf6ep-27, 0x1.de69e890b0325p-32);
  D t = sqrt(w) - D(3.0);
  D tail = poly(t, 0x1.6a9efbe264662p+1, 0x1.006dca31238b7p+0, 0x1.357fa590a2a39p-7,
                -0x1.f4e6d948e6e99p-8, 0x1.74d6c6c6e9499p-8, -0x1.d356f3fbc0cd5p-9,
                0x1.819721c6809f8p-10, -0x1.ff5bc23f555cdp-14, -0x1.1de56002fd446p-12,
                0x1.5151a086beb2ap-13, -0x1.0409f5b7fe79ap-15);
  D r = x * where(w < D(5.0), central, tail);
  r = where(abs(x) == D(1.0), x * D(inf64), r);
  return where(abs(x) <= D(1.0), r, D(nan64));
}

}  // namespace wide

LITZ_WIDE_1_(erfc)
LITZ_WIDE_1_(erfinv)

}  // namespace litz
