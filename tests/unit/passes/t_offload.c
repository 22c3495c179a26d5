/* t_offload.c - what is moved to host memory, and when there is nothing to move. */
#include "src/model/optim.h"
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"

#define NOTHING "parallel.offload: there is nothing to offload: weights are stored where they are used and " \
                "train.optimizer keeps no state; parallel.data = zero3 stores weights elsewhere"

/* want: parameters and other state, or the sentence; offload: each parameter's, afterwards. */
static const struct { const char *name, *program; enum tc_offload offload; bool adamw; const char *want; } cases[] = {
  { "no: nothing changes", "param w [4,4] dp S(*) R P S(*)\n", 0, true,
    "param w [4,4] dp S(*) R P S(*)\n" },
  { "moments only: a weight that is stored where it is used stays", "param w [4,4]\n", 1, true,
    "param w [4,4]\n" },
  { "... and a weight that is gathered for its use is stored in host memory", "param w [4,4] dp S(*) R P S(*)\n", 1, true,
    "param w [4,4] host dp S(*) R P S(*)\n" },
  { "an fp32 master is state of the optimizer", "param w bf16[4,4]\n", 1, true,
    "state use.w bf16[4,4]\n"
    "param w [4,4] host\n" },
  { "sgd: a weight that is gathered", "param w [4,4] dp S(*) R P S(*)\nparam v [4,4]\n", 2, false,
    "param w [4,4] host dp S(*) R P S(*)\n"
    "param v [4,4]\n" },
  { "sgd: a master", "param w bf16[4,4]\n", 2, false,
    "state use.w bf16[4,4]\n"
    "param w [4,4] host\n" },
  { "sgd: nothing is there", "param w [4,4]\nparam v [4,4] dp R R P S(*)\n", 1, false, NOTHING },
};

int main(void)
{
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tc_graph *g = read_program(cases[i].program);
    struct tc_err err = { 0 };
    tc_optim_choose(g, cases[i].adamw ? TC_UPDATE_ADAMW : TC_UPDATE_SGD);
    if (tc_offload(g, cases[i].offload, &err) < 0)
      is_str(err.text, cases[i].want, "%s", cases[i].name);
    else
      is_program(g, TEXT_STATES | TEXT_PARAMS, cases[i].want, cases[i].name);
    for (int32_t p = 0; p < g->n_params; p++)
      is_int(g->param[p].offload, cases[i].offload, "%s: the optimizer knows", cases[i].name);
    tc_graph_free(g);
  }
  return done_testing();
}
