/* row_order.h - where the tokens of a batch are: the order of their rows. Pure; for hosts and devices.
 *
 * Rows come in blocks of whole sequences: those of one micro-batch on one rank of dp. Where context parallelism splits
 * sequences over cp ranks, a block is [cp][sequence][T / cp], so that an even split of rows is one of each sequence, too.
 * Part i of a sequence is positions [i T / cp, (i + 1) T / cp); with zigzag it is halves i and 2 cp - 1 - i of 2 cp, in
 * this order, which under a causal mask are as much work as any other part's. One rank has the natural order: sequence after
 * sequence, position after position. */
#ifndef TC_ROW_ORDER_H
#define TC_ROW_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TC_BOTH __host__ __device__
#else
#define TC_BOTH
#endif

/* sequences: of a block. zigzag: 2 cp divides T, else cp does. cp 0 or 1: the natural order. */
struct tc_row_order { int64_t T, sequences; int32_t cp; bool zigzag; };

/* sequence * T + position of a row. */
TC_BOTH static inline int64_t tc_natural_row(const struct tc_row_order *o, int64_t row)
{
  if (o->cp <= 1) return row;
  const int64_t part = o->T / o->cp, block = o->sequences * o->T, r = row % block;
  const int64_t i = r / (o->sequences * part), s = r / part % o->sequences, k = r % part, half = part / 2;
  const bool second = o->zigzag && k >= half;
  const int64_t at = !o->zigzag ? i * part + k : second ? (2 * o->cp - 1 - i) * half + k - half : i * half + k;
  return (row / block * o->sequences + s) * o->T + at;
}

/* The same of an element of a tensor whose rows have so many columns. */
TC_BOTH static inline int64_t tc_natural_element(const struct tc_row_order *o, int64_t element, int64_t columns)
{
  if (o->cp <= 1) return element;
  return tc_natural_row(o, element / columns) * columns + element % columns;
}

/* The row of a sequence's position, given sequence * T + position. */
TC_BOTH static inline int64_t tc_row_of(const struct tc_row_order *o, int64_t natural)
{
  if (o->cp <= 1) return natural;
  const int64_t part = o->T / o->cp, half = part / 2, sequence = natural / o->T, p = natural % o->T;
  const int64_t chunk = o->zigzag ? p / half : 0;            /* of 2 cp */
  const bool second = o->zigzag && chunk >= o->cp;
  const int64_t i = !o->zigzag ? p / part : second ? 2 * o->cp - 1 - chunk : chunk;
  const int64_t k = !o->zigzag ? p % part : p % half + (second ? half : 0);
  const int64_t b = sequence / o->sequences, s = sequence % o->sequences;
  return ((b * o->cp + i) * o->sequences + s) * part + k;
}

#endif
