/* t_row_order.c - the order of tokens' rows where sequences are split over ranks: there and back, beside a list that is
 * made row by row, and beside the rank that each position is for. */
#include "src/graph/row_order.h"
#include "tests/unit/row_list.h"
#include "tests/unit/tap.h"

enum { BLOCKS = 3, CP_MOST = 8, SEQUENCES_MOST = 3, UNITS_MOST = 9 };

/* T is `units` times the least length that can be split so. */
static const int units[] = { 1, 2, 3, 4, UNITS_MOST };
enum { LENGTHS = sizeof units / sizeof *units };

static struct tc_row_order order_of(int cp, bool zigzag, int64_t sequences, int length)
{
  const int64_t least = cp < 2 ? 1 : zigzag ? 2 * cp : cp;
  return (struct tc_row_order){ .T = units[length] * least, .sequences = sequences, .cp = cp, .zigzag = zigzag };
}

/* How many rows of several blocks have another natural row, or another way back, than the list's. */
static int64_t wrong_rows(const struct tc_row_order *o)
{
  static int64_t list[UNITS_MOST * 2 * CP_MOST * SEQUENCES_MOST];
  static bool there[BLOCKS * UNITS_MOST * 2 * CP_MOST * SEQUENCES_MOST];
  const int64_t block = o->sequences * o->T;
  int64_t wrong = 0;
  list_rows(list, o->sequences, o->T, o->cp > 0 ? o->cp : 1, o->zigzag);
  memset(there, 0, sizeof there);
  for (int64_t row = 0; row < BLOCKS * block; row++) {
    const int64_t natural = tc_natural_row(o, row), want = row / block * block + list[row % block];
    wrong += natural != want || tc_row_of(o, want) != row;
    if (natural >= 0 && natural < BLOCKS * block) there[natural] = true;
  }
  for (int64_t n = 0; n < BLOCKS * block; n++) wrong += !there[n] || tc_natural_row(o, tc_row_of(o, n)) != n;
  return wrong;
}

static void test_lists(int cp, bool zigzag)
{
  int64_t wrong = 0;
  for (int64_t sequences = 1; sequences <= SEQUENCES_MOST; sequences++)
    for (int i = 0; i < LENGTHS; i++) {
      const struct tc_row_order o = order_of(cp, zigzag, sequences, i);
      wrong += wrong_rows(&o);
    }
  is_int(wrong, 0, "cp %d%s: each row has its place, and the way back is to it", cp, zigzag ? ", zigzag" : "");
}

/* The rank that a position is for. */
static int64_t owner(const struct tc_row_order *o, int64_t position)
{
  if (!o->zigzag) return position * o->cp / o->T;
  const int64_t chunk = position * 2 * o->cp / o->T;
  return chunk < o->cp ? chunk : 2 * o->cp - 1 - chunk;
}

/* An even split of each block: a rank's rows are of each sequence in turn, by position: all that it is the owner of. */
static void test_parts(int cp, bool zigzag)
{
  int64_t wrong = 0;
  for (int64_t sequences = 1; sequences <= SEQUENCES_MOST; sequences++)
    for (int i = 0; i < LENGTHS; i++) {
      const struct tc_row_order o = order_of(cp, zigzag, sequences, i);
      const int64_t block = sequences * o.T, part = block / cp;
      for (int64_t b = 0; b < BLOCKS; b++)
        for (int64_t rank = 0; rank < cp; rank++) {
          int64_t row = b * block + rank * part;
          for (int64_t n = b * block; n < (b + 1) * block; n++)
            if (owner(&o, n % o.T) == rank) wrong += tc_natural_row(&o, row++) != n;
          wrong += row != b * block + (rank + 1) * part;
        }
    }
  is_int(wrong, 0, "cp %d%s: each rank has its part of every sequence", cp, zigzag ? ", zigzag" : "");
}

/* Pairs of a query and a key that it sees, of a rank's queries in the first block. */
static int64_t pairs(const struct tc_row_order *o, int64_t rank)
{
  const int64_t part = o->sequences * o->T / o->cp;
  int64_t n = 0;
  for (int64_t row = rank * part; row < (rank + 1) * part; row++) n += tc_natural_row(o, row) % o->T + 1;
  return n;
}

static void test_balance(int cp)
{
  int64_t uneven = 0, growing = 0, cases = 0;
  for (int64_t sequences = 1; sequences <= SEQUENCES_MOST; sequences++)
    for (int i = 0; i < LENGTHS; i++)
      for (int64_t rank = 0; rank + 1 < cp; rank++) {
        const struct tc_row_order zigzag = order_of(cp, true, sequences, i), plain = order_of(cp, false, sequences, i);
        const int64_t all = sequences * zigzag.T * (zigzag.T + 1) / 2;
        uneven += pairs(&zigzag, rank) * cp != all || pairs(&zigzag, rank + 1) * cp != all;
        growing += pairs(&plain, rank) < pairs(&plain, rank + 1);
        cases++;
      }
  is_int(uneven, 0, "cp %d, zigzag: each rank has as many causal pairs", cp);
  is_int(growing, cases, "... and without it the later one has more");
}

/* Rows whose numbers are of more than 32 bits. */
static void test_far(void)
{
  const struct tc_row_order o = { .T = 131072, .sequences = 2, .cp = 8, .zigzag = true };
  const int64_t block = o.sequences * o.T, first = (INT64_C(1) << 40) / block * block;
  is_int(tc_natural_row(&o, first), first, "a far block: its first row is its first token");
  is_int(tc_natural_row(&o, first + 8192), first + o.T - 8192, "... the first rank's other half is the sequence's end");
  is_int(tc_row_of(&o, first + block - 1), first + block / 8 - 1, "... whose last token is the first rank's last row");
  is_int(tc_natural_row(&o, first + block - 1), first + o.T + 9 * 8192 - 1,
         "... and the last rank's last row is past the middle");
}

int main(void)
{
  for (int cp = 0; cp <= CP_MOST; cp++)
    for (int zigzag = 0; zigzag < 2; zigzag++) test_lists(cp, zigzag);
  for (int cp = 1; cp <= CP_MOST; cp++)
    for (int zigzag = 0; zigzag < 2; zigzag++) test_parts(cp, zigzag);
  for (int cp = 2; cp <= CP_MOST; cp++) test_balance(cp);
  test_far();
  return done_testing();
}
