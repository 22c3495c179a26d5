/* gpus.h - the GPUs of this node that a rank may use, and how far each is from its CPUs.
 *
 * Read from sysfs (through hwloc), the driver's files in /proc and the environment, without
 * CUDA; what only the driver's library knows is asked for by name (tc_gpus_ask). */
#ifndef TC_GPUS_H
#define TC_GPUS_H

#include "src/base/base.h"

struct hwloc_topology;
struct hwloc_bitmap_s;

enum { TC_GPUS_MAX = 64, TC_NVLINKS_MAX = 18 };

struct tc_dev {
  char uuid[64], pci[32], name[64];      /* "" if unknown; pci as 0000:3b:00.0 */
  int numa;                              /* of the PCI slot; -1 unknown */
  int distance;                          /* see tc_gpus_distance; -1 unknown */
  int n_links;                           /* NVLinks that are up; -1 unknown */
  int n_switched;                        /* of these, to NVSwitches */
  int64_t memory_bytes;                  /* 0 unknown */
  uint64_t peer[TC_NVLINKS_MAX];         /* address of the GPU at a link's other end; 0: none */
};

struct tc_visible {
  int n;                                 /* devices this process may use */
  int n_node;                            /* devices the node has for this job, n or more */
  struct tc_dev dev[TC_GPUS_MAX];        /* [n], in the order in which CUDA counts them */
};

/* Local. CUDA_VISIBLE_DEVICES (indices, UUIDs or their prefixes; MIG ids as they are) applied to
 * the device files that can be opened; under Slurm an index without a file counts too. root: ""
 * or a folder that has dev and proc. Indices follow the PCI bus, as
 * CUDA's do with CUDA_DEVICE_ORDER = PCI_BUS_ID. */
void tc_gpus_look(struct tc_visible *v, struct hwloc_topology *topo, const char *root);

/* Local. How far the GPU is from these CPUs: for each CPU the levels of the machine's tree (NUMA
 * node, package, machine) up from the GPU's until the CPU is in it; the mean, times 100. 0: all
 * are in the GPU's NUMA node, or they are the whole machine (nothing is nearer). 50: the machine
 * has several NUMA nodes and it is not known which of them the GPU is near. */
int tc_gpus_distance(struct hwloc_topology *topo, const struct tc_dev *d,
                     const struct hwloc_bitmap_s *cpus);

/* Local. What the driver's library (libnvidia-ml.so.1) knows of the n devices: names, UUIDs,
 * memory, NVLinks. False: there is no such library, or no driver; dev is left as it was. */
bool tc_gpus_ask(struct tc_dev *dev, int n);

/* Local. NVLinks between two GPUs of a node, through switches too; -1 unknown. */
int tc_gpus_links(const struct tc_dev *a, const struct tc_dev *b);

/* nvml.c. Local. "0000:3b:00.0" as a number; 0 if it is no address. */
uint64_t tc_gpus_address(const char *pci);

#endif
