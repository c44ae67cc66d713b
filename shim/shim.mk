# libvrdma.so. Include from the root Makefile, or: make -f shim/shim.mk bin/libvrdma.so
BIN ?= bin
SHIM_SRC := $(wildcard shim/*.c)
SHIM_CFLAGS := -std=c11 -D_GNU_SOURCE -U_FORTIFY_SOURCE -O2 -g -fPIC -Wall -Wextra -Werror \
	-Wno-nonnull-compare -fvisibility=hidden -fno-strict-aliasing \
	-ffile-prefix-map=$(CURDIR)=.
# libdl and libpthread became part of libc in glibc 2.34; naming the files keeps them
# needed, so that the library also loads where they still are libraries of their own.
SHIM_LDFLAGS := -shared -Wl,-soname,libvrdma.so -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0

$(BIN)/libvrdma.so: $(SHIM_SRC) $(wildcard shim/*.h)
	@mkdir -p $(BIN)
	$(CC) $(SHIM_CFLAGS) -o $@ $(SHIM_SRC) $(SHIM_LDFLAGS) $(SHIM_EXTRA)

# libvrdma-sockets.so, for vrdma run --sockets
SOCKETS_SRC := $(wildcard shim/sockets/*.c) shim/real.c

$(BIN)/libvrdma-sockets.so: $(SOCKETS_SRC) $(wildcard shim/*.h shim/sockets/*.h)
	@mkdir -p $(BIN)
	$(CC) $(SHIM_CFLAGS) -o $@ $(SOCKETS_SRC) $(subst libvrdma.so,libvrdma-sockets.so,$(SHIM_LDFLAGS)) $(SHIM_EXTRA)

# vrdma_criu_plugin.so, for CRIU 4
$(BIN)/vrdma_criu_plugin.so: shim/criu/plugin.c
	@mkdir -p $(BIN)
	$(CC) $(SHIM_CFLAGS) -o $@ $< -shared $(SHIM_EXTRA)
