/* amount.h - amounts as text, to read and to print: bytes, counts, times. All are Local. */
#ifndef TC_AMOUNT_H
#define TC_AMOUNT_H

#include <stddef.h>
#include <stdint.h>

/* "80GB", "80e9", "1.5 GiB", "10 GB/s" into bytes; -1 if it is malformed. */
double tc_parse_bytes(const char *text);
/* "24:00:00", "30:00" (minutes and seconds), "1-12:00:00", "90m", "36h", "20d", "5y" (hours
 * if without a unit) into seconds; -1 if it is malformed. */
double tc_parse_seconds(const char *text);
/* The whole number that `text` begins with, in digits alone, times kilo for the first letter of `units` (such as "KMG")
 * if that follows in either case, times kilo * kilo for the second, ...; INT64_MAX if it is larger, -1: it begins with
 * no digit. *end <- what follows. */
int64_t tc_parse_whole(const char *text, int64_t kilo, const char *units, const char **end);

/* The shortest decimal number, of six digits at least, that is x as a float, into buf: as text, or as a double (1e-5f is
 * 1e-05, not 9.99999975e-06). */
const char *tc_shortest_float(char buf[32], float x);
double tc_shortest(float x);
/* "" or "s", as in "1 node" and "4 nodes". */
const char *tc_plural(int64_t n);
/* "1.5 GB", "312 KB": decimal units, into buf. Returns buf. */
char *tc_human_bytes(char *buf, size_t size, double bytes);
/* "70.6B", "842K", "12": a number of parameters or tokens in three digits, into buf. Returns buf. */
char *tc_human_count(char *buf, size_t size, double n);
/* "90 s", "25 h": seconds in three digits, into buf. Returns buf. */
char *tc_human_seconds(char *buf, size_t size, double s);

#endif
