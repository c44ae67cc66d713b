/* SPDX-License-Identifier: Apache-2.0 */
/* Shared anonymous memory that has a descriptor, for a daemon that needs one. */
#ifndef VRDMA_ANONYMOUS_H
#define VRDMA_ANONYMOUS_H

#include "maps.h"

int anonymous_file(const struct vma *v); /* the descriptor of the file behind v; -1: not ours */
_Atomic int *anonymous_holder(int fd);   /* where fd is kept; NULL: it is not ours */
/* May what is mapped at old grow to so many bytes? */
bool anonymous_grows(const void *old, size_t new_size);
/* These addresses were unmapped, or mapped anew. */
void anonymous_unmapped(const void *addr, size_t n);
void anonymous_moved(const void *old, size_t size, const void *to, size_t new_size); /* by mremap */
void anonymous_confined(void); /* the program forbids itself system calls */
void anonymous_child(void);    /* in a fork child */

#endif
