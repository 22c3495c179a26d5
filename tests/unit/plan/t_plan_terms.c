/* t_plan_terms.c - the terms of a time by themselves (terms.c, cost.c's links): each grows and falls as it should, and has the
 * value that its formula has by hand. */
#include "src/plan/impl.h"
#include "tests/unit/tap.h"

#include <math.h>

static struct tc_cluster device(const char *name)
{
  struct tc_cluster k;
  struct tc_err err = { 0 };
  TC_ASSERT(tc_cluster_read(&k, name, &err) == 0);
  return k;
}

/* Operations per second that a product reaches, of the peak. */
static double reached(const struct tc_plan_device *d, double m, double n, double k)
{
  return 2 * m * n * k / tc_product_s(d, m, n, k, TC_BF16) / d->flops[TC_BF16];
}

static void test_products(void)
{
  struct tc_cluster k = device("h100");
  struct tc_plan_device *d = &k.device;
  /* 32 x 64 tiles of 256 x 128 are 15.5 waves on 132 multiprocessors, so 16, of a depth of 4096 + 64. */
  const double each = 989e12 * 0.7 / 132, tile = 2.0 * 256 * 128 * (4096 + 64) / each;
  near_f(tc_product_s(d, 8192, 8192, 4096, TC_BF16), 16 * tile, 1e-12, "tiles, waves and depth");
  const double all = reached(d, 8192, 8192, 8192);
  ok(all > 0.63 && all <= 0.7, "a large product reaches nearly what the table has: %.3f", all);
  ok(reached(d, 65536, 2304, 768) < all, "less depth, less of it: %.3f", reached(d, 65536, 2304, 768));
  for (int tp = 2; tp <= 8; tp *= 2) {
    const double n = 12288.0 / tp, k = 4096.0 / tp;
    ok(reached(d, 4096, n, 4096) <= reached(d, 4096, 2 * n, 4096) + 0.03 &&
       reached(d, 4096, 4096, k) < reached(d, 4096, 4096, 2 * k),
       "tp = %d divides n or k: a lower rate", tp);
  }
  const double deep = tc_product_s(d, 768, 768, 65536, TC_BF16), tiles = ceil(768 / 128.0) * ceil(768 / 64.0);
  ok(deep < 2.0 * 128 * 64 * 65536 / (each * 0.8) && tiles < 132, "a gradient of few tiles is split: %.1f us", deep * 1e6);
  const double thin = tc_product_s(d, 1, 8192, 8192, TC_BF16);
  near_f(thin, (8192.0 * 8192 + 2 * 8192) * 2 / (3350e9 * 0.8), 1e-9, "a row reads all weights");
  ok(tc_product_s(d, 4096, 4096, 4096, TC_F32) > 5 * tc_product_s(d, 4096, 4096, 4096, TC_BF16), "fp32 has its own peak");
  tc_cluster_done(&k);
}

static struct tc_op_cost attention(int op, double T, int head, double heads)
{
  const double keys = T / 2, rows = T * heads, products = op == TC_OP_ATTN ? 2 : 5;
  return (struct tc_op_cost){ .op = op, .dtype = TC_BF16, .flops = products * 2 * keys * rows * head, .bytes = 4 * rows * head * 2,
                              .head = head, .sequence = (int64_t)T, .keys = keys, .rows = rows };
}

static double tflops(const struct tc_plan_device *d, int op, double T, int head)
{
  const struct tc_op_cost c = attention(op, T, head, 32);
  return c.flops / tc_attention_s(d, &c) * 1e-12;
}

