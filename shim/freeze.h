/* SPDX-License-Identifier: Apache-2.0 */
/* Stopping all other threads, where their writes cannot be held back one by one. */
#ifndef VRDMA_FREEZE_H
#define VRDMA_FREEZE_H

#include <stdbool.h>

bool freeze_begin(void); /* false: they run on */
void freeze_end(void);

#endif
