/* mesh_text.c - the sizes or coordinates of a mesh as text and as JSON, and read again. */
#include "src/graph/mesh.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

char *tc_mesh_text(char buf[TC_MESH_TEXT], const int32_t n[TC_AXES], const char *equals, const char *between)
{
  buf[0] = '\0';
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    tc_text_add(buf, TC_MESH_TEXT, "%s%s%s%d", *buf ? between : "", tc_axis_name[a], equals, n[a]);
  return buf;
}

char *tc_mesh_placing(char buf[TC_MESH_TEXT], const char *between)
{
  buf[0] = '\0';
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (tc_axis_role[a] != TC_ROLE_STAGE)
      tc_text_add(buf, TC_MESH_TEXT, "%s%s", *buf ? between : "", tc_axis_name[a]);
  return buf;
}

bool tc_mesh_parse(const char *text, int32_t n[TC_AXES])
{
  for (int a = 0; a < TC_AXES; a++) n[a] = 1;
  int next = TC_FIRST_AXIS;                        /* in this order, so that no axis comes twice */
  while (*text) {
    const size_t letters = strspn(text, "abcdefghijklmnopqrstuvwxyz");
    while (next < TC_AXES && (strlen(tc_axis_name[next]) != letters || memcmp(text, tc_axis_name[next], letters))) next++;
    if (next == TC_AXES || text[letters] < '1' || text[letters] > '9') return false;
    char *end;
    const long size = strtol(text + letters, &end, 10);
    if (size > TC_MAX_WORLD || (*end && (*end != ' ' || !end[1]))) return false;
    n[next++] = (int32_t)size;
    text = end + (*end == ' ');
  }
  return next > TC_FIRST_AXIS;
}

json_t *tc_mesh_json(const int32_t n[TC_AXES])
{
  json_t *o = json_object();
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) json_object_set_new(o, tc_axis_name[a], json_integer(n[a]));
  return o;
}
