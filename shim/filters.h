/* SPDX-License-Identifier: Apache-2.0 */
/* What seccomp filters say about system calls of ours. */
#ifndef VRDMA_FILTERS_H
#define VRDMA_FILTERS_H

#include <stdbool.h>

bool filters_allow(void); /* false: the program must not be halted */
/* Whether try returns 0 in a child, which has the filters of this thread. They may end it. */
bool filters_survive(int (*try)(void));

#endif
