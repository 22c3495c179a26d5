/* t_plan_guess.c - what a layout is guessed to take, time and memory, number by number: the search
 * ranks by them, so a change shows in which layouts are made, or not at all. */
#include "src/plan/guess.h"
#include "tests/unit/plan_config.h"

struct kind {
  const char *name;
  enum tc_dtype precision, grad;
  enum tc_optimizer optimizer;
  const char *device;
  double switch_nodes, network;
};

static const struct kind kinds[] = {
  { "fp32", TC_F32, TC_F32, TC_OPTIMIZER_ADAMW, "a100-80", 0, 0 },
  { "bf16", TC_BF16, TC_BF16, TC_OPTIMIZER_ADAMW, "h100", 2, 1e9 },
  { "sgd", TC_F32, TC_F32, TC_OPTIMIZER_SGD, "a100-40", 0, 1e8 },
};

static const struct {
  int kind;
  struct tc_cand c;
  const char *s, *bytes, *host; /* to nine digits */
} rows[] = {
#define R(kind, pp_, dp_, tp_, micro_, virtual, mb, data_, schedule_, recompute_, offload_, sequence_, near, s, bytes, host) \
  { kind, { .pp = pp_, .dp = dp_, .cp = 1, .tp = tp_, .micro = micro_, .virtual_stages = virtual, .n_mb = mb, .shard = TC_AUTO, .reduce = TC_REDUCE_AUTO, \
            .data = data_, .schedule = schedule_, .recompute = recompute_, .offload = offload_, .sequence = sequence_, \
            .near_pp = near }, s, bytes, host },
  R(0, 1, 1, 1, 4, 1, 24, TC_DATA_DDP, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.217035891", "236673024", "0")
  R(0, 1, 8, 1, 2, 1, 6, TC_DATA_DDP, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0414346835", "187927552", "0")
  R(0, 1, 8, 1, 2, 1, 6, TC_DATA_ZERO1, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0416541947", "131384832", "0")
  R(0, 1, 8, 1, 2, 1, 6, TC_DATA_ZERO2, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0421107317", "107348992", "0")
  R(0, 1, 8, 1, 2, 1, 6, TC_DATA_ZERO3, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0427276735", "78963712", "0")
  R(0, 1, 8, 1, 2, 1, 6, TC_DATA_SERVER, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0414346835", "222723072", "0")
  R(0, 2, 4, 1, 2, 1, 12, TC_DATA_ZERO2, TC_SCHEDULE_GPIPE, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0451421622", "303485952", "0")
  R(0, 2, 4, 1, 2, 1, 12, TC_DATA_ZERO1, TC_SCHEDULE_NAIVE, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, true,
    "0.0829618225", "79963392", "0")
  R(0, 4, 2, 2, 3, 1, 16, TC_DATA_DDP, TC_SCHEDULE_ZB, TC_RECOMPUTE_FULL, TC_OFFLOAD_NO, false, false, "0.0451756261", "35492864", "0")
  R(0, 5, 2, 1, 3, 2, 16, TC_DATA_ZERO3, TC_SCHEDULE_INTERLEAVED, TC_RECOMPUTE_SELECTIVE, TC_OFFLOAD_NO, false, false,
    "0.0297137669", "96839680", "0")
  R(0, 2, 4, 4, 1, 1, 24, TC_DATA_ZERO1, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_PARAMS, true, false,
    "0.077239976", "16724480", "3562560")
  R(0, 1, 4, 4, 1, 1, 24, TC_DATA_ZERO3, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_UPDATE, false, false,
    "0.133827403", "15620864", "6524160")
  R(1, 1, 32, 1, 3, 1, 1, TC_DATA_DDP, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0389674396", "175841792", "0")
  R(1, 1, 32, 1, 3, 1, 1, TC_DATA_ZERO1, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0461760359", "74717312", "0")
  R(1, 1, 16, 2, 3, 1, 2, TC_DATA_ZERO2, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, true, false,
    "0.07720124", "34506816", "0")
  R(1, 1, 32, 1, 1, 1, 3, TC_DATA_ZERO3, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_PARAMS, false, false,
    "0.186071883", "19173824", "3805760")
  R(1, 2, 16, 1, 1, 1, 6, TC_DATA_ZERO2, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, true,
    "0.212008042", "27408800", "0")
  R(1, 2, 8, 2, 2, 1, 6, TC_DATA_ZERO3, TC_SCHEDULE_ZB, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, true, "0.310611782", "22952704", "0")
  R(1, 2, 8, 2, 2, 5, 6, TC_DATA_ZERO1, TC_SCHEDULE_INTERLEAVED, TC_RECOMPUTE_FULL, TC_OFFLOAD_NO, false, false,
    "0.0238763725", "16575040", "0")
  R(1, 3, 8, 1, 2, 2, 6, TC_DATA_DDP, TC_SCHEDULE_INTERLEAVED, TC_RECOMPUTE_NONE, TC_OFFLOAD_UPDATE, false, false,
    "0.00938121538", "53811200", "47523840")
  R(1, 10, 1, 2, 2, 1, 48, TC_DATA_DDP, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0109917703", "25917440", "0")
  R(1, 10, 3, 1, 2, 1, 16, TC_DATA_ZERO1, TC_SCHEDULE_ZB, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0036828036", "37168128", "0")
  R(1, 2, 2, 1, 2, 1, 24, TC_DATA_SERVER, TC_SCHEDULE_GPIPE, TC_RECOMPUTE_NONE, TC_OFFLOAD_PARAMS, false, false,
    "0.0152793783", "275478528", "66501120")
  R(1, 4, 8, 1, 2, 1, 6, TC_DATA_DATAPARALLEL, TC_SCHEDULE_NAIVE, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0126329978", "66743808", "0")
  R(2, 1, 32, 1, 3, 1, 1, TC_DATA_DDP, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.202185012", "142709248", "0")
  R(2, 1, 32, 1, 3, 1, 1, TC_DATA_ZERO1, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.210692829", "143796608", "0")
  R(2, 1, 16, 2, 3, 1, 2, TC_DATA_ZERO2, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, true, false,
    "0.322723081", "63470848", "0")
  R(2, 1, 32, 1, 1, 1, 3, TC_DATA_ZERO3, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_PARAMS, false, false,
    "0.919538119", "38280576", "1087360")
  R(2, 2, 16, 1, 1, 1, 6, TC_DATA_ZERO2, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, true, "0.807303405", "48818560", "0")
  R(2, 2, 8, 2, 2, 1, 6, TC_DATA_ZERO3, TC_SCHEDULE_ZB, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, true, "1.94492782", "38688128", "0")
  R(2, 2, 8, 2, 2, 5, 6, TC_DATA_ZERO1, TC_SCHEDULE_INTERLEAVED, TC_RECOMPUTE_FULL, TC_OFFLOAD_NO, false, false,
    "0.156225504", "27202240", "0")
  R(2, 3, 8, 1, 2, 2, 6, TC_DATA_DDP, TC_SCHEDULE_INTERLEAVED, TC_RECOMPUTE_NONE, TC_OFFLOAD_UPDATE, false, false,
    "0.106745344", "107401216", "0")
  R(2, 10, 1, 2, 2, 1, 48, TC_DATA_DDP, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0610288209", "32660480", "0")
  R(2, 10, 3, 1, 2, 1, 16, TC_DATA_ZERO1, TC_SCHEDULE_ZB, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.0380618458", "63595178.7", "0")
  R(2, 2, 2, 1, 2, 1, 24, TC_DATA_SERVER, TC_SCHEDULE_GPIPE, TC_RECOMPUTE_NONE, TC_OFFLOAD_PARAMS, false, false,
    "0.0886359856", "549471232", "19000320")
  R(2, 4, 8, 1, 2, 1, 6, TC_DATA_DATAPARALLEL, TC_SCHEDULE_NAIVE, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, false,
    "0.11815421", "57346048", "0")
  R(1, 2, 2, 4, 1, 1, 12, TC_DATA_ZERO2, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, true, true,
    "0.0377727903", "15108800", "0")
  R(0, 2, 4, 4, 1, 1, 24, TC_DATA_ZERO3, TC_SCHEDULE_ZB, TC_RECOMPUTE_NONE, TC_OFFLOAD_NO, false, true, "0.0692505413", "18196224", "0")
  R(2, 2, 4, 2, 1, 1, 12, TC_DATA_DDP, TC_SCHEDULE_GPIPE, TC_RECOMPUTE_SELECTIVE, TC_OFFLOAD_UPDATE, false, true,
    "0.227341794", "79908864", "0")
  R(1, 1, 4, 1, 1, 1, 24, TC_DATA_ZERO1, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_UPDATE, false, false,
    "0.0274865563", "47015424", "26096640")
  R(1, 2, 2, 1, 1, 1, 24, TC_DATA_DATAPARALLEL, TC_SCHEDULE_1F1B, TC_RECOMPUTE_NONE, TC_OFFLOAD_PARAMS, false, true,
    "0.0149194365", "29547520", "66501120")
  R(2, 4, 2, 1, 1, 3, 24, TC_DATA_ZERO2, TC_SCHEDULE_INTERLEAVED, TC_RECOMPUTE_FULL, TC_OFFLOAD_PARAMS, false, false,
    "0.0674921928", "30477312", "6341120")
#undef R
};

static void is_number(double got, const char *want, const char *what)
{
  char text[40];
  snprintf(text, sizeof text, "%.9g", got);
  is_str(text, want, "... %s", what);
}

enum { N_ROWS = sizeof rows / sizeof *rows };

static void test_row(struct tc_guess *g, size_t i)
{
  struct tc_err err = { 0 };
  struct tc_cand x = rows[i].c;
  is_int(tc_guess(&g[rows[i].kind], &x, &err), 0,
         "%s: pp %d, dp %d, tp %d, micro %d, %s, %s "
         "%d, recompute %s, offload %s%s%s",
         kinds[rows[i].kind].name, x.pp, x.dp, x.tp, x.micro,
         tc_word_parallel_data(x.data), tc_word_parallel_schedule(x.schedule), x.virtual_stages,
         tc_word_train_recompute(x.recompute), tc_word_parallel_offload(x.offload), x.sequence ? ", sequence" : "", x.near_pp ? ", near" : "");
  is_number(x.s, rows[i].s, "seconds");
  is_number(x.bytes, rows[i].bytes, "bytes");
  is_number(x.host_bytes, rows[i].host, "the host's bytes");
}

int main(void)
{
  struct tc_cluster k[3];
  struct tc_config *c[3];
  struct tc_guess g[3];
  struct tc_err err = { 0 };
  for (int i = 0; i < 3; i++) {
    c[i] = CONFIG("--model.layers=10", "--model.hidden=256", "--model.heads=8",
                  "--model.context=128", "--model.vocab=3000", "--train.global_batch=96");
    c[i]->train_precision = kinds[i].precision;
    c[i]->train_grad_type = kinds[i].grad;
    c[i]->train_optimizer = kinds[i].optimizer;
    is_int(tc_cluster_read(&k[i], kinds[i].device, &err), 0, "%s: %s", kinds[i].name, err.text);
    k[i].nodes = 8;
    k[i].devices = 4;
    k[i].switch_nodes = kinds[i].switch_nodes;
    for (int x = 0; kinds[i].network > 0 && x < TC_COLLS - TC_FIRST_COLL; x++) {
      k[i].link[TC_WIRE_NETWORK].bytes_per_s[TC_FIRST_COLL + x] = kinds[i].network * (1 + x / 8.0);
      k[i].link[TC_WIRE_SPINE].bytes_per_s[TC_FIRST_COLL + x] = kinds[i].network / (2 + x / 4.0);
    }
    g[i] = (struct tc_guess){ .cfg = c[i], .k = &k[i] };
    is_int(tc_setup_model(c[i], &g[i].model, &err), 0, "... its model");
    double h = (double)g[i].model.hidden;
    g[i].states = tc_update_row[tc_update_of(c[i]->train_optimizer, c[i]->train_momentum)].states;
    g[i].layer_params = 12 * h * h + 13 * h;
    g[i].rest_params = (double)(g[i].model.vocab + g[i].model.context) * h + 2 * h;
  }
  /* Twice: what was guessed before, and in which order, changes nothing. */
  for (int turn = 0; turn < 2; turn++) {
    for (int i = 0; turn && i < 3; i++) {
      tc_guess_done(&g[i]);
      g[i].row = NULL;
      g[i].flight = NULL;
      g[i].group = NULL;
      g[i].sent = NULL;
      g[i].n = g[i].cap = g[i].n_flight = g[i].cap_flight = g[i].n_group = g[i].cap_group = g[i].n_sent = g[i].cap_sent = 0;
    }
    for (size_t i = 0; i < N_ROWS; i++) test_row(g, turn ? N_ROWS - 1 - i : i);
  }
  struct tc_cand one = rows[0].c, low = one;
  is_int(tc_guess(&g[0], &one, &err), 0, "with states in fp32");
  c[0]->train_state_type = TC_BF16;
  is_int(tc_guess(&g[0], &low, &err), 0, "... in bf16");
  is_int((int64_t)(one.bytes - low.bytes), (int64_t)(4 * (10 * g[0].layer_params + g[0].rest_params)), "... 4 bytes a parameter less");
  struct tc_cand bad = rows[0].c;
  bad.tp = 3;
  is_int(tc_guess(&g[0], &bad, &err), TC_ELAYOUT, "heads that do not divide: %s", err.text);
  is_int(tc_guess(&g[0], &bad, &err), TC_ELAYOUT, "... again, from what is kept");
  for (int i = 0; i < 3; i++) {
    tc_guess_done(&g[i]);
    tc_config_free(c[i]);
    tc_cluster_done(&k[i]);
  }
  return done_testing();
}
