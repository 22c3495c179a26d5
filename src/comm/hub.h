/* hub.h - connects ranks that are threads of one process (hub.c). */
#ifndef TC_COMM_HUB_H
#define TC_COMM_HUB_H

/* Local. Connects `world` ranks. Created once, freed after all communicators (tc_comm_thread). */
struct tc_hub;
struct tc_hub *tc_hub_new(int world);
void tc_hub_free(struct tc_hub *h);
/* Local. Marks a rank as ended: the others' waits for it fail at once with TC_EPEER. */
void tc_hub_leave(struct tc_hub *h, int rank);

#endif
