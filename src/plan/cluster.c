/* cluster.c - clusters: a device of devices.def, or a file with measured values.
 *
 * A file has lines "key = value"; "#" starts a comment. Keys that are missing have the values of devices.def
 * for the file's device. The table `fields` has all keys except timings:
 *   attention = cudnn|own|triton|unfused
 *   fuses = none, or NAME ..., groups of schedule/fusion.def that the device runs as one call
 *   op NAME RANKS key0 key1 key2 key3 = seconds, tc_op_key
 *   source TERM|WIRE = assumed|fitted|data sheet|measured|given|calibrated, of what the lines above say
 *   links node|network|spine = FILE, printed by tercio comm --json
 *   link node|network|spine COLLECTIVE = latency seconds, bytes per second (all: every collective)[, bytes with half the rate]
 * A spine without lines of its own is as fast as the network. */
#include "src/plan/impl.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_FILE_BYTES = 16 << 20 };
#define MOST_SIZE 1e18                           /* operations or bytes of one op */

static const struct card {
  const char *name;
  double memory, fp32, bf16, bytes, node, net, host, eff_flops, eff_bytes, multiprocessors;
  int capability;
  enum tc_plan_source source;
} cards[] = {
#define DEVICE(name, memory, fp32, bf16, bw, node, net, host, ef, eb, sm, cc, source) \
  { name, memory, fp32, bf16, bw, node, net, host, ef, eb, sm, cc, TC_SOURCE_##source },
#include "src/plan/devices.def"
};
enum { N_CARDS = sizeof cards / sizeof *cards };

const char *tc_plan_device_name(int i) { return i < N_CARDS ? cards[i].name : NULL; }

enum unit { BYTES, SECONDS, NUMBER };
enum { OF_PRODUCTS = 1 << TC_TERM_PRODUCTS, OF_MEMORY = 1 << TC_TERM_BETWEEN | 1 << TC_TERM_UPDATE, OF_SAVES = 1 << TC_TERM_SAVES };
static const struct { const char *key; size_t at; int unit; unsigned terms; } fields[] = {      /* whose rates they are */
#define F(key, member, unit, terms) { key, offsetof(struct tc_cluster, member), unit, terms }
  F("memory", device.memory_bytes, BYTES, 0), F("host_memory", device.host_bytes, BYTES, 0),
  F("context_memory", device.context_bytes, BYTES, 0),
  F("fp32_flops", device.flops[TC_F32], NUMBER, OF_PRODUCTS), F("bf16_flops", device.flops[TC_BF16], NUMBER, OF_PRODUCTS),
  F("memory_rate", device.bytes_per_s, BYTES, OF_MEMORY), F("copy_rate", device.copy_bytes_per_s, BYTES, 0),
  F("eff_flops", device.eff_flops, NUMBER, OF_PRODUCTS), F("eff_bytes", device.eff_bytes, NUMBER, OF_MEMORY),
  F("op_seconds", device.op_s, NUMBER, 0), F("issue_seconds", device.issue_s, NUMBER, 0),
  F("multiprocessors", device.multiprocessors, NUMBER, 0), F("capability", device.capability, NUMBER, 0),
  F("cores", device.cores, NUMBER, 0), F("steal", device.steal, NUMBER, 0),
  F("steal_network", device.steal_network, NUMBER, 0), F("exposed", device.exposed, NUMBER, 0),
  F("pipeline_queues", device.pipeline_queues, NUMBER, 0),
  F("disk_rate", disk_bytes_per_s, BYTES, OF_SAVES),
  F("node_mtbf", mtbf_s, SECONDS, 0), F("switch_nodes", switch_nodes, NUMBER, 0),
#undef F
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* Whether `text` contains `part`, ignoring case, not within a longer word or number: "h200" is not in "GH200". */
static bool has_part(const char *text, const char *part, size_t n)
{
  for (const char *at = text; *at; at++) {
    if (strncasecmp(at, part, n) || (at > text && isalnum((unsigned char)at[-1]))) continue;
    if (!isdigit((unsigned char)at[n])) return true;
  }
  return false;
}

/* The device that a name says; NULL: none. */
static const char *device_in(const char *gpu)
{
  for (int i = 0; i < N_CARDS; i++) {            /* "a100-80": both parts must match */
    size_t n = strcspn(cards[i].name, "-"), all = strlen(cards[i].name);
    if (!strcmp(cards[i].name, "cpu") || !has_part(gpu, cards[i].name, n)) continue;
    if (n == all || has_part(gpu, cards[i].name + n + 1, all - n - 1)) return cards[i].name;
  }
  return NULL;
}

const char *tc_plan_device_of(const char *gpu)
{
  return has_part(gpu, "PCI", 3) || has_part(gpu, "PCIe", 4) ? NULL : device_in(gpu);
}

static bool runs(const struct card *c) { return !c->capability || c->capability >= TC_CAPABILITY; }

bool tc_plan_is_cpu(const struct tc_plan_device *d) { return !strncmp(d->name, "cpu", 3); }

static const struct card *find_old(const char *gpu)
{
  for (int i = 0; i < N_CARDS; i++)
    if (!runs(&cards[i]) && has_part(gpu, cards[i].name, strcspn(cards[i].name, "-"))) return &cards[i];
  return NULL;
}

bool tc_plan_too_old(const char *gpu) { return find_old(gpu) != NULL; }

bool tc_plan_may_be(const char *gpu, const char *device)
{
  const bool cpu = !strncmp(device, "cpu", 3), no_gpu = !strcmp(gpu, "cpu");
  const char *is = device_in(gpu), *of = device_in(device);
  const size_t n = of ? strcspn(of, "-") : 0;
  bool named = false;
  if (cpu || no_gpu) return cpu;                 /* every node has CPUs */
  if (!of) return true;
  if (is) return !strcmp(is, of) || (!strncmp(is, of, n) && !is[n]);
  for (int i = 0; i < N_CARDS; i++) named |= has_part(gpu, cards[i].name, strcspn(cards[i].name, "-"));
  return !named || has_part(gpu, of, n);
}

static void set_link(struct tc_link *l, double latency_s, double bytes_per_s, double half_bytes)
{
  for (int i = TC_FIRST_COLL; i < TC_COLLS; i++) {
    l->latency_s[i] = latency_s;
    l->bytes_per_s[i] = bytes_per_s;
    l->half_bytes[i] = half_bytes;
    l->measured[i].n = 0;
  }
}

/* The error for a device that is not supported; it lists those that are. */
static int no_device(const char *name, struct tc_err *err)
{
  const struct card *old = find_old(name);
  const char *names[N_CARDS];
  char list[200] = "", same[100] = "";           /* "A100": devices with this prefix, ignoring case */
  int n = 0, n_same = 0;
  for (int i = 0; i < N_CARDS; i++) {
    const bool like = *name && !strncasecmp(name, cards[i].name, strlen(name));
    if (like && !runs(&cards[i])) old = &cards[i];
    if (!runs(&cards[i])) continue;
    names[n] = cards[i].name;
    tc_text_add(list, sizeof list, "%s%s", n++ ? ", " : "", cards[i].name);
    if (like) tc_text_add(same, sizeof same, "%s%s", n_same++ ? " or " : "", cards[i].name);
  }
  const int near = tc_nearest(name, names, n);
  if (old)
    return tc_fail(err, TC_EUSER, "device %s has compute capability %d.%d, but Tercio needs a GPU of "
                   "%d.%d or later; known are %s", name, old->capability / 10, old->capability % 10,
                   TC_CAPABILITY / 10, TC_CAPABILITY % 10, list);
  if (n_same || near >= 0)
    return tc_fail(err, TC_EUSER,
                   "device %s is not known; did you mean %s? Known are %s, or a file "
                   "that tercio plan --calibrate wrote", name, n_same ? same : names[near], list);
  return tc_fail(err, TC_EUSER, "device %s is not known; known are %s, or a file that tercio plan "
                 "--calibrate wrote (its name with a . or a /)", name, list);
}

/* What NCCL makes of a GPU's links. Of the line rate its large collectives reach 235 of an A100's 300 GB/s and 370 of an H100's
 * 450 within a node, 23.5 of 25 GB/s a GPU between nodes (github.com/NVIDIA/nccl-tests issue 212, nccl issue 1455; README of
 * AML_NCCL_Test, 2023: all_reduce_perf on 8 and 16 A100s of Azure's ND A100 v4). Smaller ones take these seconds more, by the
 * latter's tables from 1 MB to 8 GB, besides the latency: at 16 MB 70 us on a node, 200 us on two. NCCL's kernels have 24 blocks
 * (24 channels: nccl issue 1161, nccl-tests issue 100), each on a multiprocessor that does nothing else meanwhile. */
#define NCCL_BLOCKS 24
#define NODE_PART 0.8
#define NODE_FILL_S 70e-6
#define NETWORK_PART 0.94
#define NETWORK_FILL_S 200e-6

/* Launch of an op, latency within a node and between nodes: assumed if not measured. */
static int from_table(struct tc_cluster *k, const char *name, struct tc_err *err)
{
  const double launch_s = 5e-6, node_s = 10e-6, network_s = 20e-6;
  const struct card *c = NULL;
  for (int i = 0; i < N_CARDS; i++)
    if (!strcmp(name, cards[i].name) && runs(&cards[i])) c = &cards[i];
  if (!c) return no_device(name, err);
  const bool gpu = c->capability > 0;
  struct tc_plan_device *d = &k->device;
  snprintf(d->name, sizeof d->name, "%s", c->name);
  d->context_bytes = gpu ? CONTEXT_GB * 1e9 : 0;
  d->memory_bytes = c->memory * 1e9 - d->context_bytes;
  d->flops[TC_F32] = c->fp32 * 1e12;
  d->flops[TC_BF16] = c->bf16 * 1e12;
  d->bytes_per_s = c->bytes * 1e9;
  d->copy_bytes_per_s = c->host * 1e9;
  d->eff_flops = c->eff_flops;
  d->eff_bytes = c->eff_bytes;
  d->multiprocessors = c->multiprocessors;
  d->capability = c->capability;
  d->steal = d->steal_network = gpu ? NCCL_BLOCKS / c->multiprocessors : 0;
  d->op_s = launch_s;
  d->pipeline_queues = gpu ? 2 : 1;
  k->card = c->source;
  memset(k->source, 0, sizeof k->source);
  tc_source_add(k, OF_PRODUCTS, c->source);
  tc_source_add(k, OF_MEMORY, gpu ? TC_SOURCE_SHEET : TC_SOURCE_ASSUMED);
  tc_source_add(k, OF_SAVES, TC_SOURCE_ASSUMED);
  k->wire_source[TC_WIRE_NODE] = k->wire_source[TC_WIRE_NETWORK] = gpu ? TC_SOURCE_SHEET : TC_SOURCE_ASSUMED;
  k->wire_source[TC_WIRE_SPINE] = TC_SOURCE_UNSAID;
  const double node = c->node * 1e9 * (gpu ? NODE_PART : 1), network = c->net * 1e9 * (gpu ? NETWORK_PART : 1);
  set_link(&k->link[TC_WIRE_NODE], node_s, node, gpu ? node * NODE_FILL_S : 0);
  set_link(&k->link[TC_WIRE_NETWORK], network_s, network, gpu ? network * NETWORK_FILL_S : 0);
  for (int w = 0; w < TC_WIRES; w++) k->link[w].half_bytes[TC_SEND] = k->link[w].half_bytes[TC_RECV] = 0;
  /* GELU's gradient within its product: cuBLASLt does it on 9.x alone (kernels/cuda/gemm.cu). */
  const uint32_t gelu = UINT32_C(1) << TC_FUSE_GELU_BWD | UINT32_C(1) << TC_FUSE_GELU_BIAS_BWD;
  if (gpu) d->fuses = (UINT32_MAX >> (32 - TC_FUSIONS)) & (c->capability / 10 == 9 ? UINT32_MAX : ~gelu);
  return 0;
}

/* ---- files ----------------------------------------------------------------------- */

static int find_op(const char *name)
{
  for (int i = 0; i < TC_OPS; i++)
    if (!strcmp(tc_op_info[i].name, name)) return i;
  return strcmp(name, "move") ? -1 : TC_OP_RESHARD;     /* its name in files of version 0.1 */
}

/* A device file that is being read. */
struct file { struct tc_cluster *k; const char *path; int line; char **key; int n_keys, cap_keys; };

static int bad_value(const struct file *f, const char *key, const char *value, const char *what,
                     struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "%s:%d: %s = %s is not a %s", f->path, f->line, key, value, what);
}

static int not_known(const struct file *f, const char *key, const char *const *names, int n,
                     struct tc_err *err)
{
  int near = tc_nearest(key, names, n);
  return tc_fail(err, TC_EUSER, "%s:%d: \"%s\" is not known%s%s%s", f->path, f->line, key,
                 near >= 0 ? "; did you mean " : "", near >= 0 ? names[near] : "",
                 near >= 0 ? "?" : "");
}

/* "link node all_reduce", "link network all": value "latency, bytes per second", and the bytes with half of that rate if any. */
static int read_link(const struct file *f, const char *key, const char *value, struct tc_err *err)
{
  char wire[32], coll[32];
  double s, rate, half = 0;
  int end = 0, more = 0, w, c;
  if (sscanf(key, "link %31s %31s", wire, coll) != 2 || (w = tc_word_index(wire, tc_wire_name, TC_WIRES)) < 0 ||
      ((c = tc_coll_named(coll)) < 0 && strcmp(coll, "all")))
    return tc_fail(err, TC_EUSER, "%s:%d: \"%s\" is not known; a link is one of node, network or "
                   "spine, for all collectives or for one, such as \"link node all_reduce\"",
                   f->path, f->line, key);
  const bool two = sscanf(value, "%lf , %lf%n", &s, &rate, &end) == 2;
  if (two && sscanf(value + end, " , %lf%n", &half, &more) == 1) end += more;
  if (!two || value[end] || !(s >= 0) || !(rate > 0) || !(half >= 0) || !isfinite(s) || !isfinite(rate) || !isfinite(half))
    return bad_value(f, key, value, "latency in seconds and a rate in bytes per second, such as "
                     "10e-6, 25e9", err);
  tc_source_add_wire(f->k, (enum tc_wire)w, TC_SOURCE_GIVEN);
  if (c < 0) {
    set_link(&f->k->link[w], s, rate, half);
  } else {
    f->k->link[w].latency_s[c] = s;
    f->k->link[w].bytes_per_s[c] = rate;
    f->k->link[w].half_bytes[c] = half;
    f->k->link[w].measured[c].n = 0;
  }
  return 0;
}

static int read_op(const struct file *f, const char *key, const char *value, struct tc_err *err)
{
  struct tc_plan_device *d = &f->k->device;
  char name[32], *end;
  struct tc_op_sample s = { .seconds = strtod(value, &end) };
  if (sscanf(key, "op %31s %9d %lf %lf %lf %lf", name, &s.ranks, &s.key[0], &s.key[1], &s.key[2],
             &s.key[3]) != 6 || (s.op = find_op(name)) < 0)
    return not_known(f, key, NULL, 0, err);
  bool sizes = s.ranks >= 1 && s.key[3] < 4 * TC_DTYPES;           /* tc_op_key */
  for (int i = 0; i < 4; i++) sizes &= s.key[i] >= 0 && s.key[i] <= MOST_SIZE;
  if (!sizes)
    return tc_fail(err, TC_EUSER, "%s:%d: \"%s\": no op has these sizes; write the file with tercio plan --calibrate",
                   f->path, f->line, key);
  if (*end || end == value || !(s.seconds >= 0) || !isfinite(s.seconds))
    return bad_value(f, key, value, "time in seconds, such as 1e-3", err);
  TC_APPEND(d->sample, d->n_samples, d->cap_samples, s);
  return 0;
}

static int read_fuses(const struct file *f, char *value, struct tc_err *err)
{
  const char *names[TC_FUSIONS];
  for (int i = 0; i < TC_FUSIONS; i++) names[i] = tc_fusion_rule[i].name;
  f->k->device.fuses = 0;
  if (!strcmp(value, "none")) return 0;
  for (char *at = NULL, *word = strtok_r(value, " \t,", &at); word; word = strtok_r(NULL, " \t,", &at)) {
    const int i = tc_word_index(word, names, TC_FUSIONS);
    if (i < 0) return not_known(f, word, names, TC_FUSIONS, err);
    f->k->device.fuses |= UINT32_C(1) << i;
  }
  return 0;
}

static int read_attention(const struct file *f, const char *value, struct tc_err *err)
{
  const int i = tc_word_index(value, tc_attn_by_name, TC_ATTN_BYS);
  if (i < 0) return bad_value(f, "attention", value, "kind of attention: cudnn, own, triton or unfused would fit", err);
  f->k->device.attention = i;
  return 0;
}

static int read_field(const struct file *f, const char *key, const char *value, struct tc_err *err)
{
  const char *names[N_FIELDS];
  for (int i = 0; i < N_FIELDS; i++) {
    names[i] = fields[i].key;
    if (strcmp(key, names[i])) continue;
    char *end;
    double x = fields[i].unit == BYTES ? tc_parse_bytes(value)
             : fields[i].unit == SECONDS ? tc_parse_seconds(value) : strtod(value, &end);
    if (fields[i].unit == NUMBER && (*end || end == value)) x = -1;
    if (!(x >= 0) || !isfinite(x))
      return bad_value(f, key, value, fields[i].unit == BYTES ? "number of bytes, such as 80GB"
                       : fields[i].unit == SECONDS ? "time, such as 24:00:00 or 5y" : "number", err);
    *(double *)((char *)f->k + fields[i].at) = x;
    tc_source_add(f->k, fields[i].terms, TC_SOURCE_GIVEN);
    return 0;
  }
  return not_known(f, key, names, N_FIELDS, err);
}

/* Rejects a line whose key was given before, or that would replace what earlier lines have set. */
static int check_order(struct file *f, char *key, struct tc_err *err)
{
  const size_t n = strlen(key);
  const bool all = n > 4 && !strncmp(key, "link ", 5) && !strcmp(key + n - 4, " all");
  for (int i = 0; i < f->n_keys; i++) {
    if (!strcmp(f->key[i], key))
      return tc_fail(err, TC_EUSER, "%s:%d: %s was set by an earlier line", f->path, f->line, key);
    if (all && !strncmp(f->key[i], key, n - 3))
      return tc_fail(err, TC_EUSER, "%s:%d: %s would replace what the line \"%s\" above has set; put it "
                     "before that line", f->path, f->line, key, f->key[i]);
  }
  if (!strcmp(key, "device") && f->n_keys + f->k->device.n_samples > 0)
    return tc_fail(err, TC_EUSER, "%s:%d: device would replace what the lines above have set; make it "
                   "the first line", f->path, f->line);
  TC_APPEND(f->key, f->n_keys, f->cap_keys, key);
  return 0;
}

static int set_key(const struct file *f, const char *key, char *value, struct tc_err *err)
{
  struct tc_cluster *k = f->k;
  if (!strncmp(key, "link ", 5)) return read_link(f, key, value, err);
  if (!strncmp(key, "links ", 6)) {
    const int w = tc_word_index(key + 6, tc_wire_name, TC_WIRES);
    if (w >= 0) tc_source_add_wire(k, (enum tc_wire)w, TC_SOURCE_CALIBRATED);
    return w >= 0 ? tc_links_read(&k->link[w], value, err) : not_known(f, key, NULL, 0, err);
  }
  if (!strncmp(key, "source ", 7)) return tc_source_set(k, key + 7 + strspn(key + 7, " \t"), value, f->path, f->line, err);
  if (!strcmp(key, "fuses")) return read_fuses(f, value, err);
  if (!strcmp(key, "attention")) return read_attention(f, value, err);
  if (!strcmp(key, "device")) return from_table(k, value, err);
  if (!strcmp(key, "name")) {
    snprintf(k->device.name, sizeof k->device.name, "%s", value);
    return 0;
  }
  return read_field(f, key, value, err);
}

static int read_line(struct file *f, char *line, struct tc_err *err)
{
  line[strcspn(line, "#\r\n")] = 0;
  char *eq = strchr(line, '='), *key = line, *value = eq ? eq + 1 : NULL;
  while (isspace((unsigned char)*key)) key++;
  if (!*key) return 0;
  if (!eq) return tc_fail(err, TC_EUSER, "%s:%d: not \"key = value\"", f->path, f->line);
  *eq = 0;
  while (isspace((unsigned char)*value)) value++;
  for (char *s = value + strlen(value); s > value && isspace((unsigned char)s[-1]);) *--s = 0;
  for (char *s = key + strlen(key); s > key && isspace((unsigned char)s[-1]);) *--s = 0;
  if (!strncmp(key, "op ", 3)) return read_op(f, key, value, err);
  TC_TRY(check_order(f, key, err));
  return set_key(f, key, value, err);
}

/* Rates of 0 would make times infinite or NaN. */
int tc_cluster_check(const struct tc_cluster *k, const char *path, struct tc_err *err)
{
  const struct tc_plan_device *d = &k->device;
  if (d->multiprocessors > 0 && !tc_attention_known(d))
    return tc_fail(err, TC_EUSER, "%s: no rate of attention is known of capability %.4g; one of 80 or more, attention = unfused, or "
                   "multiprocessors = 0 would fit", path, (double)d->capability);
  if (d->pipeline_queues != 1 && d->pipeline_queues != 2)
    return tc_fail(err, TC_EUSER, "%s: pipeline_queues = %.4g: 1 or 2 would fit", path, d->pipeline_queues);
  if (d->flops[TC_F32] > 0 && d->bytes_per_s > 0 && d->eff_flops > 0 && d->eff_bytes > 0 &&
      d->memory_bytes > 0 && d->copy_bytes_per_s > 0)
    return 0;
  return tc_fail(err, TC_EUSER, "%s: memory, fp32_flops, memory_rate, copy_rate, eff_flops and "
                 "eff_bytes must be above 0 (or name a device)", path);
}

/* Gives a spine that the file does not describe the network's values. */
static void same_spine(struct tc_cluster *k)
{
  struct tc_link *s = &k->link[TC_WIRE_SPINE];
  for (int c = TC_FIRST_COLL; c < TC_COLLS; c++)
    if (!(s->bytes_per_s[c] > 0)) {
      s->bytes_per_s[c] = k->link[TC_WIRE_NETWORK].bytes_per_s[c];
      s->latency_s[c] = k->link[TC_WIRE_NETWORK].latency_s[c];
      s->half_bytes[c] = k->link[TC_WIRE_NETWORK].half_bytes[c];
      s->measured[c] = k->link[TC_WIRE_NETWORK].measured[c];
    }
}

int tc_cluster_read(struct tc_cluster *k, const char *device, struct tc_err *err)
{
  *k = (struct tc_cluster){ .nodes = 1, .devices = 1, .disk_bytes_per_s = 10e9,
                            .mtbf_s = 5 * 365.25 * 86400 };
  if (!strpbrk(device, "/.")) {
    TC_TRY(from_table(k, device, err));
    same_spine(k);
    return 0;
  }
  char *text, *next;
  size_t bytes;
  TC_TRY(tc_read_text(&text, &bytes, device, "device file", MOST_FILE_BYTES, err));
  int rc = from_table(k, "cpu", err);
  if (!rc && memchr(text, 0, bytes))
    rc = tc_fail(err, TC_EUSER, "%s is not a device file: it contains bytes of value 0", device);
  struct file f = { .k = k, .path = device };
  for (char *line = text; !rc && line < text + bytes; line = next) {
    next = line + strcspn(line, "\n") + 1;
    next[-1] = '\0';
    f.line++;
    rc = read_line(&f, line, err);
  }
  if (!rc && f.n_keys + k->device.n_samples == 0)
    rc = tc_fail(err, TC_EUSER, "device file %s is empty", device);
  free(f.key);
  same_spine(k);
  if (!rc) rc = tc_cluster_check(k, device, err);
  free(text);
  if (rc < 0) tc_cluster_done(k);
  return rc;
}

int tc_cluster_set(struct tc_cluster *k, const char *key, const char *value, const char *path, int line, struct tc_err *err)
{
  char *text = tc_sprintf("%s", value);
  const struct file f = { .k = k, .path = path, .line = line };
  int rc = set_key(&f, key, text, err);
  free(text);
  if (!rc) rc = tc_cluster_check(k, path, err);
  return rc;
}

const struct tc_output_kind tc_cluster_kind = { "a device file that tercio plan has written", { "# Written by tercio plan" } };

void tc_cluster_print(const struct tc_cluster *k, FILE *f)
{
  const struct tc_plan_device *d = &k->device;
  fprintf(f, "# Written by tercio plan; rates in bytes or operations per second.\n"
          "name = %s\n", d->name);
  for (int i = 0; i < N_FIELDS; i++) {
    double x = *(const double *)((const char *)k + fields[i].at);
    fprintf(f, "%s = %.6g%s\n", fields[i].key, x, fields[i].unit == SECONDS ? "s" : "");
  }
  if (d->multiprocessors > 0) fprintf(f, "attention = %s\n", tc_attn_by_name[d->attention]);
  if (d->fuses) fprintf(f, "fuses =");
  else if (d->multiprocessors > 0) fprintf(f, "fuses = none\n");
  for (int i = 0; i < TC_FUSIONS; i++)
    if (d->fuses >> i & 1) fprintf(f, " %s", tc_fusion_rule[i].name);
  if (d->fuses) fprintf(f, "\n");
  int wires = k->switch_nodes > 0 ? TC_WIRES : TC_WIRE_SPINE;
  for (int w = 0; w < wires; w++)
    for (int c = TC_FIRST_COLL; c < TC_BARRIER; c++) {
      const struct tc_link *l = &k->link[w];
      fprintf(f, "link %s %s = %.4g, %.4g", tc_wire_name[w], tc_coll_name[c], l->latency_s[c], l->bytes_per_s[c]);
      fprintf(f, l->half_bytes[c] > 0 ? ", %.4g\n" : "\n", l->half_bytes[c]);
    }
  tc_source_print(k, f);
  for (int i = 0; i < d->n_samples; i++) {
    const struct tc_op_sample *s = &d->sample[i];
    fprintf(f, "op %s %d %.15g %.15g %.15g %.15g = %.6g\n", tc_op_info[s->op].name, s->ranks,
            s->key[0], s->key[1],
            s->key[2], s->key[3], s->seconds);
  }
}

int tc_cluster_write(const struct tc_cluster *k, const char *path, const char *flag, struct tc_err *err)
{
  struct tc_output *f;
  TC_TRY(tc_output_new(&f, path, &(struct tc_output_opts){ .kind = &tc_cluster_kind, .flag = flag }, err));
  tc_cluster_print(k, tc_output_stream(f));
  return tc_output_finish(f, err);
}

void tc_cluster_done(struct tc_cluster *k)
{
  free(k->device.sample);
  k->device.sample = NULL;
  k->device.n_samples = k->device.cap_samples = 0;
}
