/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether an io_uring can have an operation in flight that reads or writes a buffer.
 *
 * libuv (Node.js, PyTorch's TCPStore) has a ring that only ever submits EPOLL_CTL. Memory of such a
 * program must not be foreign because of it.
 */
#ifndef VRDMA_URING_H
#define VRDMA_URING_H

#include <stdbool.h>

bool uring_harmless(int fd); /* false also if it is not known */

#endif
