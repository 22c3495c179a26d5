/* fragments.cc - which lane of a warp has which elements of `mma` and `ldmatrix`, as the kernels' addresses (ptx.h) and the
 * emulated GPU have it, beside the tables of tests/emu/cutlass.cc. A program of tests/check-fragments.
 *
 *   fragments TABLE            # lines "A|B|C LANE VALUE ROW COLUMN" and "N|T LANE REGISTER HALF SOURCE ELEMENT"
 *
 * Element (row, k) of A is the number row + 16 k, element (n, k) of B is n + 8 k: bf16 has all of them. */
#include "kernels/cuda/ptx.h"

#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <vector>

enum { LANES = 32, LD = 16 + 8 };
struct place { int row, col; };
/* a, b: by lane and value. from: by register and half, of a lane: the lane that gave the row, and its element. */
static place a_at[LANES][8], b_at[LANES][4], c_at[LANES][4], from[2][LANES][4][2];
static int lines[256], failed, checks;

static void check(bool good, const char *what)
{
  failed |= !good;
  printf("%s %d - %s\n", good ? "ok" : "not ok", ++checks, what);
}

static bool read_table(const char *path)
{
  FILE *f = fopen(path, "r");
  char kind;
  int lane, i, j, k, l;
  while (f && fscanf(f, " %c %d %d %d %d", &kind, &lane, &i, &j, &k) == 5) {
    lines[(int)kind]++;
    if (kind == 'A') a_at[lane][i] = { j, k };
    else if (kind == 'B') b_at[lane][i] = { j, k };
    else if (kind == 'C') c_at[lane][i] = { j, k };
    else if (fscanf(f, "%d", &l) == 1) from[kind == 'T'][lane][i][j] = { k, l };
  }
  if (f) fclose(f);
  return lines['A'] == 256 && lines['B'] == 128 && lines['C'] == 128 && lines['N'] == 256 && lines['T'] == 256;
}

static uint16_t number(int x) { return (uint16_t)(__float_as_uint((float)x) >> 16); }
static uint16_t half_of(uint32_t r, int half) { return (uint16_t)(r >> 16 * half); }

/* Results of the kernel, by lane; the emulated device's memory is not the host's, but static memory is both's. */
static uint16_t tile[16 * LD];                   /* bf16: [row][column], LD apart */
static uint32_t loaded[3][LANES][4];
static float product[LANES][4];

/* A by tc_row_block; B by tc_col_block from rows of n, and transposed by tc_row_block from rows of k. */
static __global__ void load(bool is_b_of_k)
{
  const int lane = (int)threadIdx.x;
  if (is_b_of_k) {
    tc_ldmatrix<true>(loaded[2][lane], tc_row_block<LD>(tile, 0, 0, lane));
    return;
  }
  tc_ldmatrix<false>(loaded[0][lane], tc_row_block<LD>(tile, 0, 0, lane));
  tc_ldmatrix<false>(loaded[1][lane], tc_col_block<LD>(tile, 0, 0, lane));
}

/* Rows of 8 elements, one a lane, as the instruction takes them. */
static uint16_t rows[LANES][8];
static __global__ void load_rows(void)
{
  const int lane = (int)threadIdx.x;
  tc_ldmatrix<false>(loaded[0][lane], rows[lane]);
  tc_ldmatrix<true>(loaded[1][lane], rows[lane]);
}

static int hot_lane, hot_value;
static __global__ void multiply(void)
{
  const int lane = (int)threadIdx.x;
  uint32_t a[4] = {}, b[2] = {};
  if (lane == hot_lane) a[hot_value / 2] = (uint32_t)number(1) << 16 * (hot_value % 2);
  for (int v = 0; v < 4; v++) b[v / 2] |= (uint32_t)number(b_at[lane][v].row + 8 * b_at[lane][v].col + 1) << 16 * (v % 2);
  for (int i = 0; i < 4; i++) product[lane][i] = 0;
  tc_mma(product[lane], a, b);
}

template <class... P, class... A> static void launch(void (*kernel)(P...), A... args)
{
  static cudaStream_t stream;
  if (!stream) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  emu_launch(stream, kernel, dim3(1), dim3(LANES), 0, args...);
  cudaStreamSynchronize(stream);
}

static void check_loads(void)
{
  bool good = true;
  for (int l = 0; l < LANES; l++)
    for (int j = 0; j < 8; j++) rows[l][j] = (uint16_t)(l * 8 + j);
  launch(load_rows);
  for (int trans = 0; trans < 2; trans++, good = true) {
    for (int l = 0; l < LANES; l++)
      for (int i = 0; i < 8; i++) {
        const place p = from[trans][l][i / 2][i % 2];
        good &= half_of(loaded[trans][l][i / 2], i % 2) == p.row * 8 + p.col;
      }
    check(good, trans ? "... transposed" : "ldmatrix: each lane has the elements that CUTLASS says");
  }
}

static void check_blocks(void)
{
  bool good[3] = { true, true, true };
  for (int i = 0; i < 16 * LD; i++) tile[i] = number(i / LD + 16 * (i % LD));
  launch(load, false);
  launch(load, true);
  for (int l = 0; l < LANES; l++)
    for (int v = 0; v < 8; v++) {
      const place a = a_at[l][v], b = b_at[l][v % 4];
      const int n = b.row + v / 4 * 8;           /* registers 2 and 3: the next 8 columns n */
      good[0] &= half_of(loaded[0][l][v / 2], v % 2) == number(a.row + 16 * a.col);
      good[1] &= half_of(loaded[1][l][v / 2], v % 2) == number(n + 16 * b.col);
      good[2] &= half_of(loaded[2][l][v / 2], v % 2) == number(b.col + 16 * n);
    }
  check(good[0], "rows by ldmatrix are A's fragment");
  check(good[1], "rows of n by ldmatrix are B's fragments");
  check(good[2], "rows of k by ldmatrix, transposed, are B's fragments");
}

static void check_products(void)
{
  bool good = true;
  for (hot_lane = 0; hot_lane < LANES; hot_lane++)
    for (hot_value = 0; hot_value < 8; hot_value++) {
      const place a = a_at[hot_lane][hot_value];
      launch(multiply);
      for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++) {
          const place c = c_at[l][i];
          good &= product[l][i] == (c.row == a.row ? (float)(c.col + 8 * a.col + 1) : 0.f);
        }
    }
  check(good, "mma: one element of A at a time, with all of B");
}

int main(int argc, char **argv)
{
  if (argc != 2 || !read_table(argv[1])) {
    printf("Bail out! no table, or not a whole one\n");
    return 1;
  }
  check_loads();
  check_blocks();
  check_products();
  printf("1..%d\n", checks);
  return failed;
}
