/* hub.h - what joins ranks that are threads of one process (thread.c). */
#ifndef TC_COMM_HUB_H
#define TC_COMM_HUB_H

/* Local. Joins `world` ranks. Made once, freed after all communicators (tc_comm_thread). */
struct tc_hub;
struct tc_hub *tc_hub_new(int world);
void tc_hub_free(struct tc_hub *h);
/* Local. Marks a rank as gone: waits of the others fail at once with TC_EPEER. */
void tc_hub_leave(struct tc_hub *h, int rank);

#endif
