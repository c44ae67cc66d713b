/* SPDX-License-Identifier: Apache-2.0 */
/* A set of addresses as sorted, disjoint, non-adjacent ranges, in memory of its own. */
#ifndef VRDMA_RANGES_H
#define VRDMA_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct range {
	uint64_t start, end;
};

struct ranges {
	struct range *v;
	size_t n, room;
	size_t head; /* unused elements before v: the first ones are removed without moving the rest */
};

bool ranges_ready(struct ranges *s); /* reserves memory for one change, which then maps none */
bool ranges_room(struct ranges *s, size_t n); /* the same for n changes */
bool ranges_add(struct ranges *s, uint64_t start, uint64_t end); /* false: no memory, unchanged */
bool ranges_remove(struct ranges *s, uint64_t start, uint64_t end);
/* The first part of s inside [start, end); false: none. */
bool ranges_find(const struct ranges *s, uint64_t start, uint64_t end, struct range *out);

#endif
