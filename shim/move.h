/* SPDX-License-Identifier: Apache-2.0 */
/* Moving private pages between addresses by userfaultfd. Under memory_lock. */
#ifndef VRDMA_MOVE_H
#define VRDMA_MOVE_H

#include "vrdma.h"

struct mover {
	int fd; /* userfaultfd; -1: none */
};

bool mover_open(struct mover *m); /* false: this kernel cannot, or a filter forbids it */
void mover_close(struct mover *m);
/*
 * From here on an access to a page of [start, end) that does not exist fails or waits, instead
 * of making a page of zeros. 0 or -errno.
 */
long mover_watch(struct mover *m, uint64_t start, uint64_t end);
void mover_unwatch(struct mover *m, uint64_t start, uint64_t end);
void mover_wake(struct mover *m, uint64_t start, uint64_t end); /* those that wait try again */
/*
 * Moves the pages of [from, from+n) that exist to to, which is watched. Stops at the first one
 * that cannot be moved; *done is how far it came. 0 or -errno.
 */
long mover_move(struct mover *m, uint64_t to, uint64_t from, uint64_t n, uint64_t *done);
/* Copies n bytes from memory to watched pages that do not exist. A page appears with its bytes. */
bool mover_copy(struct mover *m, uint64_t to, uint64_t from, uint64_t n);

#endif
