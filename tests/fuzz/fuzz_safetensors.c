/* fuzz_safetensors.c - damaged safetensors files, and model files of llm.c. What is accepted must
 * be readable to its last byte. */
#include "io/formats/llmc.h"
#include "io/formats/safetensors.h"
#include "tests/fuzz/fuzz.h"

enum { MOST = 1 << 16, DATA = 4096 };

/* A file with tensors of several types and a note: header and data; bytes of it. */
static size_t make_safetensors(char *out)
{
  static const char header[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"tercio.step\":\"12\"},"
    "\"transformer.wte.weight\":{\"dtype\":\"F32\",\"shape\":[16,8],\"data_offsets\":[0,512]},"
    "\"h.0.attn.c_attn.weight\":{\"dtype\":\"BF16\",\"shape\":[8,24],\"data_offsets\":[512,896]},"
    "\"h.0.attn.bias\":{\"dtype\":\"BOOL\",\"shape\":[1,1,10,10],\"data_offsets\":[896,996]},"
    "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[996,996]},"
    "\"scalar\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[996,1000]},"
    "\"half\":{\"dtype\":\"F16\",\"shape\":[1548],\"data_offsets\":[1000,4096]}}";
  size_t n = sizeof header - 1;
  memset(out, 0, 8);
  out[0] = (char)n;
  out[1] = (char)(n >> 8);
  memcpy(out + 8, header, n);
  for (int i = 0; i < DATA; i++) out[8 + n + (size_t)i] = (char)(i * 7);
  return 8 + n + DATA;
}

static bool read_all(const struct tc_st *s, char *buf)
{
  int64_t at = 0;
  for (int i = 0; i < tc_st_n(s); i++) {
    const struct tc_st_tensor *t = tc_st_at(s, i);
    if (t->bytes > MOST || t->offset != at || tc_st_find(s, t->name) != i) return false;
    if (tc_st_read(s, i, 0, t->bytes, buf, NULL) < 0) return false;
    at += t->bytes;
  }
  tc_st_note(s, "format");
  return true;
}

static size_t make_llmc(char *out)
{
  const struct tc_llmc_sizes s = { 8, 20, 2, 2, 4, 32 };
  int32_t head[TC_LLMC_HEADER_BYTES / 4];
  size_t n = (size_t)tc_llmc_place(&s, TC_LLMC_TENSORS, 0) * 4;
  tc_llmc_header(head, &s, TC_F32);
  memcpy(out, head, sizeof head);
  memset(out + sizeof head, 1, n);
  return sizeof head + n;
}

/* The whole body read. */
static bool read_llmc(const struct tc_llmc *l, char *buf)
{
  int64_t elems = tc_llmc_place(tc_llmc_sizes(l), TC_LLMC_TENSORS, 0);
  return elems * 4 < MOST * 2 && tc_llmc_read(l, 0, elems, buf, NULL) == 0;
}

int main(int argc, char **argv)
{
  struct fuzz f;
  char *valid = tc_calloc(MOST, 1), *text = tc_calloc(MOST, 1), *buf = tc_calloc(MOST, 4);
  char *bin = tc_calloc(MOST, 1);
  size_t n_valid = make_safetensors(valid), n_bin = make_llmc(bin);
  int unread = 0, silent = 0;
  fuzz_start(&f, argc, argv);
  int64_t rss = fuzz_rss_kb();
  while (fuzz_more(&f)) {
    bool llmc = fuzz_below(&f, 8) == 0;
    const char *from = llmc ? bin : valid;
    size_t n_from = llmc ? n_bin : n_valid, n_head = llmc ? 32 : n_valid - DATA, n = n_head;
    struct tc_err err = {0};
    memcpy(text, from, n);                       /* the header is damaged, the data follow it */
    for (size_t k = 1 + fuzz_below(&f, 3); k > 0 && n > 16; k--)
      fuzz_damage(&f, text, &n, llmc || fuzz_below(&f, 4) == 0 ? 0 : 8, MOST / 2);
    memcpy(text + n, from + n_head, n_from - n_head);
    n += n_from - n_head;
    if (fuzz_below(&f, 8) == 0) fuzz_damage(&f, text, &n, 0, MOST);
    if (!llmc && n > DATA + 8 && fuzz_below(&f, 4)) {     /* a length that fits again */
      uint64_t length = n - DATA - 8;
      memcpy(text, &length, 8);
    }
    fuzz_write(&f, text, n);
    struct tc_st *s = NULL;
    struct tc_llmc *l = NULL;
    int rc = llmc ? tc_llmc_open(&l, f.path, &err) : tc_st_open(&s, f.path, &err);
    f.accepted += rc == 0;
    if (rc == 0 && !(llmc ? read_llmc(l, buf) : read_all(s, buf)))
      unread += fuzz_fault(&f, "accepted, but can't be read");
    if (rc < 0 && (rc != TC_EUSER || !*err.text || strchr(err.text, '\n')))
      silent += fuzz_fault(&f, err.text);
    tc_st_close(s);
    tc_llmc_close(l);
  }
  is_int(unread, 0, "what is accepted can be read to its end");
  is_int(silent, 0, "what is refused is refused with a sentence");
  free(valid);
  free(text);
  free(buf);
  free(bin);
  return fuzz_end(&f, "safetensors and llm.c's model files", rss);
}
