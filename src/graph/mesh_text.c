/* mesh_text.c - the sizes or coordinates of a mesh as text and as JSON, and read again. */
#include "src/graph/mesh.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

char *tc_mesh_text(char buf[TC_MESH_TEXT], const int32_t size[TC_AXES], const char *equals, const char *between)
{
  buf[0] = '\0';
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_is_shown(size, s))
      tc_text_add(buf, TC_MESH_TEXT, "%s%s%s%d", *buf ? between : "", tc_set_name[s], equals,
                  tc_axes_size(size, tc_set_axes[s]));
  return buf;
}

char *tc_mesh_place(char buf[TC_MESH_TEXT], const struct tc_mesh *m, int rank, const char *equals, const char *between)
{
  buf[0] = '\0';
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_is_shown(m->size, s))
      tc_text_add(buf, TC_MESH_TEXT, "%s%s%s%d", *buf ? between : "", tc_set_name[s], equals,
                  tc_mesh_index(m, rank, tc_set_axes[s]));
  return buf;
}

char *tc_mesh_placing(char buf[TC_MESH_TEXT], const char *between)
{
  buf[0] = '\0';
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_is_always(s) && tc_set_axes[s] != tc_axes_of(TC_ROLE_STAGE))
      tc_text_add(buf, TC_MESH_TEXT, "%s%s", *buf ? between : "", tc_set_name[s]);
  return buf;
}

bool tc_mesh_parse(const char *text, int32_t size[TC_AXES])
{
  int32_t of_set[TC_SETS] = { 0 };
  int next = 0;                                    /* in this order, so that no set comes twice */
  while (*text) {
    const size_t letters = strspn(text, "abcdefghijklmnopqrstuvwxyz");
    while (next < TC_SETS && (!tc_set_has_option(next) || strlen(tc_set_name[next]) != letters ||
                              memcmp(text, tc_set_name[next], letters))) next++;
    if (next == TC_SETS || text[letters] < '1' || text[letters] > '9') return false;
    char *end;
    const long n = strtol(text + letters, &end, 10);
    if (n > TC_MAX_WORLD || (*end && (*end != ' ' || !end[1]))) return false;
    of_set[next++] = (int32_t)n;
    text = end + (*end == ' ');
  }
  return next > 0 && tc_axes_from_sets(size, of_set);
}

json_t *tc_mesh_json(const int32_t size[TC_AXES])
{
  json_t *o = json_object();
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_is_shown(size, s)) json_object_set_new(o, tc_set_name[s], json_integer(tc_axes_size(size, tc_set_axes[s])));
  return o;
}

json_t *tc_mesh_place_json(const struct tc_mesh *m, int rank)
{
  json_t *o = json_object();
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_is_shown(m->size, s))
      json_object_set_new(o, tc_set_name[s], json_integer(tc_mesh_index(m, rank, tc_set_axes[s])));
  return o;
}
