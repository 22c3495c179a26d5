/* kind.h - whether a file is text, by its first bytes, and which format it is otherwise. */
#ifndef TC_DATA_KIND_H
#define TC_DATA_KIND_H

#include "src/base/base.h"

enum { TC_KIND_BYTES = 4096, TC_KIND_TEXT = 240 };     /* bytes to look at; room for the reason */

/* Text, which is UTF-8 without a zero byte; bytes that are not UTF-8; bytes with a zero; another format that is known. */
enum tc_kind { TC_KIND_UTF8, TC_KIND_NO_UTF8, TC_KIND_ZERO, TC_KIND_KNOWN };

/* Local. What a file is that begins with these n bytes. A character may be cut off at their end. If they are not text,
 * `why` continues a sentence that begins with the file: "is not text: ..." with the first byte that is not, or the name
 * of the format and what to do with such a file. */
enum tc_kind tc_kind_find(char why[TC_KIND_TEXT], const char *first, size_t n);

#endif
