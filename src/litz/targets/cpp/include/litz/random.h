// Philox4x32-10 (Salmon et al., 2011): random numbers that are a function of seed and offset.
//
// key = seed (64 bits); counter = offset >> 2 (the upper 64 bits of the counter are zero); an element
// takes word offset & 3 of the block, so four consecutive offsets share one block.  Vectors whose
// offsets are consecutive from a multiple of four compute each block once.
//   rand:    the word's upper 24 bits, as a float in [0, 1)
//   randn:   words 2k and 2k + 1 give a pair of normals (Box-Muller): radius and angle
//   randint: lo + word * range / 2^32 for ranges up to 2^32, else 64 bits (this word, its partner)
//            modulo range
#pragma once
#include <litz/math.h>
#include <litz/memory.h>

namespace litz {
namespace philox {

// The full products of the lower words of 8-byte lanes; the upper words may hold anything.
#if LITZ_GNU_X86 && defined(__AVX2__)
LITZ_FN hw::reg<u64, 2> mul_low(hw::reg<u64, 2> a, hw::reg<u64, 2> b) {
  return (hw::reg<u64, 2>)__builtin_ia32_pmuludq128((hw::reg<int, 4>)a, (hw::reg<int, 4>)b);
}
LITZ_FN hw::reg<u64, 4> mul_low(hw::reg<u64, 4> a, hw::reg<u64, 4> b) {
  return (hw::reg<u64, 4>)__builtin_ia32_pmuludq256((hw::reg<int, 8>)a, (hw::reg<int, 8>)b);
}
#endif
#if LITZ_KMASK
LITZ_FN hw::reg<u64, 8> mul_low(hw::reg<u64, 8> a, hw::reg<u64, 8> b) {
  return (hw::reg<u64, 8>)__builtin_ia32_pmuludq512_mask(
      (hw::reg<int, 16>)a, (hw::reg<int, 16>)b, hw::reg<long long, 8>{}, -1);
}
#endif
template <class R> LITZ_FN R mul_low(R a, R b) { return (a & 0xffffffffu) * b; }
template <int N> LITZ_FN Vec<u64, N> mul_low(Vec<u64, N> a, u32 m) {
  if constexpr (form<u64, N> == SPLIT) return {mul_low(a.lo, m), mul_low(a.hi, m)};
  else return mul_low(a.v, Vec<u64, N>((u64)m).v);
}

template <int N> struct Block {
  Vec<u32, N> w[4];
};
// State and key stay in 8-byte lanes, of which only the lower words count.
template <int N> LITZ_FN Block<N> block(Vec<u64, N> key, Vec<u64, N> counter) {
  using W = Vec<u64, N>;
  W k0 = key, k1 = key >> 32, c0 = counter, c1 = counter >> 32, c2 = W((u64)0), c3 = c2;
  LITZ_UNROLL
  for (int round = 0; round < 10; round++) {
    W p0 = mul_low(c0, 0xD2511F53u), p1 = mul_low(c2, 0xCD9E8D57u);
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c3 = p0;
    k0 = k0 + W((u64)0x9E3779B9u);
    k1 = k1 + W((u64)0xBB67AE85u);
  }
  return {{cast<u32>(c0), cast<u32>(c1), cast<u32>(c2), cast<u32>(c3)}};
}

// The word of each offset, and the word that shares its pair (0 with 1, 2 with 3).
template <int N> struct Words {
  Vec<u32, N> own, partner;
};
template <int N> LITZ_FN Words<N> words(Vec<i64, N> seed, Vec<i64, N> offset) {
  using U = Vec<u32, N>;
  if constexpr (N >= 8) {
    i64 first = offset[0];
    auto in_turn = (offset == iota<N>(first)) & (seed == Vec<i64, N>(seed[0]));
    if (LITZ_LIKELY((first & 3) == 0 && hall(in_turn))) {
      using Q = Vec<u64, N / 4>;
      Block<N / 4> b = block<N / 4>(Q((u64)seed[0]), iota<N / 4>((u64)first >> 2));
      auto a0 = detail::zip_low(b.w[0], b.w[2]), a1 = detail::zip_high(b.w[0], b.w[2]);
      auto b0 = detail::zip_low(b.w[1], b.w[3]), b1 = detail::zip_high(b.w[1], b.w[3]);
      U own = join(join(detail::zip_low(a0, b0), detail::zip_high(a0, b0)),
                   join(detail::zip_low(a1, b1), detail::zip_high(a1, b1)));
      return {own, detail::swap_pairs(own)};
    }
  }
  Block<N> b = block<N>(bitcast<u64>(seed), bitcast<u64>(offset) >> 2);
  U which = cast<u32>(offset) & U(3u);
  auto odd = (which & U(1u)) != U(0u), upper = which >= U(2u);
  U even_word = where(upper, b.w[2], b.w[0]), odd_word = where(upper, b.w[3], b.w[1]);
  return {where(odd, odd_word, even_word), where(odd, even_word, odd_word)};
}

// sin (or, a quarter turn on, cos) of a random angle: the top bits choose the quadrant, the rest a
// place in it, centred.  The constant turn of pi/4 against 2 pi w / 2^32 changes no distribution.
template <int N> LITZ_FN Vec<float, N> random_sin(Vec<u32, N> w, Vec<bool, N> as_cos) {
  using V = Vec<float, N>;
  using U = Vec<u32, N>;
  U q = (w >> 30) + where(as_cos, U(1u), U(0u));
  V f = cast<float>(bitcast<i32>(w & U(0x3fffffffu))) * V(0x1p-30f) - V(0.5f);
  V r = f * V(0x1.921fb6p+0f);
  V z = r * r;
  V s = detail::poly(z, -0x1.555554p-3f, 0x1.11103cp-7f, -0x1.9943f2p-13f);
  V c = detail::poly(z, -0x1p-1f, 0x1.55554cp-5f, -0x1.6c0afp-10f, 0x1.98f5aep-16f);
  V v = where((q & U(1u)) != U(0u), mad(c, z, V(1.0f)), mad(s * z, r, r));
  return where((q & U(2u)) != U(0u), -v, v);
}

}  // namespace philox

template <int N> LITZ_FN Vec<float, N> rand(Vec<i64, N> seed, Vec<i64, N> offset) {
  auto w = philox::words(seed, offset).own >> 8;
  return cast<float>(bitcast<i32>(w)) * Vec<float, N>(0x1p-24f);
}

template <int N> LITZ_FN Vec<float, N> randn(Vec<i64, N> seed, Vec<i64, N> offset) {
  using V = Vec<float, N>;
  using U = Vec<u32, N>;
  auto w = philox::words(seed, offset);
  auto odd = (cast<u32>(offset) & U(1u)) != U(0u);
  U radius = where(odd, w.partner, w.own), angle = where(odd, w.own, w.partner);
  V u = mad(cast<float>(radius), V(0x1p-32f), V(0x1p-33f));  // in (0, 1]
  return sqrt(log(u) * V(-2.0f)) * philox::random_sin(angle, !odd);
}

template <int N>
LITZ_FN Vec<i64, N> randint(Vec<i64, N> seed, Vec<i64, N> offset, Vec<i64, N> lo, Vec<i64, N> hi) {
  using W = Vec<u64, N>;
  auto w = philox::words(seed, offset);
  W range = bitcast<u64>(hi) - bitcast<u64>(lo), own = cast<u64>(w.own);
  auto small = range <= W((u64)1 << 32);
  W r = (own * range) >> 32;
  if (LITZ_UNLIKELY(!hall(small))) {
    W wide = own << 32 | cast<u64>(w.partner);
    u64 x[N], n[N];
    store(x, wide);
    store(n, range);
    for (int i = 0; i < N; i++) x[i] = n[i] ? x[i] % n[i] : 0;
    r = where(small, r, load<N>(x));
  }
  return lo + bitcast<i64>(r);
}

// Scalars, and vectors with a scalar seed or bounds.
LITZ_FN float rand(i64 seed, i64 offset) {
  return rand(Vec<i64, 2>(seed), Vec<i64, 2>(offset))[0];
}
LITZ_FN float randn(i64 seed, i64 offset) {
  return randn(Vec<i64, 4>(seed), Vec<i64, 4>(offset))[0];
}
LITZ_FN i64 randint(i64 seed, i64 offset, i64 lo, i64 hi) {
  using W = Vec<i64, 2>;
  return randint(W(seed), W(offset), W(lo), W(hi))[0];
}
template <int N> LITZ_FN Vec<float, N> rand(i64 seed, Vec<i64, N> offset) {
  return rand(Vec<i64, N>(seed), offset);
}
template <int N> LITZ_FN Vec<float, N> randn(i64 seed, Vec<i64, N> offset) {
  return randn(Vec<i64, N>(seed), offset);
}
template <int N> LITZ_FN Vec<i64, N> randint(i64 seed, Vec<i64, N> offset, i64 lo, i64 hi) {
  using W = Vec<i64, N>;
  return randint(W(seed), offset, W(lo), W(hi));
}

}  // namespace litz