static void test_attention(void)
{
  struct tc_cluster h = device("h200"), a = device("a100-80"), b = device("b200"), l = device("l40s");
  struct tc_plan_device *d = &h.device;
  /* Measured: docs/measured.md, "Attention alone". */
  static const struct { int kind, op, head; double T, measured; } rows[] = {
    { TC_ATTN_BY_CUDNN, TC_OP_ATTN, 64, 1024, 322 },     { TC_ATTN_BY_CUDNN, TC_OP_ATTN_BWD, 64, 1024, 226 },
    { TC_ATTN_BY_CUDNN, TC_OP_ATTN, 128, 8192, 618 },    { TC_ATTN_BY_CUDNN, TC_OP_ATTN_BWD, 128, 8192, 457 },
    { TC_ATTN_BY_OWN, TC_OP_ATTN, 64, 1024, 251 },       { TC_ATTN_BY_OWN, TC_OP_ATTN_BWD, 64, 1024, 181 },
    { TC_ATTN_BY_OWN, TC_OP_ATTN, 128, 8192, 281 },      { TC_ATTN_BY_OWN, TC_OP_ATTN_BWD, 128, 8192, 201 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    d->attention = rows[i].kind;
    const double got = tflops(d, rows[i].op, rows[i].T, rows[i].head);
    ok(fabs(got / rows[i].measured - 1) < 0.08, "%s, heads of %d, %g tokens, %s: %.0f TFLOP/s, measured %.0f",
       tc_attn_by_name[rows[i].kind], rows[i].head, rows[i].T, rows[i].op == TC_OP_ATTN ? "forward" : "backward", got,
       rows[i].measured);
  }
  d->attention = TC_ATTN_BY_CUDNN;
  ok(tflops(d, TC_OP_ATTN, 1024, 128) < tflops(d, TC_OP_ATTN, 8192, 128), "longer sequences reach more");
  const double f64 = tflops(d, TC_OP_ATTN, 4096, 64), f96 = tflops(d, TC_OP_ATTN, 4096, 96);
  const double f128 = tflops(d, TC_OP_ATTN, 4096, 128);
  near_f(f96, (f64 + f128) / 2, 1e-9, "heads of 96 are between 64 and 128");
  near_f(tflops(d, TC_OP_ATTN, 4096, 32), f64 / 2, 1e-9, "heads of 32 have half the rate of 64");
  near_f(tflops(d, TC_OP_ATTN, 4096, 256), f128, 1e-9, "heads of 256 that of 128");
  near_f(tflops(&b.device, TC_OP_ATTN, 4096, 128) / f128, 2250.0 / 989, 1e-9, "a later GPU: the same part of its peak");
  const double older = tflops(&a.device, TC_OP_ATTN, 4096, 128);
  near_f(tflops(&l.device, TC_OP_ATTN, 4096, 128) / older, 362.0 / 312, 1e-9, "8.9 has 8.0's rows");
  struct tc_op_cost c = attention(TC_OP_ATTN, 2048, 128, 32);
  const double fused = tc_attention_s(&a.device, &c);
  c.dtype = TC_F32;
  near_f(tc_attention_s(&a.device, &c) / fused, 312 / 19.5, 1e-9, "fp32: the same part of its own peak");
  c.dtype = TC_BF16;
  ok(tc_attention_known(&a.device), "an A100 has rates of attention");
  a.device.capability = 70;
  ok(!tc_attention_known(&a.device), "... a V100 has none");
  a.device.capability = 80;
  a.device.attention = TC_ATTN_BY_UNFUSED;
  const double scores = 6.5 * 32 * 2048.0 * 2048 * 2 / (2039e9 * 0.8);
  const double products = 2 * 32 * tc_product_s(&a.device, 2048, 2048, 128, TC_BF16);
  near_f(tc_attention_s(&a.device, &c), scores + products + c.bytes / (2039e9 * 0.8), 1e-9, "not fused: scores go through memory");
  ok(tc_attention_s(&a.device, &c) > 3 * fused, "... which takes longer");
  a.device.attention = TC_ATTN_BY_TRITON;
  ok(tc_attention_s(&a.device, &c) > fused, "Triton's of 2023 is slower than cuDNN's");
  tc_cluster_done(&h), tc_cluster_done(&a), tc_cluster_done(&b), tc_cluster_done(&l);
}

/* all_reduce_perf on 8 A100s of a node, us; the busiest member moves 7/4 of the bytes, in three doublings. */
/* Attention that was timed at one length, at another: by the ratio of the formula at both lengths. */
static void test_timed(void)
{
  struct tc_cluster k = device("h100");
  struct tc_op_cost shorter = attention(TC_OP_ATTN, 1024, 128, 32), longer = attention(TC_OP_ATTN, 8192, 128, 32);
  const double is = tc_attention_s(&k.device, &shorter), other = tc_attention_s(&k.device, &longer);
  struct tc_op_sample s = { .op = TC_OP_ATTN, .seconds = 2 * is };
  tc_op_key(&shorter, s.key);
  TC_APPEND(k.device.sample, k.device.n_samples, k.device.cap_samples, s);
  near_f(tc_op_seconds(&shorter, &k.device), 2 * is, 1e-12, "as it was timed");
  near_f(tc_op_seconds(&longer, &k.device), 2 * other, 1e-9, "eight times as long");
  k.device.sample->key[2] = 0;                   /* as files had it that did not say the length */
  ok(tc_op_seconds(&longer, &k.device) > 2.1 * other, "a file without lengths: as if long ones reached no more");
  tc_cluster_done(&k);
}

static void test_links(void)
{
  static const struct { double mb, us; } measured[] = {
    { 1, 37.3 }, { 4, 84.8 }, { 8, 131.1 }, { 16, 220.5 }, { 32, 353.9 }, { 64, 579.2 }, { 128, 1157.6 }, { 256, 2169.8 },
    { 1024, 8212.6 } };
  struct tc_cluster k = device("a100-80");
  for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
    const double us = tc_link_seconds(&k.link[TC_WIRE_NODE], TC_ALL_REDUCE, 3, 1.75 * measured[i].mb * 1048576) * 1e6;
    ok(fabs(us / measured[i].us - 1) < 0.25, "%g MB on NVLink: %.0f us, measured %.0f", measured[i].mb, us, measured[i].us);
  }
  const struct tc_link *l = &k.link[TC_WIRE_NODE];
  near_f(tc_link_seconds(l, TC_ALL_REDUCE, 0, l->half_bytes[TC_ALL_REDUCE]), 2 * l->half_bytes[TC_ALL_REDUCE] / 240e9, 1e-9,
         "half of the rate at half_bytes");
  near_f(tc_link_seconds(l, TC_SEND, 0, 1e6), 1e6 / 240e9, 1e-9, "a send has none");
  ok(tc_link_seconds(&k.link[TC_WIRE_NETWORK], TC_ALL_REDUCE, 3, 1e8) > 8 * tc_link_seconds(l, TC_ALL_REDUCE, 3, 1e8),
     "the network is slower than NVLink");
  tc_cluster_done(&k);
}

