/* base.h - what every other folder uses; includes all of src/base.
 *
 * In and out: nothing here depends on tensors, ranks or the program's files. The files, in reading
 * order:
 *   err.h       status codes, error sentences, log lines, assertions
 *   arith.h     minimum, maximum, rounding up, divisors, orders for qsort, medians
 *   mem.h       allocation that never returns NULL, arrays that grow, pools
 *   plain.h     text of others on a terminal, characters of UTF-8
 *   text.h      strings: formatting, paths, "did you mean"
 *   amount.h    bytes, counts and times as text
 *   dtype.h     element types
 *   figure.h    figures and texts in JSON, and what is not a number
 *   hash.h      hashes of strings
 *   random.h    random numbers from a key and a counter, and from the system
 *   clock.h     the monotonic clock, the time of day as text
 *   thread.h    threads with signals blocked, stacks for signal handlers, timed waits, the CPUs of the process, work that
 *               threads share */
#ifndef TC_BASE_H
#define TC_BASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "src/base/amount.h"
#include "src/base/arith.h"
#include "src/base/clock.h"
#include "src/base/dtype.h"
#include "src/base/err.h"
#include "src/base/figure.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/plain.h"
#include "src/base/random.h"
#include "src/base/text.h"
#include "src/base/thread.h"

/* The minimum compute capability of GPUs that Tercio supports, times 10: older ones have no bf16
 * products. */
enum { TC_CAPABILITY = 80 };

#endif
