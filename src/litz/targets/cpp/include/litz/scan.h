// Scans along the lanes of a vector, and what combines states where earlier ones come first.
#pragma once
#include <litz/load.h>

namespace litz {

namespace detail {
#if LITZ_SHUFFLEVECTOR
// Lane i takes lane i - By of v, the first ones the last of rest.
template <int By, class R, int... I> LITZ_FN R behind(R rest, R v, hw::seq<I...>) {
  return __builtin_shufflevector(rest, v, (I + (int)sizeof...(I) - By)...);
}
template <int By, class T, int N, class F> LITZ_FN Vec<T, N> steps(Vec<T, N> v, Vec<T, N> none, F f) {
  if constexpr (By < N) {
    const Vec<T, N> before(behind<By>(none.v, v.v, hw::count_to<N>()));
    return steps<2 * By>(f(before, v), none, f);
  } else {
    return v;
  }
}
#endif
template <class T, int N, class F> LITZ_FN Vec<T, N> within(Vec<T, N> v, T none, F f) {
  if constexpr (form<T, N> == SPLIT) {
    const auto lo = within(v.lo, none, f), hi = within(v.hi, none, f);
    return Vec<T, N>(lo, f(Vec<T, N / 2>(lo[N / 2 - 1]), hi));
  } else {
#if LITZ_SHUFFLEVECTOR
    if constexpr (form<T, N> == LEAF) return steps<1>(v, Vec<T, N>(none), f);
#endif
    T out[N];
    store(out, v);
    for (int i = 1; i < N; i++) out[i] = f(out[i - 1], out[i]);
    return load<N>(out);
  }
}
}  // namespace detail

// Each lane combined with all before it, behind those of the state, which takes them all.
// none: what changes no state.
template <class T, int N, class F> LITZ_FN Vec<T, N> scan_lanes(T& state, Vec<T, N> v, T none, F f) {
  const Vec<T, N> out = f(Vec<T, N>(state), detail::within(v, none, f));
  state = out[N - 1];
  return out;
}

// A running best value and its place: nan before all, of equal ones the later.
template <bool Max, class V, class I> LITZ_FN void take_last(V& acc, I& at, V v, I i) {
  const auto m = or_(Max ? ge(v, acc) : le(v, acc), ne(v, v));
  acc = where(m, v, acc);
  at = where(m, i, at);
}

namespace detail {
#if LITZ_SHUFFLEVECTOR
// Lane i takes lane i - By of v, the first ones their own.
template <int By, class R, int... I> LITZ_FN R earlier(R v, hw::seq<I...>) {
  return __builtin_shufflevector(v, v, (I < By ? I : I - By)...);
}
template <bool Max, int By, class T, class I, int N>
LITZ_FN void latest(Vec<T, N>& v, Vec<I, N>& i) {
  if constexpr (By < N) {
    Vec<T, N> acc(earlier<By>(v.v, hw::count_to<N>()));
    Vec<I, N> at(earlier<By>(i.v, hw::count_to<N>()));
    take_last<Max>(acc, at, v, i);
    v = acc, i = at;
    latest<Max, 2 * By>(v, i);
  }
}
#endif
}  // namespace detail

// Running best values along lanes, behind a state that takes them all. Mostly none beats it.
template <bool Max, class T, class I, int N>
LITZ_FN void scan_latest(T& state, I& at, Vec<T, N>& v, Vec<I, N>& i) {
  Vec<T, N> acc(state);
  Vec<I, N> place(at);
  const auto taken = or_(Max ? ge(v, acc) : le(v, acc), ne(v, v));
  if (LITZ_LIKELY(!hany(taken))) {
    v = acc, i = place;
    return;
  }
#if LITZ_SHUFFLEVECTOR
  if constexpr (form<T, N> == LEAF && form<I, N> == LEAF) {
    detail::latest<Max, 1>(v, i);
    take_last<Max>(acc, place, v, i);
    v = acc, i = place;
    state = v[N - 1], at = i[N - 1];
    return;
  }
#endif
  T values[N];
  I places[N];
  store(values, v);
  store(places, i);
  for (int j = 0; j < N; j++) {
    take_last<Max>(state, at, values[j], places[j]);
    values[j] = state;
    places[j] = at;
  }
  v = load<N>(values);
  i = load<N>(places);
}

}  // namespace litz
