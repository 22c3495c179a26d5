/* like.h - measured runs beside the plan: of a table (like_table.c) or of Tercio's own folders of runs (like_run.c); like.c plans
 * each and compares.
 *
 * In: a table or a folder. Out: rows with what was measured, what the plan says, and what its time is mostly made of. */
#ifndef TC_LIKE_H
#define TC_LIKE_H

#include "src/plan/plan.h"

struct tc_like_row {
  char name[64];
  char *where;                                   /* file:line, or the folder; owned */
  struct tc_config *cfg;                         /* owned */
  struct tc_cluster cluster;                     /* owned */
  unsigned searched;                             /* bits 1 << enum tc_plan_key that the plan may choose; 0: none */
  bool doubtful;                                 /* its source says so: not among the errors that are summed up */
  double tokens_per_s, step_s;                   /* measured, of all ranks: one of them; the other is 0 */
  double memory_bytes;                           /* of a rank; 0: not measured */
  /* Filled by tc_like_compare. */
  struct tc_plan plan;
  int status;                                    /* < 0: it cannot be planned, and why says why */
  char why[200], flags[400];                      /* flags: what the plan chose */
  bool fits;
  double error;                                  /* of tokens per second: planned / measured - 1 */
  enum tc_plan_term largest;                     /* of the planned time */
};
struct tc_like { struct tc_like_row *row; int n, cap; };

/* Local. Adds the rows of a table, or the run of a folder that has a run.json. device: a name or file that holds for all rows;
 * NULL: what the table says, or run.plan_device of the run. TC_EUSER: file, line and what would fit. */
int tc_like_read(struct tc_like *l, const char *path, const char *device, struct tc_err *err);
int tc_like_run(struct tc_like *l, const char *folder, const char *device, struct tc_err *err);
int tc_like_table(struct tc_like *l, const char *path, const char *device, struct tc_err *err);
/* Local. Plans a row, and compares. */
void tc_like_compare(struct tc_like_row *r);
/* Local. The middle and the largest of the errors' sizes, over rows that were planned and are not doubtful; *worst: its row; -1:
 * there is none. */
void tc_like_sums(const struct tc_like *l, double *middle, int *worst);
void tc_like_done(struct tc_like *l);

#endif