static void test_stolen(void)
{
  struct tc_cluster k = device("h100");
  struct tc_reshard_cost c = { .coll = TC_ALL_GATHER, .seconds = 1, .bytes = { 1, 0, 0 } };
  near_f(tc_stolen_s(&k.device, &c), 24.0 / 132, 1e-12, "NCCL has 24 of 132 multiprocessors");
  k.device.steal = 0.5;
  near_f(tc_stolen_s(&k.device, &c), 0.5, 1e-12, "within the node");
  c.bytes[TC_WIRE_NETWORK] = 1;
  near_f(tc_stolen_s(&k.device, &c), 24.0 / 132, 1e-12, "between nodes");
  c.coll = TC_SEND;
  ok(tc_stolen_s(&k.device, &c) == 0, "a send takes none");
  k.device.multiprocessors = 0;
  near_f(tc_stolen_s(&k.device, &c), 24.0 / 132, 1e-12, "but of a CPU, which copies");
  tc_cluster_done(&k);
}

/* The sources of all terms, as one text. */
static const char *sources(const struct tc_cluster *k)
{
  static char text[200];
  *text = 0;
  for (int t = 0; t <= TC_TERM_SAVES; t++) tc_text_add(text, sizeof text, "%s%s", t ? ", " : "", tc_source_name[tc_plan_source(k, t)]);
  return text;
}

static void test_sources(void)
{
  static const struct { const char *device, *key, *value, *want; } row[] = {
    { "h100", "", "", "measured, measured, data sheet, data sheet, data sheet, data sheet, assumed" },
    { "b200", "", "", "assumed, assumed, data sheet, data sheet, data sheet, assumed, assumed" },
    { "a100-80", "", "", "fitted, measured, data sheet, data sheet, data sheet, fitted, assumed" },
    { "a100-80", "attention", "own", "fitted, assumed, data sheet, data sheet, data sheet, assumed, assumed" },
    { "a100-80", "attention", "unfused", "fitted, fitted, data sheet, data sheet, data sheet, fitted, assumed" },
    { "cpu", "", "", "assumed, assumed, assumed, assumed, assumed, assumed, assumed" },
    { "cpu", "eff_flops", "0.9", "given, given, assumed, assumed, assumed, assumed, assumed" },
    { "h100", "memory_rate", "3e12", "measured, measured, given, given, data sheet, data sheet, assumed" },
    { "h100", "link network all", "1e-5, 4e10", "measured, measured, data sheet, data sheet, given, data sheet, assumed" },
    { "h100", "disk_rate", "9e9", "measured, measured, data sheet, data sheet, data sheet, data sheet, given" },
    { "h100", "memory", "9e9", "measured, measured, data sheet, data sheet, data sheet, data sheet, assumed" },
    { "h100", "source between", "calibrated", "measured, measured, calibrated, data sheet, data sheet, data sheet, assumed" },
    { "h100", "source attention", "assumed", "measured, assumed, data sheet, data sheet, data sheet, assumed, assumed" },
  };
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_cluster k = device(row[i].device);
    if (*row[i].key) is_int(tc_cluster_set(&k, row[i].key, row[i].value, "file", 1, &err), 0, "%s: %s", row[i].key, err.text);
    is_str(sources(&k), row[i].want, "%s %s", row[i].device, row[i].key);
    tc_cluster_done(&k);
  }
  struct tc_cluster k = device("h100");
  is_int(tc_cluster_set(&k, "source product", "given", "file", 1, &err), TC_EUSER, "a term that is none");
  is_str(err.text, "file:1: \"product\" is not known; did you mean products?", "... is said");
  is_int(tc_cluster_set(&k, "source bubble", "given", "file", 1, &err), TC_EUSER, "the bubble has none of its own: %s", err.text);
  is_int(tc_cluster_set(&k, "source saves", "sure", "file", 1, &err), TC_EUSER, "a source that is none: %s", err.text);
  tc_cluster_done(&k);
}

int main(void)
{
  test_sources();
  test_products();
  test_attention();
  test_timed();
  test_links();
  test_stolen();
  return done_testing();
}
