// Updates in the order of the rows that they change.
#pragma once
#include <litz/loops.h>

namespace litz {

// The updates of row k are order[from[k]] .. order[from[k + 1] - 1], as they come; those whose place
// is negative have none.  from: rows + 2 numbers; order: one more than updates, the last of them 0.
static inline void sort_places(const i32* places, i64 count, i64 rows, i32* from, i32* order) {
  for (i64 k = 0; k < rows + 2; ++k) from[k] = 0;
  for (i64 i = 0; i < count; ++i)
    if (places[i] >= 0) ++from[places[i] + 2];
  for (i64 k = 2; k < rows + 2; ++k) from[k] += from[k - 1];
  for (i64 i = 0; i < count; ++i)
    if (places[i] >= 0) order[from[places[i] + 1]++] = (i32)i;
  order[from[rows]] = 0;
}
// Updates of a room, one by one.
template <class U, class T> LITZ_FN void update_each(T* room, const T* v, const i32* at, i64 n) {
#pragma GCC unroll 8
  for (i64 i = 0; i < n; ++i) room[at[i]] = U::apply(room[at[i]], v[i]);
}
// The first row that has at least so many rows and updates before it.
LITZ_FN i64 row_of(const i32* from, i64 rows, i64 unit) {
  i64 lo = 0, hi = rows;
  while (lo < hi) {
    const i64 k = (lo + hi) / 2;
    if (k + from[k] < unit) lo = k + 1;
    else hi = k;
  }
  return lo;
}

}  // namespace litz
