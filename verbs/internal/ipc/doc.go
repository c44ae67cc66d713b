// Package ipc connects a Go program with the device: through the daemon's socket, or through the kernel's
// device files. Both execute the kernel's uverbs commands and share rings of the same layout with the
// program, so package verbs does not depend on which one it uses.
package ipc
