/* box.h - made-up nodes for hwloc: packages of NUMA nodes of CPUs, and GPUs that hang off them, as
 * hwloc's XML; with device files and the driver's files if wanted. */
#ifndef TC_BOX_H
#define TC_BOX_H

#include "src/launch/gpus.h"

#include <hwloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BOX_GPUS = 16 };
struct box {
  int packages, numas, cpus;       /* NUMA nodes of a package, CPUs of a NUMA node; packages < 0:
                                    * so many, of a die each: two levels of the same CPUs */
  int n_gpus, gpu_numa[BOX_GPUS];  /* -1: on the machine itself, no NUMA node known */
};

struct box_xml { FILE *f; int id; };

/* The GPU i is at bus 16 (i + 1). */
static void box_pci(char pci[32], int i)
{
  snprintf(pci, 32, "0000:%02x:00.0", 16 * (i + 1) - (i == 15));
}

static void box_sets(struct box_xml *x, const char *type, const struct box *b, int numa, int n_numa,
                     int cpu, int n_cpu)
{
  hwloc_bitmap_t cpus = hwloc_bitmap_alloc(), nodes = hwloc_bitmap_alloc();
  char c[128], n[128];
  hwloc_bitmap_set_range(cpus, (unsigned)cpu, cpu + n_cpu - 1);
  hwloc_bitmap_set_range(nodes, (unsigned)numa, numa + n_numa - 1);
  hwloc_bitmap_snprintf(c, sizeof c, cpus);
  hwloc_bitmap_snprintf(n, sizeof n, nodes);
  fprintf(x->f, "<object type=\"%s\" os_index=\"%d\" cpuset=\"%s\" complete_cpuset=\"%s\" "
          "nodeset=\"%s\" complete_nodeset=\"%s\" gp_index=\"%d\"", type,
          strcmp(type, "NUMANode") == 0 ? numa : strcmp(type, "PU") == 0 ? cpu :
          strcmp(type, "Package") == 0 ? numa / b->numas : 0, c, c, n, n, ++x->id);
  if (strcmp(type, "Machine") == 0)
    fprintf(x->f, " allowed_cpuset=\"%s\" allowed_nodeset=\"%s\"", c, n);
  fprintf(x->f, strcmp(type, "NUMANode") == 0 ? " local_memory=\"1073741824\">\n" :
          strcmp(type, "Group") == 0 ? " kind=\"1001\" subkind=\"0\">\n" : ">\n");
  hwloc_bitmap_free(cpus);
  hwloc_bitmap_free(nodes);
}

static void box_gpus(struct box_xml *x, const struct box *b, int numa)
{
  for (int i = 0; i < b->n_gpus; i++) {
    char pci[32];
    if (b->gpu_numa[i] != numa) continue;
    box_pci(pci, i);
    fprintf(x->f, "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" "
            "bridge_pci=\"0000:[%.2s-%.2s]\">\n<object type=\"PCIDev\" gp_index=\"%d\" "
            "pci_busid=\"%s\" pci_type=\"0302 [10de:2330] [10de:16c1] a1\" "
            "pci_link_speed=\"63.0\"/>\n</object>\n", x->id + 1, pci + 5, pci + 5, x->id + 2, pci);
    x->id += 2;
  }
}

static void box_close(struct box_xml *x) { fprintf(x->f, "</object>\n"); }

static void box_write(const struct box *b, const char *file)
{
  struct box_xml xml = { .f = fopen(file, "w") }, *x = &xml;
  const int n_packages = abs(b->packages), all = n_packages * b->numas;
  const bool dies = b->packages < 0, level = b->numas > 1 || dies;
  if (!x->f) abort();
  fprintf(x->f, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
          "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n");
  box_sets(x, "Machine", b, 0, all, 0, all * b->cpus);
  for (int p = 0; p < n_packages; p++) {
    const int first = p * b->numas;
    box_sets(x, "Package", b, first, b->numas, first * b->cpus, b->numas * b->cpus);
    for (int n = first; n < first + b->numas; n++) {
      if (level) box_sets(x, dies ? "Die" : "Group", b, n, 1, n * b->cpus, b->cpus);
      box_sets(x, "NUMANode", b, n, 1, n * b->cpus, b->cpus);
      box_close(x);
      for (int c = n * b->cpus; c < (n + 1) * b->cpus; c++) {
        box_sets(x, "PU", b, n, 1, c, 1);
        box_close(x);
      }
      box_gpus(x, b, n);
      if (level) box_close(x);
    }
    box_close(x);
  }
  box_gpus(x, b, -1);
  box_close(x);
  fprintf(x->f, "</topology>\n");
  if (fclose(x->f) != 0) abort();
}

/* *out is the caller's to destroy. */
__attribute__((unused))
static void box_load(hwloc_topology_t *out, const struct box *b)
{
  char file[] = "t_box.XXXXXX";
  int fd = mkstemp(file);
  if (fd < 0) abort();
  close(fd);
  box_write(b, file);
  if (hwloc_topology_init(out) != 0 || hwloc_topology_set_xml(*out, file) != 0) abort();
  hwloc_topology_set_io_types_filter(*out, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(*out) != 0) abort();
  unlink(file);
}

/* dev and proc of the box's GPUs below `root`: the device file of GPU i is nvidia<order[i]>. */
__attribute__((unused))
static void box_files(const struct box *b, const char *root, const int *order, bool uuids)
{
  char path[512], pci[32];
  static const char *const folder[] = { "", "/dev", "/proc", "/proc/driver", "/proc/driver/nvidia",
                                        "/proc/driver/nvidia/gpus" };
  for (size_t i = 0; i < sizeof folder / sizeof *folder; i++) {
    snprintf(path, sizeof path, "%s%s", root, folder[i]);
    mkdir(path, 0755);
  }
  for (int i = 0; i < b->n_gpus; i++) {
    snprintf(path, sizeof path, "%s/dev/nvidia%d", root, order[i]);
    FILE *f = fopen(path, "w");
    if (!f || fclose(f) != 0) abort();
    box_pci(pci, i);
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s", root, pci);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s/information", root, pci);
    if (!(f = fopen(path, "w"))) abort();
    fprintf(f, "Model: \t\t Some GPU\nIRQ:   \t\t 41\nGPU UUID: \t GPU-%s\nBus Location: \t %s\n"
            "Device Minor: \t %d\nGPU Excluded:\t No\n", uuids ? pci + 5 : "????????", pci, order[i]);
    if (fclose(f) != 0) abort();
  }
}

#endif
