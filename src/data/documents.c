/* documents.c - where the documents of a sequence begin, and the token that ends one. */
#include "src/data/documents.h"
#include "src/config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* int32 of a shard's header: MARK says that `tercio data` wrote the others. */
enum { HEADER_INTS = 8, AT_MARK = 3, AT_VOCAB = 6, AT_END = 7, MARK = 0x6b746374 };

/* *end: -1 if the shard does not say it. */
static int read_end(int64_t *end, const char *file, struct tc_err *err)
{
  int32_t header[HEADER_INTS] = { 0 };
  const int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const ssize_t n = fd < 0 ? -1 : pread(fd, header, sizeof header, 0);
  const int why = errno;
  if (fd >= 0) close(fd);
  *end = -1;
  if (n < 0) return tc_fail(err, TC_EUSER, "data file '%s' can't be read: %s", file, strerror(why));
  if (n == (ssize_t)sizeof header && header[AT_MARK] == MARK) *end = header[AT_END];
  return 0;
}

int tc_documents_end(int32_t *end, int64_t option, char *const *files, int n_files, enum tc_data_format format,
                     int64_t vocab, struct tc_err *err)
{
  int64_t token = option;
  if (option == TC_AUTO && format == TC_FORMAT_TEXT)
    return tc_fail(err, TC_EUSER, "data.documents = mask needs data.end_token for data.format = text: the byte that "
                   "ends a document, such as 0, or 10 for one document per line");
  for (int i = 0; i < n_files && option == TC_AUTO; i++) {
    int64_t said;
    TC_TRY(read_end(&said, files[i], err));
    if (said < 0)
      return tc_fail(err, TC_EUSER, "data.documents = mask needs data.end_token: the header of '%s' does not say which "
                     "token ends a document (shards of tercio data do)", files[i]);
    if (i > 0 && said != token)
      return tc_fail(err, TC_EUSER, "the end-of-document token of '%s' is %lld, that of '%s' %lld: shards of one "
                     "tokenizer would fit, or data.end_token for all of them", files[i], (long long)said, files[0],
                     (long long)token);
    token = said;
  }
  if (token < 0 || token >= vocab)
    return tc_fail(err, TC_EUSER, "the end-of-document token %lld%s is not below model.vocab = %lld", (long long)token,
                   option == TC_AUTO ? " (of the shards' headers)" : " (data.end_token)", (long long)vocab);
  *end = (int32_t)token;
  return 0;
}

void tc_documents_starts(const int32_t *tokens, int64_t n, int64_t T, int32_t end, int32_t *starts)
{
  for (int64_t i = 0; i < n; i++) {
    const int32_t t = (int32_t)(i % T);
    starts[i] = t == 0 ? 0 : tokens[i - 1] == end ? t : starts[i - 1];
  }
}
