/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program shares with others: the daemon maps it too, and nothing is replaced. */
#ifndef VRDMA_SHARED_H
#define VRDMA_SHARED_H

#include "maps.h"

#define SHARED_MAX 64 /* descriptors for one registration */

struct shared {
	int fd[SHARED_MAX]; /* that were opened for it */
	int n;
};

bool shared_wanted(void); /* does the daemon map such memory? */
/*
 * A descriptor of the file behind v, for a daemon that needs one; -1: none, or it needs none. It
 * is good until shared_end.
 */
int shared_file(struct shared *s, const struct vma *v);
bool shared_offers(const struct vrdma_extent *e, uint32_t n); /* is there a descriptor in one? */
void shared_end(struct shared *s);

#endif
