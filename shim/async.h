/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what may access this process's memory while all its threads are stopped. Under memory_lock. */
#ifndef VRDMA_ASYNC_H
#define VRDMA_ASYNC_H

#include <stdbool.h>

enum async {
	ASYNC_OPERATIONS, /* operations that find their buffer by address later: io_uring, AIO, vhost */
	ASYNC_PINS,       /* these, and devices that pin pages */
};
bool async_any(enum async what); /* does the process hold such a descriptor? True also if unknown. */

#endif
