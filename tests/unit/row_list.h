/* row_list.h - the order of the rows of a block of sequences (graph/row_order.h) as a list, made row by row. */
#ifndef TC_TEST_ROW_LIST_H
#define TC_TEST_ROW_LIST_H

#include <stdbool.h>
#include <stdint.h>

/* natural[row] = sequence * T + position, of a block [cp][sequence][T / cp]; cp 1: the natural order. */
static inline void list_rows(int64_t *natural, int64_t sequences, int64_t T, int cp, bool zigzag)
{
  const int64_t part = T / cp, half = T / (2 * cp);
  for (int rank = 0; rank < cp; rank++)
    for (int64_t s = 0; s < sequences; s++) {
      if (!zigzag || cp == 1) {
        for (int64_t t = rank * part; t < (rank + 1) * part; t++) *natural++ = s * T + t;
        continue;
      }
      for (int64_t t = rank * half; t < (rank + 1) * half; t++) *natural++ = s * T + t;
      for (int64_t t = T - (rank + 1) * half; t < T - rank * half; t++) *natural++ = s * T + t;
    }
}

#endif
