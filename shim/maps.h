/* SPDX-License-Identifier: Apache-2.0 */
/* The mappings of this process. maps.c reads them; memory.c and fork.c change them. */
#ifndef VRDMA_MAPS_H
#define VRDMA_MAPS_H

#include "vrdma.h"

enum vma_kind {
	VMA_OWN,       /* shared pages of our memfd */
	VMA_BORROWED,  /* the same, private: while fork.c is at work */
	VMA_ANONYMOUS, /* private, no file: heap, mmap, .bss */
	VMA_PRIVATE,   /* private mapping of a file: .data */
	VMA_SHARED,    /* shared with others: left alone, the daemon maps it too */
	VMA_SPECIAL,   /* stacks, vdso, huge pages: left alone */
};

struct vma {
	uint64_t start, end, offset;
	uint64_t device, inode; /* of the file; 0 if there is none */
	int prot; /* PROT_* */
	enum vma_kind kind;
};

struct maps {
	int fd;
	bool query; /* the kernel has PROCMAP_QUERY */
	bool broken; /* reading failed: what was not found may be there */
	/* else: the text, read in order */
	size_t have, next;
	bool eof, some; /* nothing more comes; something came */
	char text[16384];
};

int maps_file(const char *name); /* a file about this process's memory: "maps", "pagemap" */
int maps_memory(void); /* this process's memory, for writing */
bool maps_open(struct maps *m);
void maps_rewind(struct maps *m); /* any address may come next */
void maps_close(struct maps *m);
bool maps_named(struct maps *m, const char *name); /* is there a shared mapping whose name begins so? */
/* The first mapping that ends above address. Addresses must not go down. */
bool maps_find(struct maps *m, uint64_t address, struct vma *out);
/* The same among shared mappings of files. */
bool maps_shared(struct maps *m, uint64_t address, struct vma *out);

#endif
