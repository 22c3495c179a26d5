/* impl.h - src/run's own: whether programs fit into the device's memory (fits.c), and what several files use. */
#ifndef TC_RUN_IMPL_H
#define TC_RUN_IMPL_H

#include "src/run/run.h"

/* Local, before the programs are made. TC_EUSER if the device has less than a micro-batch needs in
 * any case: a program of an absurd one would itself be huge. */
int tc_run_could_fit(const struct tc_run *r, struct tc_err *err);
/* Local, before memory is taken. TC_EUSER if the device has less than the programs need: what takes
 * it, and other settings that would fit. */
int tc_run_fits(const struct tc_run *r, struct tc_err *err);
/* Local, pure. Of `total` bytes of a device, what is taken after the tensors: the kernels' scratch, and by the device's
 * libraries, which load their code and make their buffers when they are first called. A guess: if it is too small the
 * run ends later, with a shorter message. */
int64_t tc_run_for_others(int64_t total);

/* run.c. Local. Makes r->stack anew: the device's libraries are what they are now. */
void tc_run_add_versions(struct tc_run *r);
/* tune.c. Local, pure: whether a rank may have a GPU. The same answer on every rank. */
bool tc_run_may_have_gpu(const struct tc_run *r);

/* attention.c. What a rank could do: plans as tc_library.can says; the library, or why not. */
struct tc_attention_answer { int32_t plans; char text[300]; };
/* Local, pure. The name of row statistics of attention that something else reads than its gradient, such as a reshard;
 * NULL: there are none. Borrowed from the graph. */
const char *tc_run_attention_moved(const struct tc_graph *g);
/* Local, pure. The name of a gradient of attention that several ranks compute, since it is R on an axis; NULL: there is
 * none. Borrowed from the graph. */
const char *tc_run_attention_copied(const struct tc_graph *g, const struct tc_mesh *m);
/* Local, pure. Of n ranks: whether the library computes attention, and its name; or why not. */
bool tc_run_attention_choose(const struct tc_attention_answer *all, int n, char *const *rank_names, char *text,
                             size_t size);

/* run_stages.c. The stages of a training (none otherwise); the meshes of later ones have the axes of the first one's, in its order. */
int tc_run_stages_layout(struct tc_run *r, const struct tc_config *c, int devices, struct tc_err *err);
/* ... and their programs, in the precision and with the loss chunks of the first: a step, a validation and, if there are any,
 * tasks. */
int tc_run_stages_programs(struct tc_run *r, struct tc_err *err);

#endif
