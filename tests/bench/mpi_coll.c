/* mpi_coll.c - the MPI library's own collectives, timed as `tercio comm` times Tercio's: all iterations begin after a
 * barrier, and the time of each is the slowest rank's. Prints lines "OP BYTES MEDIAN_US" (tests/bench/coll).
 *
 *   mpi_coll ITERS OP BYTES...    OP: all_reduce, reduce_scatter, all_gather, broadcast */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;
static float *src, *dst;

static void call(const char *op, int n)
{
  if (!strcmp(op, "all_reduce")) MPI_Allreduce(src, dst, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(op, "reduce_scatter")) MPI_Reduce_scatter_block(src, dst, n / size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(op, "all_gather")) MPI_Allgather(src, n / size, MPI_FLOAT, dst, n / size, MPI_FLOAT, MPI_COMM_WORLD);
  else MPI_Bcast(rank ? dst : src, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static int by_value(const void *a, const void *b)
{
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int iters = argc > 3 ? atoi(argv[1]) : 0;
  if (iters < 1) return fprintf(stderr, "usage: mpi_coll ITERS OP BYTES...\n"), MPI_Finalize(), 2;
  double *us = malloc((size_t)iters * sizeof *us);
  for (int i = 3; i < argc; i++) {
    const long long bytes = atoll(argv[i]);
    const int n = (int)(bytes / 4);
    src = malloc((size_t)bytes + 4), dst = malloc((size_t)bytes + 4);
    for (int k = 0; k < n; k++) src[k] = (float)(rank + k % 7), dst[k] = 0;
    for (int k = -2; k < iters; k++) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double begin = MPI_Wtime();
      call(argv[2], n);
      double mine = (MPI_Wtime() - begin) * 1e6, slowest;
      MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
      if (k >= 0) us[k] = slowest;
    }
    qsort(us, (size_t)iters, sizeof *us, by_value);
    if (rank == 0) printf("%s %lld %.1f\n", argv[2], bytes, us[iters / 2]), fflush(stdout);
    free(src), free(dst);
  }
  free(us);
  MPI_Finalize();
  return 0;
}
