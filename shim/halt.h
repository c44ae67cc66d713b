/* SPDX-License-Identifier: Apache-2.0 */
/* Stopping all other threads, where their writes cannot be held back one by one. */
#ifndef VRDMA_HALT_H
#define VRDMA_HALT_H

#include <stdbool.h>

bool halt_begin(void); /* false: they run on */
void halt_end(void);

#endif
