/* fuzz_manifest.c - damaged manifests: most with a checksum made anew, so that what is behind it is
 * reached; some without. What is accepted must keep the promises of a checked manifest. */
#include "tests/fuzz/fuzz.h"
#include "tests/unit/ckpt_fixture.h"

/* What readers rely on, expressed in another way than manifest.c does. */
static bool sound(const struct tc_manifest *m)
{
  for (int i = 0; i < m->n_tensors; i++) {
    const struct tc_ckpt_tensor *t = &m->tensor[i];
    long double whole = 1, sum = 0;
    for (int d = 0; d < t->rank; d++) whole *= (long double)t->dim[d];
    for (int k = m->first_piece[i]; k < m->first_piece[i + 1]; k++) {
      const struct tc_piece *p = &m->piece[k];
      long double n = 1;
      for (int d = 0; d < t->rank; d++) {
        if (p->start[d] < 0 || p->count[d] < 1 ||
            p->start[d] + p->count[d] > t->dim[d]) return false;
        n *= (long double)p->count[d];
      }
      if (p->tensor != i || p->file < 0 || p->file >= m->n_files || p->offset < 0) return false;
      if (p->offset + p->bytes > m->file[p->file].size) return false;
      if (n * (long double)tc_dtype_bytes(t->dtype) != (long double)p->bytes) return false;
      sum += n;
    }
    if (sum != whole || strchr(t->name, ' ')) return false;
  }
  for (int i = 0; i < m->n_files; i++)
    if (strchr(m->file[i].name, '/') || m->file[i].name[0] == '.') return false;
  for (int i = 0; i < TC_ATTACHED; i++) {
    const struct tc_ckpt_attached *a = &m->meta.attached[i];
    if (a->name && (strchr(a->name, '/') || a->name[0] == '.' || a->bytes < 0 || a->bytes > INT64_C(1) << 30)) return false;
  }
  return m->meta.step >= 0 && m->first_piece[m->n_tensors] == m->n_pieces;
}

int main(int argc, char **argv)
{
  struct fuzz f;
  const char *dir = fx_folder();
  TC_ASSERT(fx_save(dir, 3, 1, 4, 0) == 0);
  char *path = tc_sprintf("%s/step-00000003/manifest.json", dir);
  FILE *in = fopen(path, "r");
  enum { MOST = 1 << 16 };
  char *valid = tc_calloc(MOST, 1), *text = tc_calloc(MOST + 64, 1);
  size_t n_valid = fread(valid, 1, MOST, in);
  TC_ASSERT(n_valid > 1000 && n_valid < MOST);
  fclose(in);
  fx_clean();
  fuzz_start(&f, argc, argv);
  int64_t rss = fuzz_rss_kb();
  int unsound = 0, silent = 0;
  while (fuzz_more(&f)) {
    size_t n = n_valid;
    struct tc_manifest *m;
    struct tc_err err = {0};
    memcpy(text, valid, n_valid);
    for (size_t k = 1 + fuzz_below(&f, 3); k > 0 && n > 1; k--) fuzz_damage(&f, text, &n, 0, MOST);
    char *sealed = NULL;
    if (fuzz_below(&f, 8) && memchr(text, '}', n)) {
      char *crc = memmem(text, n, ",\n\"crc32c\": \"", 13);
      for (char *at = crc; at; at = memmem(at + 1, n - (size_t)(at + 1 - text),
          ",\n\"crc32c\": \"", 13))
        crc = at;
      if (crc) n = (size_t)(crc - text) + (size_t)sprintf(crc, "\n}\n");
      sealed = tc_manifest_seal(text, n, &n);
    }
    fuzz_write(&f, sealed ? sealed : text, n);
    free(sealed);
    int rc = tc_manifest_read(&m, f.path, &err);
    f.accepted += rc == 0;
    if (rc == 0 && !sound(m)) unsound += fuzz_fault(&f, "accepted, but not sound");
    if (rc < 0 && (!*err.text || strchr(err.text, '\n'))) silent += fuzz_fault(&f, err.text);
    if (rc == 0) tc_manifest_free(m);
  }
  is_int(unsound, 0, "what is accepted is sound");
  is_int(silent, 0, "what is refused is refused with a sentence");
  free(valid);
  free(text);
  free(path);
  return fuzz_end(&f, "manifests", rss);
}
