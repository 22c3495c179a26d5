/* t_nvml.c - what is taken from the answers of the driver's library, with a made-up one. Loading it
 * is m_place's. */
#include "src/launch/nvml.c"
#include "tests/unit/tap.h"

enum { FAIL = 5 };

/* One GPU; what fails is named in `broken`. */
static const char *broken = "", *asked_pci, *asked_uuid;
static int gpu_here;
static bool breaks(const char *what) { return strstr(broken, what) != NULL; }

static int by_pci(const char *pci, void **gpu)
{
  asked_pci = pci;
  *gpu = &gpu_here;
  return breaks("pci") ? FAIL : NVML_OK;
}

static int by_uuid(const char *uuid, void **gpu)
{
  asked_uuid = uuid;
  *gpu = &gpu_here;
  return breaks("by_uuid") ? FAIL : NVML_OK;
}

static int name(void *gpu, char *text, unsigned size)
{
  snprintf(text, size, "%080d", gpu == &gpu_here ? 7 : 0);
  return breaks("name") ? FAIL : NVML_OK;
}

static int uuid(void *gpu, char *text, unsigned size)
{
  snprintf(text, size, "GPU-%s%080d", gpu == &gpu_here ? "here" : "", 1);
  return breaks("its_id") ? FAIL : NVML_OK;
}

static int memory(void *gpu, struct nvml_memory *m)
{
  *m = (struct nvml_memory){ gpu == &gpu_here ? 85899345920 : 0, 3, 4 };
  return breaks("memory") ? FAIL : NVML_OK;
}

/* Links 0 and the last go to GPUs, 1 and 2 to switches, 3 elsewhere, 4 is down, 5 unknown. */
static int link_state(void *gpu, unsigned link, int *state)
{
  *state = gpu == &gpu_here && (link < 4 || link == 5 || link == TC_NVLINKS_MAX - 1) ? LINK_UP : 0;
  return link == 5 || breaks("state") ? FAIL : NVML_OK;
}

static int link_pci(void *gpu, unsigned link, struct nvml_pci *pci)
{
  snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", gpu == &gpu_here ? link + 16 : 0);
  return breaks("peer") ? FAIL : NVML_OK;
}

static int link_type(void *gpu, unsigned link, int *type)
{
  *type = gpu == &gpu_here && (link == 1 || link == 2) ? TO_SWITCH : link == 3 ? 1 : TO_GPU;
  return breaks("type") ? FAIL : NVML_OK;
}

static const struct nvml lib = { .by_pci = by_pci,
                                 .by_uuid = by_uuid,
                                 .name = name,
                                 .uuid = uuid,
                                 .memory = memory,
                                 .link_state = link_state,
                                 .link_pci = link_pci,
                                 .link_type = link_type };

static void test_one(void)
{
  static const struct {
    const char *broken, *pci, *uuid;
    bool name;
    const char *id;
    int64_t memory;
    int links, switched;
    int peers;
  } rows[] = {
    { "", "0000:10:00.0", "", true, "GPU-here", 85899345920, 5, 2, 2 },
    { "", "", "GPU-x", true, "GPU-x", 85899345920, 5, 2, 2 },
    { "pci", "0000:10:00.0", "GPU-x", true, "GPU-x", 85899345920, 5, 2, 2 },
    { "pci", "0000:10:00.0", "", false, "", 0, -1, 0, 0 },
    { "by_uuid", "", "GPU-x", false, "GPU-x", 0, -1, 0, 0 },
    { "by_uuid", "0000:10:00.0", "GPU-x", true, "GPU-x", 85899345920, 5, 2, 2 },
    { "", "", "", false, "", 0, -1, 0, 0 },
    { "name", "0000:10:00.0", "", false, "GPU-here", 85899345920, 5, 2, 2 },
    { "its_id", "0000:10:00.0", "", true, "", 85899345920, 5, 2, 2 },
    { "memory", "0000:10:00.0", "", true, "GPU-here", 0, 5, 2, 2 },
    { "state", "0000:10:00.0", "", true, "GPU-here", 85899345920, 0, 0, 0 },
    { "peer", "0000:10:00.0", "", true, "GPU-here", 85899345920, 5, 2, 0 },
    { "type", "0000:10:00.0", "", true, "GPU-here", 85899345920, 5, 0, 5 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_dev d = { .name = "as it was", .n_links = -1 };
    int peers = 0;
    broken = rows[i].broken;
    asked_pci = asked_uuid = NULL;
    snprintf(d.pci, sizeof d.pci, "%s", rows[i].pci);
    snprintf(d.uuid, sizeof d.uuid, "%s", rows[i].uuid);
    ask_one(&lib, &d);
    ok(rows[i].name ? strlen(d.name) == 63 && strspn(d.name, "0") == 63
                    : !strcmp(d.name, "as it was"),
       "fails: \"%s\", of \"%s%s\": name", broken, rows[i].pci, rows[i].uuid);
    ok(!strncmp(d.uuid, rows[i].id, 8) &&
           strlen(d.uuid) == (*rows[i].uuid || !*rows[i].id ? strlen(rows[i].id) : 63),
       "... UUID %s", d.uuid);
    is_int(d.memory_bytes, rows[i].memory, "... memory");
    is_int(d.n_links, rows[i].links, "... links");
    is_int(d.n_switched, rows[i].switched, "... to switches");
    for (int k = 0; k < TC_NVLINKS_MAX; k++) peers += d.peer[k] != 0;
    is_int(peers, rows[i].peers, "... to GPUs whose address is known");
    ok(!*rows[i].pci == !asked_pci && (!asked_pci || asked_pci == d.pci),
       "... the address was asked for");
    ok(!asked_uuid || asked_uuid == d.uuid, "... and no other UUID");
  }
}

static void test_links(void)
{
  struct tc_dev d = { .n_links = -1, .n_switched = 9 };
  struct nvml old = lib;
  broken = "";
  d.peer[7] = 12;
  ask_links(&lib, &gpu_here, &d);
  ok(d.n_links == 5 && d.n_switched == 2, "five links, two of them to switches");
  for (int i = 0; i < TC_NVLINKS_MAX; i++)
    is_int((int64_t)d.peer[i], i == 0 || i == TC_NVLINKS_MAX - 1 ? (i + 16) << 8 : 0,
           "peer of link %d", i);
  old.link_type = NULL; /* an old library: all are taken for GPUs */
  ask_links(&old, &gpu_here, &d);
  ok(d.n_links == 5 && d.n_switched == 0, "a library that does not know of switches");
  for (int i = 0; i < 6; i++)
    is_int((int64_t)d.peer[i], i < 4 ? (i + 16) << 8 : 0, "... peer of link %d", i);
}

int main(void)
{
  test_one();
  test_links();
  return done_testing();
}
