/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that lets the calling thread's own writes through a guard. */
#ifndef VRDMA_MONITOR_H
#define VRDMA_MONITOR_H

#include "protect.h"

/* own_write is called, in the monitor, before a page that the caller writes to is released. */
bool monitor_start(struct guard *g, void (*own_write)(uint64_t page));
void monitor_stop(void);
void monitor_child(void); /* in a fork child, which has no monitor */

#endif
