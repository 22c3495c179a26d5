/* cutlass.cc - prints which lane of a warp has which elements of `mma` (bf16, m16n8k16) and `ldmatrix` (x4, transposed or not),
 * as NVIDIA's CUTLASS has it in its traits: the table that fragments.cc compares with. Needs CUTLASS's and CUDA's headers. */
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/layout.hpp>

#include <stdio.h>

using mma = cute::MMA_Traits<cute::SM80_16x8x16_F32BF16BF16F32_TN>;

/* A layout takes a lane and a value to row + rows column. */
template <class Layout> static void print(char kind, Layout layout, int rows, int values)
{
  for (int lane = 0; lane < 32; lane++)
    for (int v = 0; v < values; v++) {
      const int at = (int)layout(lane, v);
      printf("%c %d %d %d %d\n", kind, lane, v, at % rows, at / rows);
    }
}

/* Layouts of bits: the lanes' rows of 128 bits one after the other; where bit i of a lane's four registers is from. */
template <class Traits> static void print_load(char kind)
{
  const typename Traits::DstLayout to{};
  const typename Traits::SrcLayout rows{};
  for (int lane = 0; lane < 32; lane++)
    for (int half = 0; half < 8; half++) {
      const int bit = (int)to(lane, half * 16), source = bit / (int)rows(1, 0);
      printf("%c %d %d %d %d %d\n", kind, lane, half / 2, half % 2, source, bit % (int)rows(1, 0) / 16);
    }
}

int main(void)
{
  print('A', typename mma::ALayout{}, 16, 8);
  print('B', typename mma::BLayout{}, 8, 4);
  print('C', typename mma::CLayout{}, 16, 4);
  print_load<cute::Copy_Traits<cute::SM75_U32x4_LDSM_N>>('N');
  print_load<cute::Copy_Traits<cute::SM75_U16x8_LDSM_T>>('T');
  return 0;
}
