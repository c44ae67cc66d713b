/* SPDX-License-Identifier: Apache-2.0 */
/* What seccomp filters say about halting threads. */
#ifndef VRDMA_FILTERS_H
#define VRDMA_FILTERS_H

#include <stdbool.h>

bool filters_allow(void); /* false: the program must not be halted */

#endif
