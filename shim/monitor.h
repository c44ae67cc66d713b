/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that releases pages of a guard that the forking thread needs. */
#ifndef VRDMA_MONITOR_H
#define VRDMA_MONITOR_H

#include "protect.h"

/* before_write is called, in the monitor, before a page is released to a writer. */
bool monitor_start(struct guard *g, void (*before_write)(uint64_t page));
void monitor_lenient(bool on); /* may others be let through, if the caller waits for them? */
void monitor_stop(void);
void monitor_child(void); /* in a fork child, which has no monitor */

#endif
