/* attention.h - attention by cuDNN: the table of functions of tercio-cudnn.so, which the CUDA module opens where it is
 * there (kernels/cudnn/cudnn.cu).
 *
 * The module is C++ with the C++ library, as cudnn-frontend needs it, and is linked with cuDNN; the CUDA module is
 * neither. What crosses is in C: no exception, no type of either library.
 *
 * Causal self-attention in bf16 over whole sequences. The queries of a group share a key and a value:
 *   qkv, dqkv [batch, length, groups, queries + 2, size]: of a group its queries, key, value;
 *   y, dy [batch, length, groups, queries, size];
 *   lse [batch, groups, queries, length], fp32: natural log of the sum of exp(scale q k).
 * The backward pass adds in an order that may differ from run to run, unless the shape is `deterministic`: that takes
 * some 10 % longer, and a workspace that grows with the square of the length. */
#ifndef TC_CUDNN_ATTENTION_H
#define TC_CUDNN_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

struct tc_cudnn_shape {
  int64_t batch, groups, queries, length, size, deterministic;
  int64_t workspace;             /* bytes that a call should not exceed, as far as it can be cut (cut.h) */
  float scale;
};
struct tc_cudnn;                 /* cuDNN's handle, on one stream of one GPU */
struct tc_cudnn_plan;            /* of one shape, forward and backward */

/* Functions that can fail say why in why[size], and leave it as it is otherwise. The thread's current GPU is that of
 * the stream. Addresses are multiples of 16. */
enum { TC_CUDNN_VERSION = 3 };
struct tc_cudnn_ops {
  uint32_t version;              /* TC_CUDNN_VERSION */
  /* 91900: 9.19.0. */
  int64_t (*library)(void);
  /* stream: cudaStream_t. gpu NULL, or the properties of a GPU in cuDNN's JSON: plans are then made for that one, which
   * need not be there, and cannot be run. NULL: it failed. */
  struct tc_cudnn *(*open)(void *stream, const char *gpu, char *why, size_t size);
  void (*close)(struct tc_cudnn *c);             /* plans first */
  /* NULL: cuDNN cannot do it, in one direction at least. Takes seconds. */
  struct tc_cudnn_plan *(*plan)(struct tc_cudnn *c, const struct tc_cudnn_shape *s, char *why, size_t size);
  void (*free_plan)(struct tc_cudnn_plan *p);
  int64_t (*workspace)(const struct tc_cudnn_plan *p, int backward);      /* bytes */
  /* Enqueue; 0, or -1. They may be captured. All sequences use the same workspace. */
  int (*forward)(struct tc_cudnn_plan *p, const void *qkv, void *y, float *lse, void *workspace, char *why,
                 size_t size);
  int (*backward)(struct tc_cudnn_plan *p, const void *dy, const void *qkv, const void *y, const float *lse, void *dqkv,
                  void *workspace, char *why, size_t size);
};

#endif
